package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// checkPods reports what the API server would refuse in a pod, of what a PodDistributor adds to pods. Its schema does not check
// the form of keys and values.
func checkPods(d *versprei.PodDistributor) error {
	var errs []error
	if kind := d.Spec.Target.Kind; kind == "DaemonSet" {
		errs = append(errs, errors.New("spec.target.kind is DaemonSet, whose pods have their nodes already; a FlexDaemonsetTemplate sizes them"))
	} else if kind == "" || !unicode.IsUpper(rune(kind[0])) {
		errs = append(errs, fmt.Errorf("spec.target.kind is %q; it is a kind such as Deployment", kind))
	}
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

// Compile returns what a PodDistributor says. The earlier pool wins a tie.
func Compile(d *versprei.PodDistributor) Compiled {
	p := Compiled{
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
		p.Whole, p.Err = sequence.New(pools, sequence.EarlierWins)
	}
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
