package shortage

import (
	"context"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// A policy may come after a StatefulSet whose pods have volumes, and nothing tells where those are. So the pool in which each pod
// runs is recorded before the policy divides the StatefulSet. The pod keeps that pool for as long as its claims exist.

// keepAgain is after how long the claims of such a StatefulSet are looked at again.
const keepAgain = 5 * time.Minute

// So many StatefulSets are looked at in a second, and at once. Namespaces share them. Each costs three requests, of which two are lists.
const (
	keepRate  = 1
	keepBurst = 20
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list,roleName=stowage-spread-controllers

// lookForVolumes looks at the StatefulSets with volumes that are older than their policy.
func (r *run) lookForVolumes(ctx context.Context, there map[types.UID]bool) {
	if all := r.World.AllPolicies(); len(all.Namespaced) == 0 && len(all.Cluster) == 0 {
		return
	}
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
		if p != nil && p.KeepsVolumes && p.Root != nil {
			there[p.Root.UID] = true
			r.work.AddUnlessFailing(world.Object{Namespace: w.Namespace, Ref: p.Root.Ref})
		}
	}
}

// keepVolumes returns where the volumes may be of a StatefulSet that is older than its policy, as it is to be stored, or nil.
func (r *run) keepVolumes(ctx context.Context, v *picture, m *memory) (*stowage.KeptOrdinals, error) {
	if !v.policy.KeepsVolumes || len(v.members) == 0 {
		return nil, nil
	}
	var known *stowage.KeptOrdinals
	if !v.policy.Unrecorded() {
		known = v.state.Kept
		if v.Now.Sub(m.kept) < keepAgain {
			return known, nil
		}
	}
	set := v.members[0].Workload
	if v.Now.Sub(r.pruned) < prunedFor || !r.keeps.Allow(m.workload.Namespace, v.Now) {
		return known, nil
	}
	scale, err := worldapi.ReadScale(ctx, r.Uncached, set.Namespace, set.Ref)
	if err != nil || scale == nil {
		return known, err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil {
		return known, err
	}

	// 1. Where does each pod run?
	runs := map[string]string{}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		if c := metav1.GetControllerOfNoCopy(pod); c != nil && c.UID == set.UID && podstatus.Active(pod) && pod.Spec.NodeName != "" {
			if i := v.policy.Whole.PoolOfNode(r.World.NodeLabels(ctx, pod.Spec.NodeName)); i >= 0 {
				runs[strings.Clone(placement.OrdinalInName(pod.Name))] = v.policy.Whole.PoolKey(i)
			}
		}
		return nil
	}, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return known, err
	}

	// 2. Which of them have claims? Their names are in the API's documentation of volumeClaimTemplates: template-set-ordinal. Their labels
	// may be anybody's. One that is being deleted does not come back with its pod.
	claims := &metav1.PartialObjectMetadataList{}
	claims.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	claimed := map[string]bool{}
	err = worldapi.Each(ctx, r.Uncached, claims, func(claim *metav1.PartialObjectMetadata) error {
		ordinal := placement.OrdinalInName(claim.Name)
		if n, err := strconv.ParseInt(ordinal, 10, 64); err == nil && n >= 0 && claim.DeletionTimestamp == nil && strings.HasSuffix(strings.TrimSuffix(claim.Name, ordinal), "-"+set.Name+"-") {
			claimed[strings.Clone(ordinal)] = true
		}
		return nil
	}, client.InNamespace(set.Namespace))
	if err != nil {
		return known, err
	}
	m.kept = v.Now
	return &stowage.KeptOrdinals{Policy: v.policy.From.UID, Owner: set.UID, Ordinals: keptOrdinals(v.policy, known, claimed, runs)}, nil
}

// keptOrdinals returns the pool that each pod with a claim keeps, by ordinal. Known is what was recorded before, or nil. A claim that
// is not in it came afterwards, and is where the policy has it. Runs are the pools in which pods run.
func keptOrdinals(p *policy.Policy, known *stowage.KeptOrdinals, claimed map[string]bool, runs map[string]string) map[string]string {
	var out map[string]string
	for ordinal := range claimed {
		pool, was := "", known == nil
		if known != nil {
			pool, was = known.Ordinals[ordinal]
		}
		if !was {
			continue
		}
		if _, there := p.Pool(pool); !there {
			pool = runs[ordinal]
		}
		if out == nil {
			out = map[string]string{}
		}
		out[ordinal] = pool
	}
	return out
}
