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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/selector"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// checkTarget reports what is wrong with the target of a PodDistributor that its schema does not check.
func checkTarget(d *versprei.PodDistributor) error {
	if kind := d.Spec.Target.Kind; kind == "DaemonSet" {
		return errors.New("spec.target.kind is DaemonSet, whose pods have their nodes already; a FlexDaemonsetTemplate sizes them")
	} else if kind == "" || !unicode.IsUpper(rune(kind[0])) {
		return fmt.Errorf("spec.target.kind is %q; it is a kind such as Deployment", kind)
	}
	return checkGroup(d.Spec.Target.APIVersion, d.Spec.Target.Kind)
}

// checkSize reports a PodDistributor that is too large to be kept.
func checkSize(d *versprei.PodDistributor) error {
	if world.TooLarge(d) {
		return fmt.Errorf("spec has more than %d KiB; use fewer or shorter labels, expressions, annotations and tolerations", world.MostSpec>>10)
	}
	return nil
}

// dividedKinds are those of Kubernetes' own groups whose pods a PodDistributor divides. Of other groups, each kind may have pods.
var dividedKinds = map[string][]string{"": {"ReplicationController"}, "apps": {"Deployment", "ReplicaSet", "StatefulSet"}, "batch": {"Job"}}

// checkGroup reports that a target is of a kind whose pods are never divided, or of a version that no API server has.
func checkGroup(apiVersion, kind string) error {
	if apiVersion == "" {
		return nil // the schema says so
	}
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	kinds, own := dividedKinds[group]
	switch {
	case group == "extensions", group == "apps" && version != "v1":
		return fmt.Errorf("spec.target.apiVersion is %s, which no API server has any more; write apps/v1", apiVersion)
	case kind == "CronJob":
		return errors.New("spec.target.kind is CronJob, and the pods of its Jobs are never divided; name a Deployment, ReplicaSet, StatefulSet, Job, ReplicationController or custom resource")
	case own && !slices.Contains(kinds, kind):
		return fmt.Errorf("spec.target.kind is %s of %s, which has no pods to divide; name a Deployment, ReplicaSet, StatefulSet, Job, ReplicationController or custom resource", kind, apiVersion)
	}
	return nil
}

// fields are how a kind calls its pools, and the labels of a pool's nodes.
type fields struct{ pools, labels string }

var (
	fieldsOfDistributor = fields{"distribution", "nodeLabel"}
	fieldsOfPolicy      = fields{"pools", "nodeSelector"}
)

// The bounds of lists and maps, as the schemas of pools have them. Those of labels, expressions and their values are in package nodeset.
const (
	mostTolerations = 16
	mostCarried     = 16 // podLabels, and podAnnotations
	// mostErrors is how many errors of an object are told.
	mostErrors = 16
)

// checkBounds reports the first list or map that has more than its schema allows. The API server refuses such an object, and a stranger sends one.
func checkBounds(pools []versprei.Pool, field fields, across *versprei.Across) error {
	if len(pools) > sequence.MaxPools {
		return fmt.Errorf("spec.%s has more than %d pools", field.pools, sequence.MaxPools)
	}
	for i := range pools {
		p, values := &pools[i], 0
		for j := range p.MatchExpressions {
			values += len(p.MatchExpressions[j].Values)
		}
		for _, of := range []struct {
			name       string
			have, most int
		}{
			{field.labels, len(p.NodeLabel), nodeset.MostLabels},
			{"matchExpressions", len(p.MatchExpressions), nodeset.MostExpressions},
			{"matchExpressions[].values", values, nodeset.MostValues},
			{"tolerations", len(p.Tolerations), mostTolerations},
			{"podLabels", len(p.PodLabels), mostCarried},
			{"podAnnotations", len(p.PodAnnotations), mostCarried},
		} {
			if of.have > of.most {
				return fmt.Errorf("spec.%s[%d].%s has %d entries; it may have %d, so remove some", field.pools, i, of.name, of.have, of.most)
			}
		}
	}
	for i := range pools {
		if text, at := longText(&pools[i], field); text != "" {
			return fmt.Errorf("a text in spec.%s[%d].%s begins with %q and has %d bytes; it may have %d, so shorten it", field.pools, i, at, text[:16], len(text), selector.MostText)
		}
	}
	if across != nil && len(across.Domains) > sequence.MaxDomains {
		return fmt.Errorf("spec.across.domains has %d entries; it may have %d, so remove some", len(across.Domains), sequence.MaxDomains)
	}
	return nil
}

// longText returns a text of a pool that is longer than any key, value or name of its schema, and the field where it is. It returns "" if there is none.
func longText(p *versprei.Pool, field fields) (text, at string) {
	note := func(field, s string) {
		if len(s) > selector.MostText {
			text, at = s, field
		}
	}
	for _, labels := range []struct {
		field string
		of    map[string]versprei.LabelValue
	}{{field.labels, p.NodeLabel}, {"podLabels", p.PodLabels}} {
		for k, v := range labels.of {
			note(labels.field, k)
			note(labels.field, string(v))
		}
	}
	for k := range p.PodAnnotations {
		note("podAnnotations", k)
	}
	for i := range p.MatchExpressions {
		note("matchExpressions", p.MatchExpressions[i].Key)
		for _, v := range p.MatchExpressions[i].Values {
			note("matchExpressions", string(v))
		}
	}
	for i := range p.Tolerations {
		note("tolerations", p.Tolerations[i].Key)
		note("tolerations", p.Tolerations[i].Value)
	}
	note("priorityClassName", p.PriorityClassName)
	return text, at
}

// checkPools reports what the API server would refuse in a pod, of what pools add to pods. Their schema does not check the form of keys
// and values.
func checkPools(pools []versprei.Pool, field fields) error {
	var errs []error
	check := func(field, text string, problems []string) {
		if len(problems) > 0 && len(errs) < mostErrors {
			errs = append(errs, fmt.Errorf("%s is %q: %s", field, text, problems[0]))
		}
	}
	for i, pool := range pools {
		if len(errs) >= mostErrors {
			break
		}
		at := fmt.Sprintf("spec.%s[%d]", field.pools, i)
		for _, k := range slices.Sorted(maps.Keys(pool.NodeLabel)) {
			check("a key of "+at+"."+field.labels, k, validation.IsQualifiedName(k))
			check(at+"."+field.labels+"["+k+"]", string(pool.NodeLabel[k]), validation.IsValidLabelValue(string(pool.NodeLabel[k])))
		}
		if _, err := nodesOf(&pool); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
		for j := range pool.Tolerations {
			t := &pool.Tolerations[j]
			if t.Key != "" {
				check(fmt.Sprintf("%s.tolerations[%d].key", at, j), t.Key, validation.IsQualifiedName(t.Key))
			}
			check(fmt.Sprintf("%s.tolerations[%d].value", at, j), t.Value, validation.IsValidLabelValue(t.Value))
		}
		checkCarried(&pool, at, check)
	}
	return errors.Join(errs...)
}

// checkCarried reports what is wrong with what a pool gives to its pods.
func checkCarried(pool *versprei.Pool, at string, check func(field, text string, problems []string)) {
	for _, k := range slices.Sorted(maps.Keys(pool.PodLabels)) {
		check("a key of "+at+".podLabels", k, append(validation.IsQualifiedName(k), reserved(k)...))
		check(at+".podLabels["+k+"]", string(pool.PodLabels[k]), validation.IsValidLabelValue(string(pool.PodLabels[k])))
	}
	for _, k := range slices.Sorted(maps.Keys(pool.PodAnnotations)) {
		check("a key of "+at+".podAnnotations", k, append(validation.IsQualifiedName(strings.ToLower(k)), reserved(k)...))
	}
	if name := pool.PriorityClassName; name != "" {
		check(at+".priorityClassName", name, validation.IsDNS1123Subdomain(name))
	}
}

// reserved says that a pool may not set a key: those of Kubernetes, of its controllers and of Stowage, and what Kata Containers reads.
func reserved(key string) []string {
	prefix, _, prefixed := strings.Cut(key, "/")
	for _, domain := range []string{"kubernetes.io", "k8s.io", "stowage.dev", "flexdaemonsets.xai"} {
		if prefixed && (prefix == domain || strings.HasSuffix(prefix, "."+domain)) {
			return []string{"a pool may not set keys of " + domain}
		}
	}
	if strings.HasPrefix(key, "io.katacontainers.") || slices.Contains(reservedKeys, key) {
		return []string{"a pool may not set this key"}
	}
	return nil
}

// reservedKeys are those without a prefix that mean something to Stowage, or to the controllers of Kubernetes.
var reservedKeys = slices.Concat(strategyKeys, []string{stowage.MutatedByKey, appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey})

// Compile returns what a PodDistributor says. The earlier pool wins a tie.
func Compile(d *versprei.PodDistributor) Compiled {
	c := Compiled{
		Origin: Origin{Source: "PodDistributor " + d.Name, Distributor: d},
		Rules:  Rules{Preferred: d.Spec.Enforcement == versprei.EnforcementPreferred, Evict: d.Spec.Rebalance == versprei.RebalanceEvict, Repair: stowage.RepairRecreate},
		Err:    errors.Join(checkTarget(d), checkSize(d)),
	}
	c.compile(d.Spec.Distribution, fieldsOfDistributor, d.Spec.Across)
	return c
}

// CompilePolicy returns a policy as a source of a division. The earlier pool wins a tie.
func CompilePolicy(s *SpreadPolicy) Compiled {
	c := Compiled{
		Origin: Origin{Source: s.String(), Policy: s, From: ledger.Source{UID: s.UID, Generation: s.Generation}},
		Rules: Rules{
			Preferred: s.Spec.Enforcement == versprei.EnforcementPreferred, Evict: s.Spec.Rebalance == versprei.RebalanceEvict,
			Repair: cmp.Or(s.Spec.Repair, stowage.RepairAdopt), EvictEarly: s.Namespace != "",
		},
		Err: s.err,
	}
	pools := make([]versprei.Pool, min(len(s.Spec.Pools), sequence.MaxPools+1)) // compile refuses more
	for i, pool := range s.Spec.Pools[:len(pools)] {
		pools[i] = versprei.Pool{
			Name: pool.Name, NodeLabel: pool.NodeSelector, MatchExpressions: pool.MatchExpressions, Base: pool.Base, Weight: pool.Weight, MaxReplicas: pool.MaxReplicas,
			Spill: pool.Spill, Overflow: pool.Overflow, Tolerations: pool.Tolerations,
			PodLabels: pool.PodLabels, PodAnnotations: pool.PodAnnotations, PriorityClassName: pool.PriorityClassName,
			TerminationGracePeriodSeconds: pool.TerminationGracePeriodSeconds,
		}
	}
	c.compile(pools, fieldsOfPolicy, s.Spec.Across)
	return c
}

// divided returns a strategy with its pools divided over domains, nil for none. The field is where they are written, for errors.
func divided(s *sequence.Strategy, a *sequence.Across, field string) (*layout.Written, error) {
	if a == nil {
		return layout.New(s)
	}
	whole, err := s.WithDomains(*a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	written, err := layout.New(whole)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return written, nil
}

// compile fills in what pools say, and over which domains they are divided.
func (c *Compiled) compile(of []versprei.Pool, field fields, across *versprei.Across) {
	if err := checkBounds(of, field, across); err != nil {
		c.Err = errors.Join(c.Err, err)
		return // before anything is made of what is too much
	}
	c.Err = errors.Join(c.Err, checkPools(of, field))
	var errs []error // at most two of each pool
	pools := make([]sequence.Pool, len(of))
	for i := range of {
		c.Tolerations = append(c.Tolerations, tolerationsOf(&of[i]))
		if carry := carryOf(&of[i]); !carry.Empty() {
			if c.Carries == nil {
				c.Carries = make([]placement.Carry, len(of))
			}
			c.Carries[i] = carry
		}
		at := fmt.Sprintf("spec.%s[%d]", field.pools, i)
		var err error
		if pools[i], err = poolOf(&of[i], strconv.Itoa(i), at); err != nil {
			errs = append(errs, err)
		}
		if c.Policy != nil {
			pools[i].ID = ledger.PolicyPool(pools[i].Name, pools[i].Nodes())
		}
	}
	limited := slices.ContainsFunc(pools, func(p sequence.Pool) bool { return p.MaxShare > 0 })
	for i := range of {
		rule := of[i].Spill
		if rule == nil || c.Preferred {
			continue
		}
		if c.Spill == nil {
			c.Spill = make([]spill.Rule, len(pools))
		}
		c.Spill[i].After, _ = parseSpill(cmp.Or(rule.After, defaultSpill)) // the API server has checked it
		c.Spill[i].MaxSpill = rule.MaxSpill
		if rule.MaxSpill != nil && limited {
			errs = append(errs, fmt.Errorf("spec.%s[%d].spill.maxSpill and maxReplicas as a percentage cannot be in one object", field.pools, i))
		}
	}
	if c.Err = errors.Join(c.Err, errors.Join(errs...)); c.Err != nil {
		return
	}
	s, err := sequence.New(pools, sequence.EarlierWins)
	if err == nil {
		c.Written, err = divided(s, acrossOf(across), "spec.across")
	}
	c.Err = err
}

// NodesOf are the nodes of a policy's pool.
func NodesOf(pool *stowage.PolicyPool) nodeset.Set {
	nodes, _ := nodesOf(&versprei.Pool{NodeLabel: pool.NodeSelector, MatchExpressions: pool.MatchExpressions}) // Compile has its error
	return nodes
}

// nodesOf are the nodes of a pool of a spec. The error says what is wrong with a requirement, or that no node can meet all.
func nodesOf(pool *versprei.Pool) (nodeset.Set, error) {
	equal, expressions := make(map[string]string, len(pool.NodeLabel)), make([]corev1.NodeSelectorRequirement, len(pool.MatchExpressions))
	for k, v := range pool.NodeLabel {
		equal[k] = string(v)
	}
	for i, r := range pool.MatchExpressions {
		values := make([]string, len(r.Values))
		for j := range r.Values {
			values[j] = string(r.Values[j])
		}
		expressions[i] = corev1.NodeSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: values}
	}
	return nodeset.New(equal, expressions)
}

// poolOf is a pool of a spec. The error names the field, at which the pool is.
func poolOf(pool *versprei.Pool, name, at string) (out sequence.Pool, err error) {
	nodes, _ := nodesOf(pool) // checkPools has its error
	out = sequence.Pool{
		Name: cmp.Or(pool.Name, name), Labels: nodes.Labels, Expressions: nodes.Expressions,
		Base: int64(pool.Base), Weight: int64(pool.Weight), Overflow: int64(pool.Overflow),
	}
	switch most := pool.MaxReplicas; {
	case most == nil:
	case most.Type == intstr.Int:
		out.Max = int64(most.IntVal)
	default:
		out.MaxShare, err = strconv.ParseInt(strings.TrimSuffix(most.StrVal, "%"), 10, 64)
		if err != nil || out.MaxShare < 1 || !strings.HasSuffix(most.StrVal, "%") {
			return out, fmt.Errorf("%s.maxReplicas is %q; it is a number, or a percentage such as 50%%", at, most.StrVal)
		}
	}
	return out, nil
}

func tolerationsOf(pool *versprei.Pool) (out []corev1.Toleration) {
	for _, t := range pool.Tolerations {
		out = append(out, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
		})
	}
	return out
}

func carryOf(pool *versprei.Pool) placement.Carry {
	c := placement.Carry{PriorityClass: pool.PriorityClassName, GracePeriod: pool.TerminationGracePeriodSeconds}
	for k, v := range pool.PodLabels {
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[k] = string(v)
	}
	for k, v := range pool.PodAnnotations {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[k] = string(v)
	}
	return c
}

func acrossOf(across *versprei.Across) *sequence.Across {
	if across == nil {
		return nil
	}
	a := &sequence.Across{Key: across.TopologyKey}
	for _, d := range across.Domains {
		a.Domains = append(a.Domains, sequence.Domain{Value: string(d.Value), Weight: int64(cmp.Or(d.Weight, 1))})
	}
	return a
}
