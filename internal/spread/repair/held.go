package repair

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list,roleName=stowage-spread-controllers

// mostTries is how many pods of a workload
// one look tries to evict: each costs a read of the pod, its claims and their volumes. heldFor is how long a pod counts as held by
// its volume before its volume is read again.
const (
	mostTries = 10
	heldFor   = 10 * time.Minute
)

// heldPod is a pod that is in the wrong place and stays there.
type heldPod struct{ name, why string }

// volumeHold is that a pod's volume holds it, for a strategy and for a time.
type volumeHold struct {
	why      string
	strategy sequence.Fingerprint
	until    time.Time
}

// protection says which annotation holds a pod, or "".
func protection(pod *corev1.Pod) string {
	if a := podstatus.Protected(pod); a != "" {
		return "the annotation " + a + " protects it"
	}
	return ""
}

// heldByVolume returns why a look of the last minutes found that a pod's volume holds it, or "".
func (r *run) heldByVolume(owner ledger.OwnerKey, pod types.UID, p *policy.Policy) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner]
	if h == nil {
		return ""
	}
	if hold := h.volumes[pod]; hold.strategy == p.Fingerprint() && r.Clock.Now().Before(hold.until) {
		return hold.why
	}
	return ""
}

// holdByVolume notes that a pod's volume holds it.
func (r *run) holdByVolume(owner ledger.OwnerKey, pod types.UID, p *policy.Policy, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, now := r.historyOf(owner), r.Clock.Now()
	maps.DeleteFunc(h.volumes, func(_ types.UID, hold volumeHold) bool { return !now.Before(hold.until) })
	if h.volumes == nil {
		h.volumes = map[types.UID]volumeHold{}
	}
	h.volumes[pod] = volumeHold{why, p.Fingerprint(), now.Add(heldFor)}
}

// volumeLook finds the pods of one look whose volumes are elsewhere: see [layout.Elsewhere]. It asks what the watches of volumes and nodes show.
type volumeLook struct {
	*run
	policy *policy.Policy
	left   int // pods that it still looks at: each costs as much as there are cells and nodes
	nodes  *poolroom.Look
	// held are the pods with an ordinal of their own that their volumes hold where they run.
	held map[int64]sequence.Cell
}

// mostElsewhere is how many pods without a seat one look asks about their volumes.
const mostElsewhere = 100

func (r *run) newVolumeLook(ctx context.Context, p *policy.Policy) *volumeLook {
	return &volumeLook{run: r, policy: p, left: mostElsewhere, nodes: r.Room.NewLook(ctx), held: map[int64]sequence.Cell{}}
}

// look fills in whether a pod that has no seat stays where it runs because of its volumes, or would get none again.
func (l *volumeLook) look(ctx context.Context, pod *corev1.Pod, view *planner.Pod) error {
	p := l.policy
	if !view.Volume || p.Preferred {
		return nil
	}
	there := view.NodePool >= 0 // and is adopted
	own, err := p.OfOrdinal(view.OwnRank)
	if view.OwnRank > 0 && view.Running {
		there = err != nil || view.NodePool == own.Pool
		view.Held = cmp.Or(view.Held, "its volume may keep it there")
	}
	if there || !view.Ours || l.left == 0 {
		return nil
	}
	l.left--
	reach, err := l.Policies.Reached(ctx, p, policy.BoundPod(pod), l.nodes.With)
	if reach == nil || err != nil || l.nodes.Err != nil {
		return l.nodes.Err // what is not known of volumes changes nothing
	}
	reached := reach.Cells()
	_, _, some := reach.OfOrdinal(p, view.OwnRank)
	switch at := (sequence.Cell{Pool: view.NodePool, Domain: view.NodeDomain}); {
	case view.OwnRank == 0:
		some = !reach.Nowhere()
	case view.NodePool >= 0 && reach.Volumes[at.Pool][at.Domain] && !reached[own.Pool][p.DomainOf(own)]:
		l.held[view.OwnRank] = at
	}
	if view.VolumeElsewhere = !some; view.VolumeElsewhere {
		view.Held = cmp.Or(view.Held, "no pool has a node that reaches its volume")
	}
	return nil
}

// noteHeld notes which pods are in the wrong place and stay there, for the status. It says so once for each pod.
func (r *run) noteHeld(owner ledger.Owner, state *planner.State, pods []corev1.Pod, plan *planner.Plan) {
	now := map[types.UID]heldPod{}
	for i := range state.Pods {
		if pod := &state.Pods[i]; pod.Held != "" && !state.Keep && (pod.VolumeElsewhere || state.Misplaced(plan, pod)) {
			now[pods[i].UID] = heldPod{pod.Name, pod.Held}
		}
	}
	r.mu.Lock()
	h := r.history[owner.Key()]
	if h == nil && len(now) > 0 {
		h = r.historyOf(owner.Key())
	}
	if h != nil {
		h.elsewhere = plan.Elsewhere
	}
	var unsaid []heldPod
	if h != nil {
		for uid, pod := range now {
			if h.held[uid] != pod {
				unsaid = append(unsaid, pod)
			}
		}
		if h.owner = owner; len(h.held) == 0 {
			h.heldSince = r.Time.Now()
		}
		h.held = now
	}
	r.mu.Unlock()
	if len(unsaid) > 0 {
		r.warn(owner, stowage.EventPodHeld, "%s", sayHeld(unsaid))
	}
}

// sayHeld says that pods stay where they run. There is at least one.
func sayHeld(pods []heldPod) string {
	first := slices.MinFunc(pods, func(a, b heldPod) int { return cmp.Compare(a.name, b.name) })
	return fmt.Sprintf("%d pod(s) that should be elsewhere stay where they run, such as %s: %s", len(pods), first.name, first.why)
}

// Held says which pods of an owner stay in the wrong place, and why. It is empty if none does.
func (c *Controller) Held(owner ledger.OwnerKey) string {
	r := c.term.Load()
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[owner]
	if h == nil || len(h.held) == 0 {
		return ""
	}
	return sayHeld(slices.Collect(maps.Values(h.held)))
}

// Elsewhere implements [status.Progress]. Nothing is known outside of a term.
func (c *Controller) Elsewhere(owner ledger.OwnerKey) (e layout.Elsewhere) {
	r := c.term.Load()
	if r == nil {
		return e
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil {
		e = h.elsewhere
	}
	return e
}

// forgetHeld forgets which pods of an owner stay where they are, because nobody looks at them any more.
func (r *run) forgetHeld(owner ledger.OwnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.history[owner]; h != nil {
		h.nothingHinders()
	}
}

// nothingHinders forgets what kept pods from moving.
func (h *history) nothingHinders() {
	h.held, h.elsewhere, h.hindrance, h.pinned, h.unwritten = nil, layout.Elsewhere{}, nil, nil, nil
}

// volumesOf returns the node selector terms of each bound volume of a pod, as the API server has them now. Volumes for any node are left out.
// Held says why the pod must stay where it runs.
func (r *run) volumesOf(ctx context.Context, pod *corev1.Pod) (volumes [][]corev1.NodeSelectorTerm, held string, err error) {
	claims := podstatus.VolumeClaims(&pod.Spec)
	if len(claims) > observed.MostClaims {
		return nil, fmt.Sprintf("it has over %d claims", observed.MostClaims), nil
	}
	for _, name := range claims {
		terms, held, err := r.reach(ctx, pod.Namespace, name)
		if err != nil || held != "" {
			return nil, held, err
		}
		if len(terms) > 0 {
			volumes = append(volumes, terms)
		}
	}
	return volumes, "", nil
}

// redirect has the successor of a pod go where the webhook will give it a seat: to a pool and domain that its volumes reach. It returns why
// the pod stays, if that is where it is, or where nothing is gained. Pods with an ordinal of their own have their own place.
func (r *run) redirect(ctx context.Context, p *policy.Policy, b policy.Bound, state *planner.State, plan *planner.Plan, volumes [][]corev1.NodeSelectorTerm) (held string, err error) {
	removal := plan.Remove
	pod := &state.Pods[removal.Pod]
	if len(volumes) == 0 || pod.OwnRank > 0 || p.Preferred {
		return "", nil
	}
	look := r.Room.NewLook(ctx)
	reach := p.ReachOf(volumes, b, look.With)
	if reach == nil || look.Err != nil {
		return "", look.Err
	}
	reached := reach.Cells()
	switch at := (sequence.Cell{Pool: removal.To, Domain: removal.Domain}); {
	case reached[at.Pool][at.Domain]:
		held = "its volume would bring its successor back to the same place"
	case reach.Volumes[at.Pool][at.Domain]:
		held = "no node of " + placeOf(p, removal) + " that reaches its volume takes it"
	default:
		held = "no node of " + placeOf(p, removal) + " reaches its volume"
	}
	within := r.Policies.Within(p, reached)
	if within == nil {
		return held, nil
	}
	of := *state
	of.Layout = within.Layout
	next, domain, full := of.Next(removal.Pod)
	if full != nil {
		return held, nil //nolint:nilerr // no pool that it reaches has a seat
	}
	gains := next.Pool != pod.Seat.Pool && (pod.Seat.Pool < 0 || plan.Counts[next.Pool] < plan.Targets[next.Pool])
	if removal.To == pod.Seat.Pool { // it is to go to another domain
		gains = next.Pool == pod.Seat.Pool && domain != pod.Domain && plan.Lacks(next.Pool, domain)
	}
	if !gains {
		return held, nil
	}
	if !state.Available[next.Pool] {
		return "its volume reaches pool " + p.Strategy.Pool(next.Pool).Name + ", which takes no pod now", nil
	}
	removal.To, removal.Domain = next.Pool, domain
	return "", nil
}

// sharedVolume returns why another pod of the namespace holds this one. Both use a claim, and only one node can have its volume at a time. To
// ask costs a list of the namespace's pods.
func (r *run) sharedVolume(ctx context.Context, pod *corev1.Pod) (held string, err error) {
	own := podstatus.VolumeClaims(&pod.Spec)
	if len(own) == 0 {
		return "", nil
	}
	shared := map[string]bool{}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(other *corev1.Pod) error {
		if other.UID == pod.UID || podstatus.Ended(other) {
			return nil
		}
		for _, name := range podstatus.VolumeClaims(&other.Spec) {
			shared[name] = true
		}
		return nil
	}, client.InNamespace(pod.Namespace))
	if err != nil {
		return "", err
	}
	for _, name := range own {
		if !shared[name] {
			continue
		}
		var claims corev1.PersistentVolumeClaimList
		if err := r.Uncached.List(ctx, &claims, client.InNamespace(pod.Namespace), client.MatchingFields{metav1.ObjectNameField: name}); err != nil {
			return "", err
		}
		if len(claims.Items) == 0 || ofOneNode(&claims.Items[0]) {
			return fmt.Sprintf("other pods use the volume of its claim %s, which only one node can have", name), nil
		}
	}
	return "", nil
}

// reach returns the node selector terms of the volume of a claim: see [nodefit.VolumeTerms]. Held says why a pod with the claim must stay
// where it runs. To list claims and volumes is all that Stowage may do with them.
func (r *run) reach(ctx context.Context, namespace, name string) (terms []corev1.NodeSelectorTerm, held string, err error) {
	var claims corev1.PersistentVolumeClaimList
	err = r.Uncached.List(ctx, &claims, client.InNamespace(namespace), client.MatchingFields{metav1.ObjectNameField: name})
	switch {
	case apierrors.IsForbidden(err):
		return nil, "Stowage may not list its claims", nil
	case err != nil:
		return nil, "", err
	case len(claims.Items) == 0 || claims.Items[0].DeletionTimestamp != nil:
		return nil, fmt.Sprintf("its claim %s is gone, or is being deleted", name), nil
	}
	claim := &claims.Items[0]
	if claim.Spec.VolumeName == "" {
		return nil, "", nil // its volume is made where the successor goes
	}
	var volumes corev1.PersistentVolumeList
	err = r.Uncached.List(ctx, &volumes, client.MatchingFields{metav1.ObjectNameField: claim.Spec.VolumeName})
	switch {
	case apierrors.IsForbidden(err):
		return nil, "Stowage may not list PersistentVolumes", nil
	case err != nil:
		return nil, "", err
	case len(volumes.Items) == 0:
		return nil, fmt.Sprintf("the volume of its claim %s is gone", name), nil
	}
	terms, known := nodefit.VolumeTerms(&volumes.Items[0])
	if !known {
		return nil, fmt.Sprintf("where the volume of its claim %s can be is not known", name), nil
	}
	return terms, "", nil
}

// ofOneNode reports whether only one node can have the volume of a claim at a time.
func ofOneNode(claim *corev1.PersistentVolumeClaim) bool {
	modes := claim.Spec.AccessModes
	return !slices.Contains(modes, corev1.ReadWriteMany) && (slices.Contains(modes, corev1.ReadWriteOnce) || slices.Contains(modes, corev1.ReadWriteOncePod))
}
