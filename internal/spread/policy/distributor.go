package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// winner returns the PodDistributor that divides the pods of one of some objects.
func (f *Finder) winner(list []versprei.PodDistributor, chain world.Chain) *versprei.PodDistributor {
	var best *versprei.PodDistributor
	for i := range list {
		d := &list[i]
		if !chain.IncludesName(d.Spec.Target.Name) { // nearly all of a long list, cheaply
			continue
		}
		if chain.Includes(TargetOf(d).Ref) && (best == nil || Older(d, best)) {
			best = d
		}
	}
	return best
}

// TargetOf returns a PodDistributor's target.
func TargetOf(d *versprei.PodDistributor) world.Object {
	t := &d.Spec.Target
	return world.Object{Namespace: d.Namespace, Ref: world.Ref{APIVersion: t.APIVersion, Kind: t.Kind, Name: t.Name}}
}

// Older reports whether one PodDistributor wins over another of the same target. The older one does, or the first by
// name if both are of the same second.
func Older(a, b *versprei.PodDistributor) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// compile returns a PodDistributor's policy, computed once for each generation.
func (f *Finder) compile(d *versprei.PodDistributor) *Policy {
	if known, ok := f.distributors.Get(d.UID); ok && d.UID != "" && known.generation == d.Generation {
		return known.policy
	}
	d = d.DeepCopy() // it is a part of a list, which would be kept with it
	p := Compile(d)
	if p.Strategy.Size() <= maxSize {
		data, _ := json.Marshal(d) // about as long as the object is large
		f.distributors.Add(d.UID, compiled{d.Generation, p}, 2*int64(len(data))+bytesOf(p.Strategy), rememberFor)
	}
	return p
}

// checkPods reports what the API server would refuse in a pod, of what a PodDistributor adds to pods. Its schema does not check
// the form of keys and values.
func checkPods(d *versprei.PodDistributor) error {
	var errs []error
	check := func(field, text string, problems []string) {
		if len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s is %q: %s", field, text, problems[0]))
		}
	}
	for i, pool := range d.Spec.Distribution {
		at := fmt.Sprintf("spec.distribution[%d]", i)
		for _, k := range slices.Sorted(maps.Keys(pool.NodeLabel)) {
			check("a key of "+at+".nodeLabel", k, validation.IsQualifiedName(k))
			check(at+".nodeLabel["+k+"]", string(pool.NodeLabel[k]), validation.IsValidLabelValue(string(pool.NodeLabel[k])))
		}
		for j := range pool.Tolerations {
			t := &pool.Tolerations[j]
			if t.Key != "" {
				check(fmt.Sprintf("%s.tolerations[%d].key", at, j), t.Key, validation.IsQualifiedName(t.Key))
			}
			check(fmt.Sprintf("%s.tolerations[%d].value", at, j), t.Value, validation.IsValidLabelValue(t.Value))
		}
	}
	return errors.Join(errs...)
}

// poolName is how a PodDistributor's pool is called: by its name, or by its place.
func poolName(d *versprei.PodDistributor, i int) string {
	return cmp.Or(d.Spec.Distribution[i].Name, strconv.Itoa(i))
}

// Compile returns the policy that a PodDistributor is. The earlier pool wins a tie.
func Compile(d *versprei.PodDistributor) *Policy {
	p := &Policy{
		Distributor: d,
		Source:      "PodDistributor " + d.Name,
		Preferred:   d.Spec.Enforcement == versprei.EnforcementPreferred,
		Evict:       d.Spec.Rebalance == versprei.RebalanceEvict,
		Repair:      stowage.RepairRecreate,
	}
	pools := make([]sequence.Pool, len(d.Spec.Distribution))
	for i, pool := range d.Spec.Distribution {
		labels := make(map[string]string, len(pool.NodeLabel))
		for k, v := range pool.NodeLabel {
			labels[k] = string(v)
		}
		pools[i] = sequence.Pool{Name: poolName(d, i), Labels: labels, Base: int64(pool.Base), Weight: int64(pool.Weight), Overflow: int64(pool.Overflow)}
		if pool.MaxReplicas != nil {
			pools[i].Max = int64(*pool.MaxReplicas)
		}
		var tolerations []corev1.Toleration
		for _, t := range pool.Tolerations {
			tolerations = append(tolerations, corev1.Toleration{
				Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
			})
		}
		p.Tolerations = append(p.Tolerations, tolerations)
	}
	if p.Err = checkPods(d); p.Err == nil {
		p.Strategy, p.Err = sequence.New(pools, sequence.EarlierWins)
	}
	p.Whole = p.Strategy
	for i, pool := range d.Spec.Distribution {
		if pool.Spill == nil || p.Preferred {
			continue
		}
		if p.Spill == nil {
			p.Spill = make([]spill.Rule, len(pools))
		}
		p.Spill[i].After, _ = parseSpill(cmp.Or(pool.Spill.After, defaultSpill)) // the API server has checked it
		p.Spill[i].MaxSpill = pool.Spill.MaxSpill
	}
	return p
}
