package shortage

import (
	"context"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// A policy may come after a StatefulSet whose pods have volumes, and nothing tells where those are. So the pool in which each pod
// runs is recorded before the policy divides the StatefulSet. The pod keeps that pool for as long as its claims exist. The same
// is recorded, with the domain, once a pod is seen to run in another domain than its ordinal's. Then the pools were divided over domains
// after the volumes came.

// keepAgain is after how long the claims of such a StatefulSet are looked at again.
const keepAgain = 5 * time.Minute

// So many StatefulSets are looked at in a second, and at once. Namespaces share them. Each look costs three requests: one get and two lists.
const (
	keepRate  = 1
	keepBurst = 20
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list,roleName=stowage-spread-controllers

// lookForVolumes looks at the StatefulSets with volumes that are older than their policy, or whose pools are divided over domains.
func (r *run) lookForVolumes(ctx context.Context, there map[types.UID]bool) {
	var sets appsv1.StatefulSetList
	if err := r.Cached.List(ctx, &sets, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "StatefulSets were not listed")
		return
	}
	for i := range sets.Items {
		if len(sets.Items[i].Spec.VolumeClaimTemplates) == 0 {
			continue
		}
		w := world.New(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), &sets.Items[i])
		p, err := r.Policies.FindForSelected(ctx, w.Namespace, w.Ref, w)
		if err != nil {
			r.Log.Error(err, "the policy of a StatefulSet is not known", "namespace", w.Namespace, "name", w.Name)
			continue
		}
		if p != nil && (p.KeepsVolumes || p.Homes() != nil) && p.Root != nil {
			there[p.Root.UID] = true
			r.work.AddUnlessFailing(world.Object{Namespace: w.Namespace, Ref: p.Root.Ref})
		}
	}
}

// keepVolumes returns where the volumes may be of a StatefulSet, as it is to be stored, or nil. They are recorded of one
// that is older than its policy, and of one for which a pool becomes unsuitable. Each of its pods keeps the pool of its volume.
func (r *run) keepVolumes(ctx context.Context, v *picture, m *memory, unsuitable bool) (*stowage.KeptOrdinals, error) {
	one, known := v.keeping(), v.policy.Kept()
	switch {
	case one == nil:
		return nil, nil
	case known == nil && !v.policy.KeepsVolumes && !unsuitable && !v.inOtherDomain(one):
		return nil, nil
	case known != nil && v.Now.Sub(m.kept) < keepAgain && v.understands(known):
		return known, nil
	case v.Now.Sub(r.pruned) < prunedFor || !r.keeps.Allow(m.workload.Namespace, v.Now):
		return known, nil
	}
	set := &appsv1.StatefulSet{}
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: one.Namespace, Name: one.Name}, set); err != nil {
		return known, client.IgnoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || set.UID != one.UID {
		return known, err
	}

	// 1. Where does each pod run?
	runs := map[string]string{}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		if c := metav1.GetControllerOfNoCopy(pod); c == nil || c.UID != set.UID || !podstatus.Active(pod) {
			return nil
		}
		if at, known := r.placeOf(ctx, v, pod); known {
			runs[strings.Clone(placement.OrdinalInName(pod.Name))] = v.Layout.CellName(at)
		}
		return nil
	}, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return known, err
	}

	// 2. Which of them have a claim with a volume?
	bound, err := r.boundClaims(ctx, set)
	if err != nil {
		return known, err
	}
	m.kept = v.Now
	return &stowage.KeptOrdinals{Policy: v.policy.UID(), Owner: set.UID, Ordinals: keptOrdinals(v.policy, known, bound, runs)}, nil
}

// placeOf returns where a pod runs. One that waits is where its seat is, unless the pools are divided over domains: then its volume may be in
// another one.
func (r *run) placeOf(ctx context.Context, v *picture, pod *corev1.Pod) (at sequence.Cell, known bool) {
	if pod.Spec.NodeName != "" {
		node := r.World.NodeLabels(ctx, pod.Spec.NodeName)
		at = sequence.Cell{Pool: v.Layout.PoolOfNode(node), Domain: v.Layout.DomainOfNode(node)}
		return at, at.Pool >= 0
	}
	at, known = v.policy.CellNamed(ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation]), pod.Labels[stowage.DomainLabel])
	return at, known && v.Layout.Homes() == nil
}

// boundClaims returns the ordinals of a StatefulSet's pods that have a claim with a volume. The name of such a claim is template-set-ordinal, and its
// labels may be anybody's. One that is being deleted does not come back with its pod.
func (r *run) boundClaims(ctx context.Context, set *appsv1.StatefulSet) (map[string]bool, error) {
	bound := map[string]bool{}
	err := worldapi.Each(ctx, r.Uncached, &corev1.PersistentVolumeClaimList{}, func(claim *corev1.PersistentVolumeClaim) error {
		if ordinal, ok := ordinalOfClaim(set, claim.Name); ok && claim.Spec.VolumeName != "" && claim.DeletionTimestamp == nil {
			bound[ordinal] = true
		}
		return nil
	}, client.InNamespace(set.Namespace))
	return bound, err
}

// inOtherDomain reports whether a pod runs in another domain than its ordinal's, or waits, perhaps for its volume. The pools were divided over
// domains, or in another way, after the volumes came.
func (v *picture) inOtherDomain(one *member) bool {
	if v.Layout.Homes() == nil || v.policy.UID() == "" {
		return false
	}
	for i := range one.spillPods {
		own, err := v.Layout.Own(rankInName(one, i))
		if err != nil {
			continue
		}
		pod := &one.spillPods[i]
		elsewhere := pod.Node && own.Pool == pod.Seat.Pool && v.Layout.Homes().Of(own.Pool, own.Ordinal) != pod.Domain
		if elsewhere || pod.Waits > exampleAfter {
			return true
		}
	}
	return false
}

// understands reports whether a record is of the pools and domains that there are. One in no pool is understood.
func (v *picture) understands(kept *stowage.KeptOrdinals) bool {
	for _, cell := range kept.Ordinals {
		if _, known := v.Layout.CellOf(cell); cell != "" && !known {
			return false
		}
	}
	return true
}

// keeping returns the StatefulSet whose volumes are recorded, or nil. There is one record for a workload.
func (v *picture) keeping() *member {
	for _, one := range v.members {
		recorded := v.state != nil && v.state.Kept != nil
		if another := recorded && v.state.Kept.Owner != one.UID; one.ordinals && one.Volumes && !another {
			return one
		}
	}
	return nil
}

// ordinalOfClaim returns the ordinal of the pod of a StatefulSet that a claim is for.
func ordinalOfClaim(set *appsv1.StatefulSet, claim string) (ordinal string, ok bool) {
	for i := range set.Spec.VolumeClaimTemplates {
		if ordinal, ok = strings.CutPrefix(claim, set.Spec.VolumeClaimTemplates[i].Name+"-"+set.Name+"-"); ok {
			n, err := strconv.ParseUint(ordinal, 10, 31)
			return strings.Clone(ordinal), err == nil && strconv.FormatUint(n, 10) == ordinal
		}
	}
	return "", false
}

// keptOrdinals returns the pool that each pod with a volume keeps, by ordinal. Known is what was recorded before, or nil. A claim that
// is not in it came afterwards, and is where the policy has it. Runs are the pools in which pods run.
func keptOrdinals(p *policy.Policy, known *stowage.KeptOrdinals, bound map[string]bool, runs map[string]string) map[string]string {
	var out map[string]string
	for ordinal := range bound {
		pool, was := "", known == nil
		if known != nil {
			pool, was = known.Ordinals[ordinal]
		}
		if !was {
			continue
		}
		if _, there := p.CellOf(pool); !there {
			pool = runs[ordinal]
		}
		if out == nil {
			out = map[string]string{}
		}
		out[ordinal] = pool
	}
	return out
}
