package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
)

// cells lists the nodes of pools, or of domains of them, once each. Few pods wait, so that few nodes are read whole.
type cells struct {
	*Inspector
	by     map[string][]corev1.Node
	states map[string]string // of nodes, by their name
	// hiddenPolicies says that there may be policies which may not be read.
	hiddenPolicies bool
	owners         map[types.UID]*podOwner // nil where only one pod is looked at
	created        map[types.UID]corev1.PodTemplateSpec
	pods           []*corev1.Pod // of all nodes; nil where they are not known
}

func (i *Inspector) newCells() *cells {
	return &cells{Inspector: i, by: map[string][]corev1.Node{}, states: map[string]string{}}
}

// nodes returns the nodes of a set, and false where they may not be read.
func (c *cells) nodes(ctx context.Context, selected nodeset.Set) ([]corev1.Node, bool) {
	key := selected.String()
	nodes, known := c.by[key]
	if !known {
		nodes = []corev1.Node{}
		err := each(ctx, c.Inspector, &corev1.NodeList{}, func(n *corev1.Node) {
			kept := corev1.Node{}
			kept.Name, kept.Labels, kept.CreationTimestamp, kept.Spec = n.Name, n.Labels, n.CreationTimestamp, n.Spec
			kept.Annotations = world.Pick(n.Annotations, stowage.PeerPodsLimitAnnotation)
			kept.Status.Allocatable, kept.Status.Capacity, kept.Status.Conditions = n.Status.Allocatable, n.Status.Capacity, n.Status.Conditions
			nodes = append(nodes, kept)
		}, client.MatchingLabelsSelector{Selector: selected.Selector()})
		if err != nil {
			nodes = nil
		}
		c.by[key] = nodes
	}
	return nodes, nodes != nil
}

// with returns a [nodefit.Lister]. A cell grows where Karpenter made one of its nodes, and has no nodes where they may not be read.
func (c *cells) with(ctx context.Context) nodefit.Lister {
	return func(selected nodeset.Set) nodefit.Cell {
		nodes, _ := c.nodes(ctx, selected)
		return nodefit.Cell{Set: selected, Nodes: nodes, Growing: karpenter.Made(nodes), Now: c.Clock.Now()}
	}
}

// waitsFor returns what a pod waits for, if its policy or what Stowage made of it is the reason. The policy may be nil, and so may the nodes.
func (c *cells) waitsFor(ctx context.Context, pod *corev1.Pod, p *policy.Policy, nodes nodeLabels) (finding.Reason, finding.Values) {
	volumes, reason, values := c.volumesOf(ctx, pod, p, nodes)
	switch {
	case reason != "":
		return reason, values
	case p != nil && p.Layout != nil && !nodes.fit(pod):
		v := misfitOf(pod, p, nodes)
		v.Missing, v.Fix = c.addedLater(pod)
		return finding.FitsNoNode, v
	case c.vmsOf(pod) > 0 && !nodes.fit(pod):
		return finding.FitsNoNode, finding.Values{VM: true, Other: runtimeClass(pod)}
	case c.vmsOf(pod) > 0:
		return finding.NoFreeVM, finding.Values{Other: c.limitConfigMap(), Objects: c.ownLimits(ctx, pod)}
	case pod.Labels[stowage.SizedByLabel] != "" && ofDaemonSet(pod) && c.roomOnNode(ctx, pod):
		return finding.NodeRefuses, finding.Values{Other: daemonNode(pod)}
	case pod.Labels[stowage.SizedByLabel] != "" && ofDaemonSet(pod):
		return finding.NoRoomForSize, finding.Values{Other: pod.Labels[stowage.SizedByLabel]}
	case pod.Labels[stowage.SeatLabel] == "" || !proven(pod): // anybody may write the label
		return c.withoutSeat(pod, p)
	case p != nil:
		return c.inPool(ctx, pod, p, volumes)
	case c.Spread && !adopted(pod) && (!c.hiddenPolicies || !ofPolicy(pod)):
		return finding.SourceGone, finding.Values{Pool: pod.Labels[stowage.PoolLabel], Recreates: successor.Never(pod) == ""}
	}
	return "", finding.Values{}
}

// withoutSeat returns why a waiting pod has no seat, if it gets none until that changes. The problem of its workload tells the other reasons.
func (c *cells) withoutSeat(pod *corev1.Pod, p *policy.Policy) (finding.Reason, finding.Values) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if p == nil || p.Layout == nil || owner == nil || c.owners[owner.UID] == nil {
		return "", finding.Values{}
	}
	m, v := c.owners[owner.UID], finding.Values{}
	switch {
	case m.why.leftAlone:
		return "", v
	case m.why.choosesBy != "":
		v.Text = "the pod template chooses its nodes itself, by " + m.why.choosesBy + ", so the strategy does not divide these pods, and none of those nodes takes them"
		v.Fix = "make room on those nodes, add some, or remove that from the pod template, so that the strategy divides the pods"
	case p.Nowhere():
		return "", v
	case m.why.beyond || foundFull(pod):
		v.Text = "every pool has its maximum, so these pods have no seat, and no node takes them"
		v.Fix = "raise maxReplicas of a pool, add nodes, or ask for fewer pods"
	case slices.ContainsFunc(m.why.outOfReach, func(other *corev1.Pod) bool { return other.UID == pod.UID }):
		v.Text = "no node of a pool reaches the volumes of these pods, so they have no seat, and no node that does takes them"
		v.Fix = "make room on the nodes that reach the volumes, or add one to a pool; or, if what the volumes hold may be lost, delete the claims, and then the pods"
	default:
		return "", v
	}
	return finding.WaitsWithoutSeat, v
}

// foundFull reports whether a pod has no seat because every pool had its maximum when it was created.
func foundFull(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Annotations[stowage.ClaimAnnotation], string(ledger.OriginFull))
}

// volumesOf returns what is known of the volumes of a pod that a policy divides or that has a size: see [cells.claims].
func (c *cells) volumesOf(ctx context.Context, pod *corev1.Pod, p *policy.Policy, nodes nodeLabels) (nodefit.Volumes, finding.Reason, finding.Values) {
	if p == nil && !proven(pod) && pod.Labels[stowage.SizedByLabel] == "" {
		return nodefit.Volumes{Unknown: len(podstatus.VolumeClaims(&pod.Spec)) > 0}, "", finding.Values{}
	}
	return c.claims(ctx, pod, nodes)
}

// ownLimits names nodes that a peer pod selects and that have a limit of their own, which wins over that of the ConfigMap.
func (c *cells) ownLimits(ctx context.Context, pod *corev1.Pod) string {
	nodes, _ := c.nodes(ctx, nodeset.Set{Labels: pod.Spec.NodeSelector})
	var names []string
	for i := range nodes {
		if _, own := nodes[i].Annotations[stowage.PeerPodsLimitAnnotation]; own && len(names) < mostNamed {
			names = append(names, nodes[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// mostNamed is how many nodes a sentence names.
const mostNamed = 3

// ofDaemonSet reports whether a DaemonSet controls a pod.
func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// inPool returns why a pod with a seat waits, where nodes of its pool are as it selects them.
func (c *cells) inPool(ctx context.Context, pod *corev1.Pod, p *policy.Policy, volumes nodefit.Volumes) (finding.Reason, finding.Values) {
	v := finding.Values{Pool: pod.Labels[stowage.PoolLabel]}
	if p == nil || p.Layout == nil {
		return finding.NoRoomInPool, v
	}
	n, known := p.PoolKeyed(poolOf(pod))
	if !known {
		return finding.NoRoomInPool, v
	}
	v = p.Values()
	domain, has := p.DomainNamed(pod.Labels[stowage.DomainLabel])
	if !has || p.Domains() == nil {
		domain = -1
	}
	v.Pool = p.Pool(n).Name
	selected := p.Nodes(n, domain)
	if nodes, readable := c.nodes(ctx, selected); readable && len(nodes) > 0 {
		if reason := judged(pod, volumes, &nodefit.Cell{Set: selected, Nodes: nodes}, &v); reason != "" {
			return reason, v
		}
	}
	if v.Text, v.Fix = unmet(pod, p); v.Text != "" {
		return finding.ConstraintUnmet, v
	}
	c.spills(pod, p, n, &v)
	return finding.NoRoomInPool, v
}

// unmet returns which constraint of a pod contradicts the division, so that no room helps, and how to correct it.
func unmet(pod *corev1.Pod, p *policy.Policy) (text, fix string) {
	const leave = ", or leave the workload to the constraint: remove its strategy, or exclude it from the policy"
	if texts := placement.UnmetConstraints(podpatch.FromPod(pod), p.Whole()); len(texts) > 0 {
		return texts[0], "set nodeAffinityPolicy to Honor, which is the default, or whenUnsatisfiable to ScheduleAnyway" + leave
	}
	if text, certain := placement.UnmetAffinity(podpatch.FromPod(pod), p.Whole()); certain {
		return text, "make the affinity preferred" + leave
	}
	return "", ""
}

// judged returns what keeps a pod from the nodes of a cell, other than a lack of room, and fills in the values. It returns nothing where room is the
// matter. A node that has just come counts as it is.
func judged(pod *corev1.Pod, volumes nodefit.Volumes, cell *nodefit.Cell, v *finding.Values) finding.Reason {
	answer := nodefit.Judge(pod, volumes, cell)
	if answer.Verdict == nodefit.Never {
		v.Text, v.Filter = answer.Why, answer.Filter
		if answer.Filter == nodefit.BySize {
			v.Text = sizes(pod, cell.Nodes)
		}
		return finding.PoolNotForPods
	}
	closed, taint := map[nodefit.Closed]int{}, ""
	for i := range cell.Nodes {
		why, by := nodefit.ClosedTo(pod, &cell.Nodes[i])
		closed[why]++
		if why == nodefit.Tainted {
			taint = cmp.Or(taint, by.ToString())
		}
	}
	switch {
	case closed[nodefit.Cordoned] == len(cell.Nodes):
		v.Count = int64(len(cell.Nodes))
		return finding.NodesCordoned
	case closed[nodefit.Open] == 0:
		v.Text = closedText(closed, taint)
		return finding.NodesClosed
	case answer.Verdict == nodefit.Unknown:
		v.Text = answer.Why
		return finding.SchedulerDecides
	}
	return ""
}

// closedText says how many nodes take no new pods for each reason. The taint is one that the pods do not tolerate.
func closedText(closed map[nodefit.Closed]int, taint string) string {
	var parts []string
	for _, of := range []struct {
		why  nodefit.Closed
		text string
	}{
		{nodefit.Cordoned, "cordoned"}, {nodefit.NotReady, "not ready"}, {nodefit.Tainted, "with a taint that the pods do not tolerate, such as " + taint},
		{nodefit.NotSelected, "that the pods do not select"},
	} {
		if n := closed[of.why]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, of.text))
		}
	}
	return strings.Join(parts, ", ")
}

// spills fills in when other pools take a pod that waits for a pool, or why they do not.
func (c *cells) spills(pod *corev1.Pod, p *policy.Policy, pool int, v *finding.Values) {
	if p.Spill == nil || p.Spill[pool].After == 0 {
		return
	}
	switch {
	case len(podstatus.VolumeClaims(&pod.Spec)) > 0:
		v.Objects = "pods with a PersistentVolumeClaim that is bound stay"
	default:
		v.Objects = cmp.Or(successor.Never(pod), c.untaken(pod, p, pool))
	}
	since := podstatus.UnschedulableSince(pod)
	switch at := since.Add(p.Spill[pool].After); {
	case v.Objects != "" || since.IsZero():
	case at.After(c.Clock.Now()):
		v.At = at.UTC().Format(time.TimeOnly)
	default:
		v.Several = true
	}
}

// untaken says why no other pool takes the pods that wait for a pool, were it exhausted now. It is empty where others do, and where the other pods of
// the workload are not known.
func (c *cells) untaken(pod *corev1.Pod, p *policy.Policy, pool int) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || c.owners[owner.UID] == nil {
		return ""
	}
	m, placed := c.owners[owner.UID], int64(0)
	for _, other := range m.pods {
		if n, known := p.PoolKeyed(poolOf(other)); known && n == pool && other.Spec.NodeName != "" {
			placed++
		}
	}
	n := max(m.asked, int64(len(m.pods)))
	gaps, _ := division.Gaps(p.Layout, p.State, p.Spill)
	if gaps[pool].Count == 0 {
		gaps[pool] = sequence.Gap{From: placed, Count: cmp.Or(p.Spill[pool].LeftOut(p.Whole(), pool, placed, n), sequence.All)}
	}
	return division.Untaken(p.Layout, gaps, n)
}

// sizes says of which resource a pod asks for more than each node has, and how much both are.
func sizes(pod *corev1.Pod, nodes []corev1.Node) string {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range slices.Sorted(func(yield func(corev1.ResourceName) bool) {
		for name := range requests {
			if !yield(name) {
				return
			}
		}
	}) {
		asked, most := requests[name], resource.Quantity{}
		for i := range nodes {
			if has := nodes[i].Status.Allocatable[name]; has.Cmp(most) > 0 {
				most = has
			}
		}
		if asked.Cmp(most) > 0 {
			return fmt.Sprintf("each pod requests %s of %s, and the largest node there has %s allocatable", asked.String(), name, most.String())
		}
	}
	return "the pods are too large for each node there"
}

// formerPins returns the node labels that a pod with a seat asks for, if its pool has other labels since the strategy was edited. Otherwise it is empty.
func formerPins(pod *corev1.Pod, p *policy.Policy) string {
	pins := nodeset.PinsOf(&pod.Spec)
	if !proven(pod) || pins == nil {
		return ""
	}
	if n, seated := p.PoolKeyed(poolOf(pod)); seated && pins.AskFor(p.Nodes(n, -1)) {
		return ""
	}
	var texts []string
	for i := range pins.Terms {
		texts = append(texts, nodeset.Set{Expressions: pins.Terms[i].MatchExpressions}.String())
	}
	if len(pins.Selector) > 0 {
		texts = append(texts, nodeset.Set{Labels: pins.Selector}.String())
	}
	return strings.Join(texts, " and ")
}

// misfitOf returns why no node is as a pod of a policy asks.
func misfitOf(pod *corev1.Pod, p *policy.Policy, nodes nodeLabels) finding.Values {
	if former := formerPins(pod, p); former != "" {
		return finding.Values{Pool: pod.Labels[stowage.PoolLabel], Objects: former}
	}
	n, seated := p.PoolKeyed(poolOf(pod))
	if !seated {
		return finding.Values{} // the pod template chooses nodes itself
	}
	name, selected := p.Pool(n).Name, p.Nodes(n, -1)
	if domain, has := p.DomainNamed(pod.Labels[stowage.DomainLabel]); has && p.Domains() != nil && nodes.have(selected) {
		name, selected = name+" in domain "+pod.Labels[stowage.DomainLabel], p.Nodes(n, domain)
	}
	if nodes.have(selected) {
		return finding.Values{Pool: name}
	}
	return finding.Values{Pool: name, Labels: selected.String(), Source: p.Source}
}
