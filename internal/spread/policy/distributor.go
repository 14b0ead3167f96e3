package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// checkTarget reports what is wrong with the target of a PodDistributor that its schema does not check.
func checkTarget(d *versprei.PodDistributor) error {
	if kind := d.Spec.Target.Kind; kind == "DaemonSet" {
		return errors.New("spec.target.kind is DaemonSet, whose pods have their nodes already; a FlexDaemonsetTemplate sizes them")
	} else if kind == "" || !unicode.IsUpper(rune(kind[0])) {
		return fmt.Errorf("spec.target.kind is %q; it is a kind such as Deployment", kind)
	}
	return nil
}

// fields are how a kind calls its pools, and the labels of a pool's nodes.
type fields struct{ pools, labels string }

var (
	fieldsOfDistributor = fields{"distribution", "nodeLabel"}
	fieldsOfPolicy      = fields{"pools", "nodeSelector"}
)

// checkPools reports what the API server would refuse in a pod, of what pools add to pods. Their schema does not check the form of keys
// and values.
func checkPools(pools []versprei.Pool, field fields) error {
	var errs []error
	check := func(field, text string, problems []string) {
		if len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s is %q: %s", field, text, problems[0]))
		}
	}
	for i, pool := range pools {
		at := fmt.Sprintf("spec.%s[%d]", field.pools, i)
		for _, k := range slices.Sorted(maps.Keys(pool.NodeLabel)) {
			check("a key of "+at+"."+field.labels, k, validation.IsQualifiedName(k))
			check(at+"."+field.labels+"["+k+"]", string(pool.NodeLabel[k]), validation.IsValidLabelValue(string(pool.NodeLabel[k])))
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

// Compile returns what a PodDistributor says. The earlier pool wins a tie.
func Compile(d *versprei.PodDistributor) Compiled {
	p := Compiled{
		Distributor: d,
		Source:      "PodDistributor " + d.Name,
		Preferred:   d.Spec.Enforcement == versprei.EnforcementPreferred,
		Evict:       d.Spec.Rebalance == versprei.RebalanceEvict,
		Repair:      stowage.RepairRecreate,
	}
	p.Err = checkTarget(d)
	p.compile(d.Spec.Distribution, fieldsOfDistributor, d.Spec.Across)
	return p
}

// CompilePolicy returns a policy as a source of a division. The earlier pool wins a tie.
func CompilePolicy(s *SpreadPolicy) Compiled {
	p := Compiled{
		Policy:    s,
		From:      ledger.Source{UID: s.UID, Generation: s.Generation},
		Source:    s.String(),
		Preferred: s.Spec.Enforcement == versprei.EnforcementPreferred,
		Evict:     s.Spec.Rebalance == versprei.RebalanceEvict,
		Repair:    cmp.Or(s.Spec.Repair, stowage.RepairAdopt),
		Err:       s.err,
	}
	pools := make([]versprei.Pool, len(s.Spec.Pools))
	for i, pool := range s.Spec.Pools {
		pools[i] = versprei.Pool{
			Name: pool.Name, NodeLabel: pool.NodeSelector, Base: pool.Base, Weight: pool.Weight, MaxReplicas: pool.MaxReplicas,
			Spill: pool.Spill, Overflow: pool.Overflow, Tolerations: pool.Tolerations,
		}
	}
	p.compile(pools, fieldsOfPolicy, s.Spec.Across)
	return p
}

// divide divides the pools of the strategy over domains. The field is where they are written, for errors.
func (p *Compiled) divide(a sequence.Across, field string) {
	whole, err := p.Whole.WithDomains(a)
	if err == nil {
		p.homes, err = newHomes(whole)
	}
	if p.Whole = whole; err != nil {
		p.Whole, p.Err = nil, fmt.Errorf("%s: %w", field, err)
	}
}

// compile fills in what pools say, and over which domains they are divided.
func (p *Compiled) compile(of []versprei.Pool, field fields, across *versprei.Across) {
	pools := make([]sequence.Pool, len(of))
	for i, pool := range of {
		labels := make(map[string]string, len(pool.NodeLabel))
		for k, v := range pool.NodeLabel {
			labels[k] = string(v)
		}
		pools[i] = sequence.Pool{Name: cmp.Or(pool.Name, strconv.Itoa(i)), Labels: labels, Base: int64(pool.Base), Weight: int64(pool.Weight), Overflow: int64(pool.Overflow)}
		if p.Policy != nil {
			pools[i].ID = ledger.PolicyPool(pools[i].Name, labels)
		}
		if most := pool.MaxReplicas; most != nil && most.Type == intstr.String {
			percent, err := strconv.ParseInt(strings.TrimSuffix(most.StrVal, "%"), 10, 64)
			if err != nil || percent < 1 || !strings.HasSuffix(most.StrVal, "%") {
				p.Err = errors.Join(p.Err, fmt.Errorf("spec.%s[%d].maxReplicas is %q; it is a number, or a percentage such as 50%%", field.pools, i, most.StrVal))
			}
			pools[i].MaxShare = percent
		} else if most != nil {
			pools[i].Max = int64(most.IntVal)
		}
		var tolerations []corev1.Toleration
		for _, t := range pool.Tolerations {
			tolerations = append(tolerations, corev1.Toleration{
				Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
			})
		}
		p.Tolerations = append(p.Tolerations, tolerations)
	}
	if p.Err = errors.Join(p.Err, checkPools(of, field)); p.Err == nil {
		p.Whole, p.Err = sequence.New(pools, sequence.EarlierWins)
	}
	if p.Err == nil && across != nil {
		a := sequence.Across{Key: across.TopologyKey}
		for _, d := range across.Domains {
			a.Domains = append(a.Domains, sequence.Domain{Value: string(d.Value), Weight: int64(cmp.Or(d.Weight, 1))})
		}
		p.divide(a, "spec.across")
	}
	for i, pool := range of {
		if pool.Spill == nil || p.Preferred {
			continue
		}
		if p.Spill == nil {
			p.Spill = make([]spill.Rule, len(pools))
		}
		p.Spill[i].After, _ = parseSpill(cmp.Or(pool.Spill.After, defaultSpill)) // the API server has checked it
		p.Spill[i].MaxSpill = pool.Spill.MaxSpill
		if pool.Spill.MaxSpill != nil && slices.ContainsFunc(pools, func(p sequence.Pool) bool { return p.MaxShare > 0 }) {
			p.Whole, p.homes, p.Err = nil, nil, errors.Join(p.Err, fmt.Errorf("spec.%s[%d].spill.maxSpill and maxReplicas as a percentage cannot be in one object", field.pools, i))
		}
	}
}
