package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/feature"
	"github.com/stowage-dev/stowage/internal/feature/podsize"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/placement"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/scope"
	"github.com/stowage-dev/stowage/internal/seats"
	"github.com/stowage-dev/stowage/internal/sizing"
	"github.com/stowage-dev/stowage/internal/spread"
)

// Explanation says why a pod looks the way it does.
type Explanation struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Node      string   `json:"node,omitempty"`
	Owners    []string `json:"owners,omitempty"` // from the pod upwards
	// LeftAlone is the first reason why nothing was changed, if nothing was.
	LeftAlone string `json:"leftAlone,omitempty"`
	Spread    Aspect `json:"spread"`
	Sizing    Aspect `json:"sizing"`
	PeerPods  Aspect `json:"peerPods"`
}

// Aspect is one of the three questions about a pod.
type Aspect struct {
	// Changed says that Stowage changed something in this pod.
	Changed bool `json:"changed"`
	// Summary is what it is, or "left alone".
	Summary string `json:"summary"`
	// Facts are sentences: why it is so.
	Facts []string `json:"facts"`
}

func (a *Aspect) say(format string, args ...any) {
	a.Facts = append(a.Facts, fmt.Sprintf(format, args...))
}

const leftAlone = "left alone"

// subject is a pod that is explained.
type subject struct {
	*Inspector
	reader live
	pod    *corev1.Pod
	view   *podpatch.Pod
	owner  *podpatch.Owner // nil if it has none
	chain  []cluster.Ref   // the owner, what made it, and so on
	roots  []*cluster.Workload
	// unseen is why the webhook would not see the pod now, if it would not.
	unseen string
}

// Explain explains a pod. It returns the API server's error if there is no such pod.
func (i *Inspector) Explain(ctx context.Context, namespace, name string) (*Explanation, error) {
	// 1. The pod, and what made it.
	s := &subject{Inspector: i, reader: i.live(), pod: &corev1.Pod{}}
	if err := i.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s.pod); err != nil {
		return nil, forbidden(fmt.Sprintf("pod %s in namespace %s", name, namespace), err)
	}
	s.view = podpatch.FromPod(s.pod)
	e := &Explanation{Namespace: namespace, Pod: name, Node: s.pod.Spec.NodeName}
	if s.owner = s.view.Controller(); s.owner != nil {
		chain, err := cluster.Owners(ctx, s.reader, namespace, cluster.Ref{APIVersion: s.owner.APIVersion, Kind: s.owner.Kind, Name: s.owner.Name, UID: types.UID(s.owner.UID)})
		if err != nil {
			return nil, forbidden("what made the pod", err)
		}
		s.chain, s.roots = chain.Refs, chain.Workloads
	}
	for _, o := range s.chain {
		e.Owners = append(e.Owners, o.Kind+" "+o.Name)
	}

	// 2. May Stowage look at it at all?
	answer, err := scope.New(s.reader, i.Namespace).Of(ctx, namespace, s.view)
	s.unseen = answer.LeftAlone
	if err == nil && answer.Mode == stowage.ModeAudit {
		s.unseen = fmt.Sprintf("%s is %s: what would be done is said, and nothing is done", stowage.ModeKey, stowage.ModeAudit)
	}
	if s.unseen == "" {
		if s.unseen, err = s.notCalled(ctx); err != nil {
			return nil, err
		}
	}

	// 3. The three questions.
	for _, part := range []struct {
		what    string
		on      bool
		aspect  *Aspect
		explain func(context.Context, *Aspect) error
	}{{"the spread", i.Spread, &e.Spread, s.spread}, {"the size", i.Sizing, &e.Sizing, s.sizing}, {"the VM", i.VMs, &e.PeerPods, s.peerPod}} {
		part.aspect.Summary = leftAlone
		if !part.on {
			part.aspect.say("This feature is off.")
			continue
		}
		switch err := part.explain(ctx, part.aspect); {
		case apierrors.IsForbidden(err):
			part.aspect.say("The rest cannot be told: %v.", err)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	if !e.Spread.Changed && !e.Sizing.Changed && !e.PeerPods.Changed {
		e.LeftAlone = s.unseen
		for _, a := range []Aspect{e.Spread, e.Sizing, e.PeerPods} {
			if e.LeftAlone == "" && len(a.Facts) > 0 {
				e.LeftAlone = a.Facts[0]
			}
		}
	}
	return e, nil
}

// notCalled returns why the API server does not ask Stowage about such a pod, if it does not.
func (s *subject) notCalled(ctx context.Context) (string, error) {
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	err := s.Client.Get(ctx, client.ObjectKey{Name: s.Registration}, &reg)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("there is no MutatingWebhookConfiguration %q, so the API server does not ask Stowage", s.Registration), nil
	case apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", err
	}
	ns, err := s.reader.Namespace(ctx, s.pod.Namespace)
	if apierrors.IsForbidden(err) || err == nil && ns == nil {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	registration, err := scope.Compile(&reg)
	if err != nil {
		return fmt.Sprintf("what MutatingWebhookConfiguration %q selects is not known: %v", s.Registration, err), nil
	}
	if !registration.SelectsLabels(ns.Labels, s.pod.Labels) {
		return fmt.Sprintf("the selectors of MutatingWebhookConfiguration %q leave this namespace or pod out", s.Registration), nil
	}
	created := s.pod.DeepCopy()
	created.Spec.NodeName = s.templateNode()
	if selected, err := registration.Selects(ns.Labels, created); err == nil && !selected {
		return fmt.Sprintf("a matchCondition of MutatingWebhookConfiguration %q leaves this pod out", s.Registration), nil
	}
	return "", nil
}

// templateNode is the node that the pod template of the owner names, if it is known to name one.
func (s *subject) templateNode() string {
	if len(s.roots) > 0 {
		return s.roots[0].TemplateNode
	}
	return ""
}

// past says why a pod that should have been changed was not, as far as that can be known.
func (s *subject) past(what string) string {
	if s.unseen != "" {
		return fmt.Sprintf("It would be %s, but: %s.", what, s.unseen)
	}
	return fmt.Sprintf("It would be %s if it were created now. It came before that was so, or past the webhook (which never holds a pod up: see the events of its owner).", what)
}

// spread says where the pod goes, and why.
func (s *subject) spread(ctx context.Context, a *Aspect) error {
	// 1. Has it a strategy?
	if s.owner == nil {
		a.say("A strategy divides the pods of a workload, and nothing controls this pod.")
		return nil
	}
	if placement.NeverSeated(s.owner) {
		a.say("The pods of a %s have their nodes already.", s.owner.Kind)
		return nil
	}
	find := policy.Pod{Namespace: s.pod.Namespace, Owner: s.chain[0], Annotations: s.pod.Annotations}
	p, err := s.finder(s.reader).Find(ctx, find)
	if err != nil {
		return err
	}
	if p == nil {
		return s.noPolicy(a)
	}
	if p.Strategy == nil {
		a.say("The %s is invalid: %s.", p.Source, strings.ReplaceAll(p.Err.Error(), "\n", "; "))
		return nil
	}
	pools := make([]string, p.Strategy.Len())
	for n := range pools {
		pools[n] = poolText(p.Strategy.Pool(n))
	}
	a.say("The policy is the %s: %s.", p.Source, strings.Join(pools, "; "))
	for _, w := range p.Warnings {
		a.say("%s.", w)
	}

	// 2. Has it a seat?
	name, pooled := s.pod.Labels[stowage.PoolLabel]
	ordinal, err := strconv.ParseInt(s.pod.Labels[stowage.SeatLabel], 10, 64)
	if !pooled || err != nil {
		created := placement.AsCreated(s.view, p.Strategy, s.templateNode())
		if key, pinned := placement.Pinned(created, p.Strategy, nil); pinned {
			a.say("The pod chooses its nodes itself, by %s, so it has no seat.", key)
		} else {
			a.say("%s", s.past("given a seat"))
		}
		return s.counts(ctx, a, p)
	}
	if a.Changed = proven(s.pod); a.Changed {
		a.Summary = fmt.Sprintf("seat %d of pool %s", ordinal, name)
	}
	pool, ok := p.Pool(name)
	if !ok {
		a.say("The policy has no pool %s any more: it was edited after this pod came. Its next pods go to the pools that there are.", name)
		return s.counts(ctx, a, p)
	}
	a.say("%s", origin(s.pod.Annotations[stowage.ClaimAnnotation]))
	if err := s.counts(ctx, a, p); err != nil {
		return err
	}
	if rank, ok := p.Strategy.Rank(spread.Seat{Pool: pool, Ordinal: ordinal}); ok {
		a.say("The seat is number %d of the sequence; %s.", rank, s.removal(rank))
	}
	return s.placement(ctx, a, p, pool)
}

// noPolicy says why there is no strategy.
func (s *subject) noPolicy(a *Aspect) error {
	sources := []struct {
		of          string
		annotations map[string]string
	}{{"the pod", s.pod.Annotations}}
	for _, w := range s.roots {
		sources = append(sources, struct {
			of          string
			annotations map[string]string
		}{w.Kind + " " + w.Name, w.Annotations})
	}
	for _, src := range sources {
		if _, ok := policy.StrategyText(src.annotations); ok {
			a.say("The strategy in the annotations of %s does not count in namespace %s: it is on the block list, or lacks the label that --spread-namespace-label asks for.", src.of, s.pod.Namespace)
			return nil
		}
		if wrong := policy.Check(src.annotations); len(wrong) > 0 {
			a.say("The annotations of %s give no strategy: %s.", src.of, strings.Join(wrong, "; "))
			return nil
		}
	}
	var names []string
	for _, o := range s.chain {
		names = append(names, o.Kind+" "+o.Name)
	}
	a.say("It has no strategy: no PodDistributor is for %s, and there are no annotations %s and %s.",
		strings.Join(names, " or "), stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation)
	return nil
}

func poolText(p spread.Pool) string {
	var parts []string
	if p.Base > 0 {
		parts = append(parts, fmt.Sprintf("base %d", p.Base))
	}
	parts = append(parts, fmt.Sprintf("weight %d", p.Weight))
	if p.Max > 0 {
		parts = append(parts, fmt.Sprintf("at most %d", p.Max))
	}
	return fmt.Sprintf("%s (%s) has %s", p.Name, labels.Set(p.Labels), strings.Join(parts, ", "))
}

// proven reports whether a pod carries a proof of its seat. Whether that is genuine only
// who has the key can tell.
func proven(pod *corev1.Pod) bool { return pod.Annotations[stowage.ClaimAnnotation] != "" }

// origin says where a seat comes from, by its claim.
func origin(claim string) string {
	if claim == "" {
		return "The pod carries no proof of its seat, so Stowage does not count it: somebody wrote its labels."
	}
	switch ledger.Kind(claim[0]) {
	case ledger.KindClaimed:
		return "The seat was claimed in the ledger as the pod was created."
	case ledger.KindUnshared:
		return "The seat was given by one replica alone, because the API was too slow to share it."
	case ledger.KindOrdinal:
		return "The seat follows from the pod's own ordinal."
	case ledger.KindAdopted:
		return "The seat was given to the pod later, because it had come without one."
	}
	return "The claim that the pod carries is of no kind that this version knows."
}

// counts tells the arithmetic: how many pods there are, and how they are divided.
func (s *subject) counts(ctx context.Context, a *Aspect, p *policy.Policy) error {
	owner := ledger.Owner{APIVersion: s.owner.APIVersion, Kind: s.owner.Kind, Namespace: s.pod.Namespace, Name: s.owner.Name, UID: types.UID(s.owner.UID)}
	current := make([]int64, p.Strategy.Len())
	seated := int64(0)
	err := each(ctx, s.Inspector, &corev1.PodList{}, func(pod *corev1.Pod) {
		if c := metav1.GetControllerOfNoCopy(pod); c == nil || c.UID != owner.UID || !seats.Live(pod) || !proven(pod) {
			return
		}
		if n, ok := p.Pool(pod.Labels[stowage.PoolLabel]); ok {
			current[n]++
			seated++
		}
	}, client.InNamespace(s.pod.Namespace), client.HasLabels{stowage.SeatLabel})
	if err != nil {
		return err
	}
	replicas := seated
	scale, err := cluster.ReadScale(ctx, s.Client, owner.Namespace, seats.Ref(owner))
	switch {
	case err == nil && scale != nil:
		replicas = scale.Replicas
	case err != nil && !apierrors.IsForbidden(err):
		return err
	}
	var names, shares, targets, counts []string
	for n := range current {
		names = append(names, p.Strategy.Pool(n).Name)
		shares = append(shares, strconv.FormatFloat(p.Strategy.Share(n, replicas), 'f', 1, 64))
		targets = append(targets, strconv.FormatInt(p.Strategy.Target(n, replicas), 10))
		counts = append(counts, strconv.FormatInt(current[n], 10))
	}
	a.say("%s %s asks for %d pods: share %s, target %s, current %s (%s).", owner.Kind, owner.Name, replicas,
		strings.Join(shares, " / "), strings.Join(targets, " / "), strings.Join(counts, " / "), strings.Join(names, " / "))
	return nil
}

// removal says when a pod goes at a scale-down.
func (s *subject) removal(rank int64) string {
	cost, ok := s.pod.Annotations[corev1.PodDeletionCost]
	switch {
	case !ok:
		return "its owner removes pods by their ordinals"
	case cost == placement.DeletionCost(rank):
		return fmt.Sprintf("a scale-down removes higher numbers first (deletion cost %s)", cost)
	}
	return fmt.Sprintf("its deletion cost, %s, is not ours, and decides when a scale-down removes it", cost)
}

// placement says how the pod is held to its pool.
func (s *subject) placement(ctx context.Context, a *Aspect, p *policy.Policy, pool int) error {
	want := p.Strategy.Pool(pool).Labels
	how := "A node selector holds it there"
	if p.Preferred {
		how = "Its affinity prefers nodes of that pool"
	}
	if s.pod.Spec.NodeName == "" {
		a.say("%s; it waits for a node with %s.", how, labels.Set(want))
		return nil
	}
	node, err := s.reader.Node(ctx, s.pod.Spec.NodeName)
	switch {
	case apierrors.IsForbidden(err) || err == nil && node == nil:
		a.say("%s.", how)
	case err != nil:
		return err
	case labels.SelectorFromSet(want).Matches(labels.Set(node.Labels)):
		a.say("%s; node %s is one of them.", how, node.Name)
	default:
		a.say("%s; node %s is not one of them.", how, node.Name)
	}
	return nil
}

// sizing says how big the pod is, and why.
func (s *subject) sizing(ctx context.Context, a *Aspect) error {
	f := &podsize.Feature{Cluster: s.reader}
	d, err := f.Decide(ctx, feature.Request{Namespace: s.pod.Namespace, Pod: s.view})
	if err != nil {
		return err
	}
	label, sized := s.pod.Labels[stowage.SizedByLabel]
	if d.Pod == nil {
		switch {
		case sized:
			a.Changed, a.Summary = true, "sized by FlexDaemonsetTemplate "+label
			a.say("Its DaemonSet has no resource template any more; the next pods keep the size that they declare.")
		case s.owner == nil || s.owner.Kind != "DaemonSet":
			a.say("Only the pods of DaemonSets get a share of their node.")
		default:
			a.say("Neither DaemonSet %s nor its pod template has the annotation %s.", s.owner.Name, flexdaemonsets.TemplateAnnotation)
		}
		return nil
	}
	for _, w := range d.Warnings {
		a.say("%s.", w)
	}
	if !sized {
		if len(d.Sized) > 0 {
			a.say("%s", s.past(d.Summary))
		}
		return nil
	}
	a.Changed, a.Summary = true, "a share of its node, by FlexDaemonsetTemplate "+label

	// The arithmetic, as far as the template and the node still say it.
	name := s.pod.Annotations[flexdaemonsets.TemplateAnnotation]
	if len(s.roots) > 0 {
		name = sizing.TemplateName(name, s.roots[0].Annotations)
	}
	object, err := s.reader.Template(ctx, name)
	if err != nil || object == nil {
		return err // a warning above says so
	}
	t, err := sizing.Compile(object)
	if err != nil {
		return nil //nolint:nilerr // a warning above says so
	}
	var allocatable corev1.ResourceList
	if node, err := s.reader.Node(ctx, sizing.NodeOf(s.view)); err == nil && node != nil {
		allocatable = node.Status.Allocatable
	}
	for n := range t.Shares {
		share := &t.Shares[n]
		if text := share.Explain(allocatable); text != "" {
			has := "nothing"
			if q := sizing.Requested(s.view, share.Resource); q != nil {
				has = q.String()
			}
			if _, isPeerPod := s.pod.Labels[stowage.PeerPodLabel]; isPeerPod {
				a.say("%s: %s.", share.Resource, text)
			} else {
				a.say("%s: %s; the pod requests %s.", share.Resource, text, has)
			}
		}
	}
	for c := range s.view.AllContainers() {
		if slices.Contains(t.Excluded, c.Name) {
			a.say("Container %s keeps what it declares: the template excludes it.", c.Name)
		}
	}
	if t.Ceiling {
		a.say("It gets no more than its DaemonSet declares (ceiling: Template).")
	}
	for _, c := range s.pod.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) {
			a.say("%s", resizeText(&c))
		}
	}
	if !sizing.SameSize(s.view, d.Pod) {
		how := "new pods get that; this one keeps its size (updatePolicy: OnCreate)"
		if t.InPlace {
			how = "it is being resized, or could not be: see its events (updatePolicy: InPlace)"
		}
		a.say("Now it would be %s; %s.", d.Summary, how)
	}
	return nil
}

// resizeText says what a kubelet's condition means for the size of its pod.
func resizeText(c *corev1.PodCondition) string {
	text := "The kubelet is resizing the pod"
	switch {
	case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
		text = "The node cannot resize the pod (Infeasible)"
	case c.Type == corev1.PodResizePending:
		text = "The node has no room to resize the pod now (" + c.Reason + ")"
	case c.Reason == corev1.PodReasonError:
		text = "The kubelet tried to resize the pod and failed; it tries again"
	}
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text + "."
}

// peerPod says what the pod really consumes, and why.
func (s *subject) peerPod(_ context.Context, a *Aspect) error {
	class := s.view.Spec.RuntimeClassName
	account, err := s.PeerPods.Account(s.view)
	if err != nil {
		a.say("The annotation %s is not readable: %v.", stowage.OriginalResourcesAnnotation, err)
		return nil
	}
	switch {
	case account != nil:
	case s.PeerPods.Targets(class):
		a.say("%s", s.past("converted to a peer pod"))
		return nil
	case class == "":
		a.say("It has no RuntimeClass; the pods of %s run in VMs.", strings.Join(s.PeerPods.RuntimeClasses, ", "))
		return nil
	default:
		a.say("Its RuntimeClass is %s; the pods of %s run in VMs.", class, strings.Join(s.PeerPods.RuntimeClasses, ", "))
		return nil
	}
	a.Changed, a.Summary = true, fmt.Sprintf("one %s, for a VM outside the node", s.PeerPods.VMResource)
	for _, name := range slices.Sorted(maps.Keys(account.Entries)) {
		r, who := account.Entries[name], "Container "+name
		if name == "" {
			who = "The pod as a whole"
		}
		if r == nil || len(r.Requests)+len(r.Limits) == 0 {
			a.say("%s asked for nothing.", who)
			continue
		}
		a.say("%s asked for %s.", who, entriesText(r))
	}
	var size []string
	if account.Size.VCPUs > 0 {
		size = append(size, fmt.Sprintf("%s cpu is %d vCPU", account.CPU, account.Size.VCPUs))
	}
	if account.Size.MemoryMiB > 0 {
		size = append(size, fmt.Sprintf("%s of memory is %d MiB", account.Memory, account.Size.MemoryMiB))
	}
	if account.Size.GPUs > 0 {
		size = append(size, fmt.Sprintf("%d GPU", account.Size.GPUs))
	}
	if len(size) > 0 {
		a.say("Together, each with its limit or else its request, rounded up: %s.", strings.Join(size, ", "))
	}
	for _, key := range account.Kept {
		a.say("The annotation %s was there already, and stays %s.", key, s.pod.Annotations[key])
	}
	a.say("The entries were taken out, so that the scheduler counts one %s and not the node's cpu and memory.", s.PeerPods.VMResource)
	return nil
}

func entriesText(r *podpatch.Resources) string {
	var parts []string
	for _, list := range []struct {
		name string
		of   podpatch.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		var entries []string
		for _, name := range slices.Sorted(maps.Keys(list.of)) {
			entries = append(entries, fmt.Sprintf("%s %s", name, list.of[name]))
		}
		if len(entries) > 0 {
			parts = append(parts, list.name+" "+strings.Join(entries, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// ExplainFormats are the output formats of [Explanation.Print].
var ExplainFormats = []string{"text", "json", "yaml"}

// Print writes the explanation.
func (e *Explanation) Print(out io.Writer, format string) error {
	if format != "text" {
		return printObject(out, format, e)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Pod %s/%s", e.Namespace, e.Pod)
	if len(e.Owners) > 0 {
		fmt.Fprintf(&b, ", of %s", strings.Join(e.Owners, " of "))
	}
	if e.Node != "" {
		fmt.Fprintf(&b, ", on node %s", e.Node)
	}
	b.WriteString("\n")
	if e.LeftAlone != "" {
		fmt.Fprintf(&b, "Stowage changed nothing in it: %s\n", e.LeftAlone)
	}
	for _, a := range []struct {
		question string
		Aspect
	}{{"Where it goes", e.Spread}, {"How big it is", e.Sizing}, {"What it really consumes", e.PeerPods}} {
		fmt.Fprintf(&b, "\n%s: %s\n", a.question, a.Summary)
		for _, fact := range a.Facts {
			fmt.Fprintf(&b, "  %s\n", fact)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
