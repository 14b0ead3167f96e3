package inspect

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
)

// left is a workload that no source divides any more, with its pods that select the nodes of a pool.
type left struct {
	owners []*podOwner
	pools  map[string]int // pods that have a node, by pool
	waits  bool           // a pod has none
}

// leftPins returns the workloads whose pods select the nodes of their pool though no source divides them any more. Pods that run are noted. Those that
// wait are problems of their own ([finding.SourceGone]).
func (all *groups) leftPins(r *Report) (out []Workload) {
	hidden := slices.Contains(r.hidden, hiddenClusterPolicies)
	of := map[types.UID]*left{}
	for _, m := range all.undivided {
		for _, pod := range m.pods {
			if adopted(pod) || !all.pinnedByUs(m, pod) || hidden && ofPolicy(pod) {
				continue
			}
			l := of[m.root.UID]
			if l == nil {
				l = &left{pools: map[string]int{}}
				of[m.root.UID] = l
			}
			if !slices.Contains(l.owners, m) {
				l.owners = append(l.owners, m)
			}
			if pod.Spec.NodeName == "" {
				l.waits = true
			} else {
				l.pools[ledger.PoolName(poolOf(pod))]++
			}
		}
	}
	for uid, l := range of {
		if all.byUID[uid] == nil { // else another revision is divided, and the rollout goes on
			out = append(out, all.leftWorkload(l))
		}
	}
	return out
}

// pinnedByUs reports whether a pod with a seat selects nodes by more than its template. A pod that only prefers its pool does not. It has a preference of
// the weight that Stowage writes, and its claim does not say that the pool was required. The claims of policies never say so.
func (all *groups) pinnedByUs(m *podOwner, pod *corev1.Pod) bool {
	template := all.s.created[m.UID].Spec
	source := observed.Unverified(pod, m.UID).Source
	required := source.UID == "" && source.Selector != ""
	if !required && preferences(pod.Spec.Affinity) > preferences(template.Affinity) {
		return false // its pool is preferred
	}
	for key, value := range pod.Spec.NodeSelector {
		if template.NodeSelector[key] != value {
			return true
		}
	}
	terms := nodeset.RequiredOf(pod.Spec.Affinity)
	return terms != nil && !reflect.DeepEqual(terms, nodeset.RequiredOf(template.Affinity))
}

// preferences is how many kinds of nodes an affinity prefers as Stowage writes it.
func preferences(a *corev1.Affinity) int {
	if a == nil || a.NodeAffinity == nil {
		return 0
	}
	return countNot(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, func(t corev1.PreferredSchedulingTerm) bool { return t.Weight != placement.PreferenceWeight })
}

// leftWorkload is the row of such a workload.
func (all *groups) leftWorkload(l *left) Workload {
	first := l.owners[0]
	w := Workload{Namespace: first.Namespace, Kind: first.root.Kind, Name: first.root.Name, OK: !l.waits}
	f := finding.Finding{Reason: finding.PinsLeft, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name}
	for _, m := range l.owners {
		w.about = append(w.about, m.names...)
		w.Replicas += max(m.Replicas, int64(len(m.pods)))
		f.Rollout = f.And(all.s.rolloutOf(m))
	}
	var pools []string
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		f.Count += int64(l.pools[name])
		pools = append(pools, fmt.Sprintf("%d in pool %s", l.pools[name], name))
	}
	w.Note = "its pods wait for nodes of a pool, and no strategy divides them any more"
	if f.Count > 0 {
		f.Pool = strings.Join(pools, ", ")
		w.Note = f.String()
	}
	return w
}

// rolloutOf is what keeps the rollout of an owner of pods from creating them again.
func (s *snapshot) rolloutOf(m *podOwner) finding.Rollout {
	of := s.rollouts[m.UID].Rollout
	if m.Controller != nil {
		of = of.And(s.rollouts[m.Controller.UID].Rollout)
	}
	return of
}
