package impact

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
)

// readPods reads the pods of all namespaces, because they take room of the same nodes. Where the user may not, it reads those of the
// report's namespace.
func (r *reader) readPods() error {
	unknown := map[world.Object][]*pod{}
	use := func(p *corev1.Pod) { r.readPod(p, unknown) }
	err := each(r.ctx, r.Options, &corev1.PodList{}, use)
	if apierrors.IsForbidden(err) && r.Namespace != "" {
		r.hidden = append(r.hidden, "the pods of other namespaces (so the room on nodes is not known)")
		r.others, r.noRoom = nil, true
		clear(r.pods) // the first pages of the list may have come
		clear(unknown)
		err = each(r.ctx, r.Options, &corev1.PodList{}, use, client.InNamespace(r.Namespace))
	}
	if err != nil {
		return err
	}
	return r.readOwners(unknown)
}

// readPod gives a pod to its workload. A pod of an unknown workload is added to unknown, by its owner.
func (r *reader) readPod(p *corev1.Pod, unknown map[world.Object][]*pod) {
	if podstatus.Ended(p) {
		return
	}
	kept := r.slim(p)
	c := metav1.GetControllerOfNoCopy(p)
	if c == nil || r.Namespace != "" && p.Namespace != r.Namespace || !podstatus.Active(p) {
		r.others = append(r.others, kept)
		return
	}
	ref := *c
	for range world.MaxDepth {
		above, ok := r.roots[ref.UID]
		if _, here := r.known[ref.UID]; here || !ok {
			break
		}
		ref = above
	}
	if owner := (world.Object{Namespace: p.Namespace, Ref: world.RefOf(&ref)}); !r.give(owner, kept) {
		unknown[owner] = append(unknown[owner], kept)
	}
}

// give gives pods to the workload that made them, and reports whether it is known. A tenant chooses the owners of his pods, so that the
// workload must be in their namespace.
func (r *reader) give(owner world.Object, pods ...*pod) bool {
	k, ok := r.known[owner.UID]
	if ok = ok && k.namespace == owner.Namespace; ok {
		r.pods[k] = append(r.pods[k], pods...)
	}
	return ok
}

// readOwners reads what made pods, of kinds that were not listed. It names what it leaves out.
func (r *reader) readOwners(unknown map[world.Object][]*pod) error {
	reads, left := 0, map[string]int{}
	for _, owner := range slices.SortedFunc(maps.Keys(unknown), func(a, b world.Object) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		pods := unknown[owner]
		gvk, ok := owner.GroupVersionKind()
		if known := ok && preview.Knows(gvk); !known || reads == mostOwners {
			if !known && gvk.Kind != "Node" {
				left[owner.Kind] += len(pods)
			}
			r.others = append(r.others, pods...)
			continue
		}
		reads++
		if err := r.readOwner(owner, gvk, pods); err != nil {
			return err
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(left)) {
		r.hidden = append(r.hidden, fmt.Sprintf("what becomes of the pods of a %s (%d)", kind, left[kind]))
	}
	if reads == mostOwners {
		r.hidden = append(r.hidden, fmt.Sprintf("all but %d of the objects of other kinds that made pods", mostOwners))
	}
	return nil
}

// mostOwners is how many objects of kinds that are not listed are read, each by a request. A tenant may create pods with any owners.
const mostOwners = 200

// readOwner reads what made some pods: an object of a kind that was not listed.
func (r *reader) readOwner(owner world.Object, gvk schema.GroupVersionKind, pods []*pod) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := r.Client.Get(r.ctx, client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name}, u)
	switch {
	case apierrors.IsForbidden(err):
		r.hidden = append(r.hidden, fmt.Sprintf("%s %s/%s", owner.Kind, owner.Namespace, owner.Name))
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
	case err != nil:
		return fmt.Errorf("read %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	case u.GetUID() == owner.UID:
		r.add(u, gvk)
	}
	if !r.give(owner, pods...) {
		r.others = append(r.others, pods...)
	}
	return nil
}

// slim keeps of a pod what a report needs.
func (r *reader) slim(p *corev1.Pod) *pod {
	out := &pod{
		Pod: observed.Unverified(p, ""), ordinal: ordinalOf(p.Name), vms: peerpod.VMsOf(p, r.Settings.PeerPodConfig.VMResource),
		requests: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true}),
	}
	if out.Ordinal > 0 {
		out.pool = p.Labels[stowage.PoolLabel]
	}
	out.volume = len(podstatus.VolumeClaims(&p.Spec)) > 0
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		out.daemon = c.Kind == "DaemonSet" || c.Kind == "Node"
	}
	if out.vms > 0 && p.Spec.RuntimeClassName != nil {
		out.class, out.machine = *p.Spec.RuntimeClassName, p.Annotations[stowage.MachineTypeAnnotation]
	}
	if out.pool == "" {
		out.chooses = slices.Sorted(maps.Keys(p.Spec.NodeSelector))
	}
	return out
}
