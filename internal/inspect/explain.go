package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Explanation says why a pod looks the way it does.
type Explanation struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Node      string   `json:"node,omitempty"`
	Owners    []string `json:"owners,omitempty"` // from the pod upwards
	// LeftAlone is the reason why nothing was changed, if nothing was.
	LeftAlone string `json:"leftAlone,omitempty"`
	// Pending is why the pod has no node, and Action what to do about that.
	Pending  string `json:"pending,omitempty"`
	Action   string `json:"action,omitempty"`
	Spread   Aspect `json:"spread"`
	Sizing   Aspect `json:"sizing"`
	PeerPods Aspect `json:"peerPods"`
	// ScaleDown is when a scale-down removes the pod; nil if no policy of scale-downs selects it.
	ScaleDown *Aspect `json:"scaleDown,omitempty"`
}

// Aspect is one of the three questions about a pod.
type Aspect struct {
	// Changed says that Stowage changed something in this pod.
	Changed bool `json:"changed"`
	// Summary is what it is, or "left alone".
	Summary string `json:"summary"`
	// Facts are sentences: why it is so.
	Facts []string `json:"facts"`
	// Reason is the one of them for which this aspect of the pod was left alone though there is a policy for it, if
	// so.
	Reason string `json:"reason,omitempty"`
	// Data is what the sentences say, for programs; nil where the feature is off.
	Data facts `json:"data,omitempty"`
}

// facts are what is known of one aspect of a pod. Any of them may be absent.
type facts interface {
	// describe writes the sentences that the facts make.
	describe(*Aspect)
}

// bypass is why a pod that a policy concerns is as it was written. LeftAlone is what keeps the webhook from such a pod now. If
// nothing does, the pod was created before its policy, or it bypassed the webhook.
type bypass struct {
	Bypassed  bool   `json:"bypassed,omitempty"`
	LeftAlone string `json:"leftAlone,omitempty"`
}

// subject is a pod that is explained.
type subject struct {
	*Inspector
	reader worldapi.Live
	pod    *corev1.Pod
	view   *podpatch.Pod
	owner  *podpatch.Owner // nil if it has none
	chain  []world.Ref     // the owner, what made it, and so on
	roots  []*world.Workload
	// unseen is why the webhook would not see the pod now, if it would not.
	unseen string
	policy *policy.Policy // nil if it has none
	nodes  nodeLabels     // nil where they are not needed or may not be read
}

// Explain explains a pod. It returns the API server's error if there is no such pod.
func (i *Inspector) Explain(ctx context.Context, namespace, name string) (*Explanation, error) {
	// 1. The pod, and what made it.
	s, err := i.subject(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Namespace: namespace, Pod: name, Node: s.pod.Spec.NodeName}
	for _, o := range s.chain {
		e.Owners = append(e.Owners, objectName{o.Kind, o.Name}.String())
	}

	// 2. May Stowage look at it at all?
	if s.unseen, err = s.notSeen(ctx); err != nil {
		return nil, err
	}

	// 3. The three questions.
	spread, size, vm := &spreadFacts{}, &sizeFacts{}, &vmFacts{}
	for _, part := range []struct {
		what   string
		on     bool
		aspect *Aspect
		facts  facts
		err    func() error
	}{
		{"the spread", i.Spread, &e.Spread, spread, func() error { return s.spread(ctx, spread) }},
		{"the size", i.Sizing, &e.Sizing, size, func() error { return s.sizing(ctx, size) }},
		{"the VM", i.VMs, &e.PeerPods, vm, func() error { s.peerPod(ctx, vm); return nil }},
	} {
		part.aspect.Summary = leftAlone
		if !part.on {
			part.aspect.say("This feature is off.")
			continue
		}
		err := part.err()
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
		part.aspect.Data = part.facts
		part.facts.describe(part.aspect)
		if err != nil {
			part.aspect.say("The rest cannot be told: %v.", err)
		}
	}
	e.LeftAlone = e.whyLeftAlone(s.unseen)
	down, err := s.scaleDown(ctx)
	if down != nil {
		e.ScaleDown = &Aspect{Data: down}
		down.describe(e.ScaleDown)
	}
	if readable(err) != nil {
		return nil, fmt.Errorf("the scale-downs: %w", err)
	}

	// 4. Does it wait for a node?
	if why, waits := podstatus.Unschedulable(s.pod); waits {
		e.Pending, e.Action = why, "make room on a node that it may use, or change what it asks for"
		cells := i.newCells()
		if s.policy == nil && ofPolicy(s.pod) {
			cells.hiddenPolicies = apierrors.IsForbidden(i.Client.List(ctx, &stowage.ClusterSpreadPolicyList{}, client.Limit(1)))
		}
		if reason, values := cells.waitsFor(ctx, s.pod, s.policy, s.nodes); reason != "" {
			f := finding.Finding{Reason: reason, Namespace: namespace, Values: values}
			if s.owner != nil {
				f.Kind, f.Name = s.owner.Kind, s.owner.Name
			}
			e.Pending, e.Action = f.Sentence()+": "+why, f.Remedy()
		}
	} else if reason, values := i.unscheduled(s.pod); reason != "" {
		f := finding.Finding{Reason: reason, Namespace: namespace, Values: values}
		e.Pending, e.Action = f.Sentence(), f.Remedy()
	}
	return e, nil
}

// subject reads a pod, and what made it.
func (i *Inspector) subject(ctx context.Context, namespace, name string) (*subject, error) {
	s := &subject{Inspector: i, reader: i.live(), pod: &corev1.Pod{}}
	if err := i.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s.pod); err != nil {
		return nil, forbidden(fmt.Sprintf("pod %s in namespace %s", name, namespace), err)
	}
	s.view = podpatch.FromPod(s.pod)
	if s.owner = s.view.Controller(); s.owner != nil {
		chain, err := world.Owners(ctx, s.reader, namespace, world.Ref{APIVersion: s.owner.APIVersion, Kind: s.owner.Kind, Name: s.owner.Name, UID: types.UID(s.owner.UID)})
		if err != nil {
			return nil, forbidden("what made the pod", err)
		}
		s.chain, s.roots = chain.Refs, chain.Workloads
	}
	return s, nil
}

// whyLeftAlone is why nothing was changed, if nothing was: the webhook would not see the pod, or an aspect has a reason, or a fact.
func (e *Explanation) whyLeftAlone(unseen string) string {
	why, fact := unseen, ""
	for _, a := range []*Aspect{&e.Spread, &e.Sizing, &e.PeerPods} {
		if a.Changed {
			return ""
		}
		why = cmp.Or(why, a.Reason)
		if len(a.Facts) > 0 {
			fact = cmp.Or(fact, a.Facts[0])
		}
	}
	return cmp.Or(why, fact)
}

// notSeen returns why the webhook would not see such a pod now, or would do nothing, if so.
func (s *subject) notSeen(ctx context.Context) (string, error) {
	answer, err := scope.New(s.reader, s.Namespace).Of(ctx, s.pod.Namespace, s.view)
	if err == nil && answer.Mode == stowage.ModeAudit {
		return answer.Text() + ": what would be done is said, and nothing is done", nil
	}
	if answer.LeftAlone != "" {
		return answer.LeftAlone, nil
	}
	return s.notCalled(ctx)
}

// notCalled returns why the API server does not ask Stowage about such a pod, if it does not.
func (s *subject) notCalled(ctx context.Context) (string, error) {
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	err := s.Client.Get(ctx, client.ObjectKey{Name: s.Registration}, &reg)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("there is no MutatingWebhookConfiguration %q, so the API server does not ask Stowage", s.Registration), nil
	case err != nil:
		return "", readable(err)
	}
	ns, err := s.reader.Namespace(ctx, s.pod.Namespace)
	if err != nil || ns == nil {
		return "", readable(err)
	}
	registration := selection.Compile(&reg)
	if !registration.SentByLabels(ns.Labels, s.pod.Labels) {
		return fmt.Sprintf("the selectors of MutatingWebhookConfiguration %q leave this namespace or pod out", s.Registration), nil
	}
	created := s.pod.DeepCopy()
	created.Spec.NodeName = s.templateNode()
	switch sent, err := registration.Sent(ns.Labels, created); sent {
	case selection.No:
		return fmt.Sprintf("a matchCondition of MutatingWebhookConfiguration %q leaves this pod out", s.Registration), nil
	case selection.Unknown:
		return fmt.Sprintf("whether MutatingWebhookConfiguration %q selects this pod is not known: %v", s.Registration, err), nil
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

// bypass returns why the pod is as it was written though there is a policy for it, as far as that can be known.
func (s *subject) bypass() bypass { return bypass{Bypassed: s.unseen == "", LeftAlone: s.unseen} }

// ExplainFormats are the output formats of [Explanation.Print].
var ExplainFormats = []string{"text", "json", "yaml"}

// Print writes the explanation.
func (e *Explanation) Print(out io.Writer, format string) error { return printAs(out, format, e) }

// printAs writes what has a text for people, in one of [ExplainFormats].
func printAs(out io.Writer, format string, e interface{ text() string }) error {
	if format != "text" {
		return report.Object(out, format, e)
	}
	_, err := io.WriteString(out, e.text())
	return err
}
