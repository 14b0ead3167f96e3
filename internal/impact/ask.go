package impact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// How many workloads the API server is asked about, and for how many pools of each. A pool takes one request, and two where it refuses the pod.
const (
	mostAsked      = 20
	mostAskedPools = 3
)

// asker has the API server admit pods in a dry run, as they would be with what Stowage adds, and without. It does so with the permissions of the caller,
// so that a policy which asks for the user may answer otherwise.
type asker struct {
	*Options
	live  *live
	nodes []corev1.Node
	asked int
	more  int // workloads that were not asked about
	// denied are the namespaces in which the caller may not create pods.
	denied map[string]bool
	// unclear are workloads whose pods are refused without what Stowage adds, too, or of which there was no answer.
	unclear []string
}

func (o *Options) asker(l *live, of *outlook) *asker {
	return &asker{Options: o, live: l, nodes: of.in.Objects.Nodes, denied: map[string]bool{}}
}

// Refused asks about the workloads as they are, and returns those whose next pods are refused because of what Stowage adds. The warnings say what is
// not known.
func (o *Options) Refused(ctx context.Context) (found []finding.Finding, warnings []string, _ error) {
	l, err := o.readCluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	of, _, err := o.look(ctx, l, l.in, nil)
	if err != nil {
		return nil, nil, err
	}
	a := o.asker(l, of)
	for _, k := range sortedKeys(of.of) {
		f, err := a.ask(ctx, k, of.of[k])
		if err != nil {
			return nil, nil, err
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	return found, a.warnings(), nil
}

// sortedKeys returns workloads in the order of their names.
func sortedKeys(of map[key]*decided) []key {
	return slices.SortedFunc(maps.Keys(of), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.Group, b.Group))
	})
}

// ask returns why the API server refuses pods of a workload because of what Stowage adds, or nil if it does not, or if that is not known.
func (a *asker) ask(ctx context.Context, k key, d *decided) (*finding.Finding, error) {
	shapes := d.shapes()
	switch {
	case a.DryRun == nil || len(shapes) == 0 || k.Kind == "Pod" || a.denied[k.namespace]:
		return nil, nil
	case a.asked == mostAsked:
		a.more++
		return nil, nil
	}
	a.asked++
	for _, with := range shapes {
		refused := a.dryRun(ctx, with)
		if refused == nil {
			continue
		}
		if mayNotCreate(refused) {
			a.denied[k.namespace] = true
			return nil, nil
		}
		accepted := a.dryRun(ctx, a.without(d))
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case accepted != nil || !refuses(refused):
			a.unclear = append(a.unclear, k.String()+": "+finding.Printable(bounded.Text(cmp.Or(accepted, refused).Error(), mostText)))
			return nil, nil
		}
		return a.refusalOf(k, d, refused), nil
	}
	return nil, nil
}

// ask notes why the API server refuses the pods of a workload, if it does.
func (p *plan) ask(ctx context.Context, a *asker) error {
	if p.is == nil {
		return nil
	}
	f, err := a.ask(ctx, keyOf(p.is.workload), p.is)
	if f != nil {
		p.Refused = f.String()
		p.because(f.Reason)
	}
	return err
}

// mostText is how many bytes a warning has of what the API server says.
const mostText = 512

// dryRun asks the API server to admit a pod. The pod's owner does not exist. So the webhook, which the API server calls for this pod as well, gives it no
// seat and removes nothing from it, and a policy against pods without an owner does not refuse it.
func (a *asker) dryRun(ctx context.Context, pod *corev1.Pod) error {
	sent := pod.DeepCopy()
	sent.Name, sent.GenerateName = "", cmp.Or(pod.GenerateName, "stowage-impact-")
	sent.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: "stowage-impact", UID: uuid.NewUUID(), Controller: new(true)}}
	return a.DryRun(ctx, sent)
}

// without returns a pod as its owner creates it. Its mode is Off where the webhook would otherwise change it into a peer pod.
func (a *asker) without(d *decided) *corev1.Pod {
	pod := d.workload.FirstPod(a.nodes)
	if a.Settings.PeerPods && !a.live.absent && a.Settings.PeerPodConfig.Targets(ptr.Deref(pod.Spec.RuntimeClassName, "")) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, stowage.ModeKey, string(stowage.ModeOff))
	}
	return pod
}

// shapes are pods of a workload with what Stowage adds: one of each pool, or one of those without a seat if it is a peer pod.
func (d *decided) shapes() (out []*corev1.Pod) {
	if d == nil || d.failed != nil || d.workload.Kind == "DaemonSet" {
		return nil
	}
	pools := map[int]bool{}
	for _, at := range slices.SortedFunc(maps.Keys(d.cells), func(a, b cell) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.domain, b.domain)) }) {
		if !pools[at.pool] && len(out) < mostAskedPools {
			pools[at.pool], out = true, append(out, d.cells[at].shape)
		}
	}
	if len(out) == 0 && d.vms > 0 {
		out = append(out, d.without.shape)
	}
	return out
}

// refusalOf says that pods of a workload are refused because of what Stowage adds. The dry run has shown that, whatever the text names.
func (a *asker) refusalOf(k key, d *decided, why error) *finding.Finding {
	f := &finding.Finding{Reason: finding.PodsRefused, Namespace: k.namespace, Kind: k.Kind, Name: k.name}
	var added refusal.Added
	if laidOut(d.policy) {
		f.Values = d.policy.Values()
		added = d.policy.Adds()
	}
	if a.Settings.PeerPods {
		added = slices.Concat(added, a.Settings.PeerPodConfig.Adds(ptr.Deref(d.workload.Template().Spec.RuntimeClassName, "")))
	}
	f.Refused(why.Error(), k.name, added)
	f.Proven(added)
	return f
}

// mayNotCreate reports whether the caller lacks the right to create pods. Admission comes after that, and names the pod.
func mayNotCreate(err error) bool {
	return apierrors.IsForbidden(err) && strings.HasPrefix(err.Error(), `pods is forbidden: User "`)
}

// refuses reports whether an error is a refusal, and not that of a server or a connection.
func refuses(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests && code != http.StatusNotFound
}

// warnings say what is not known.
func (a *asker) warnings() (out []string) {
	const what = "whether the API server refuses pods because of what Stowage adds"
	if len(a.denied) > 0 {
		names := slices.Sorted(maps.Keys(a.denied))
		more := ""
		if n := len(names); n > mostAskedPools {
			names, more = names[:mostAskedPools], fmt.Sprintf(" and %d others", n-mostAskedPools)
		}
		out = append(out, fmt.Sprintf("%s was not asked in namespace %s%s, because you may not create pods there", what, strings.Join(names, ", "), more))
	}
	if a.more > 0 {
		out = append(out, fmt.Sprintf("%s was asked of %d workloads, the first by name, and not of %d others; -n asks of those of one namespace", what, a.asked, a.more))
	}
	if n := len(a.unclear); n > 0 {
		out = append(out, fmt.Sprintf("%s is not known of %s, because it refuses them without that, too, or did not answer, such as %s", what, plural(n, "workload"), a.unclear[0]))
	}
	return out
}
