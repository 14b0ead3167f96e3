package sequence

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// Parse reads a strategy as its annotation has it:
//
//	nodesize=small,base=1,weight=0:nodesize=large,weight=1
//
// Pools are separated by colons; each is a list of settings: base, weight, and at
// least one that says which nodes the pool has. That is a node label, a label that nodes
// do not have (!key), or a value that they do not have (key!=value). Spaces around them do
// not count. A base or weight that is not given is zero. The later pool wins a tie. The
// error names every pool that is wrong, by its place, and says what was expected.
func Parse(text string) (*Strategy, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("it has more than %d characters", MaxText)
	}
	if n := strings.Count(text, ":") + 1; n > MaxPools {
		return nil, fmt.Errorf("there are %d pools; expected at most %d", n, MaxPools)
	}
	var pools []Pool
	var errs []error
	for i, part := range strings.Split(text, ":") {
		p, err := parsePool(part)
		if err != nil {
			errs = append(errs, fmt.Errorf("pool %d (%q): %w", i, strings.TrimSpace(part), err))
		}
		p.Name = strconv.Itoa(i)
		pools = append(pools, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return New(pools, LaterWins)
}

// ParseAcross reads the domains as their annotation has them:
//
//	topology.kubernetes.io/zone: zone-a, zone-b, zone-c=2
//
// That is a label key, a colon, and the label's values with commas between them. A value may have a weight after an equals sign; without it, it
// has the weight 1. What [Strategy.WithDomains] checks is not checked here.
func ParseAcross(text string) (Across, error) {
	key, list, ok := strings.Cut(text, ":")
	a := Across{Key: strings.TrimSpace(key)}
	if !ok || len(text) > MaxAcross {
		return a, errors.New("it must be a label key, a colon and values, such as topology.kubernetes.io/zone: zone-a, zone-b")
	}
	for part := range strings.SplitSeq(list, ",") {
		value, weight, weighted := strings.Cut(part, "=")
		d := Domain{Value: strings.TrimSpace(value), Weight: 1}
		if weighted {
			n, err := strconv.ParseInt(strings.TrimSpace(weight), 10, 64)
			if err != nil {
				return a, fmt.Errorf("the weight of %s is %q; it must be a whole number from 1 to %d", d.Value, strings.TrimSpace(weight), MaxDomainWeight)
			}
			d.Weight = n
		}
		a.Domains = append(a.Domains, d)
	}
	return a, nil
}

// MaxAcross is how many bytes the domains in an annotation have at most.
const MaxAcross = 1 << 10

// MaxText is how many bytes a strategy has at most: 256 for each pool. Each replica keeps it for each workload.
const MaxText = 8 << 10

// mostSettings is how many settings a pool has at most. There is no more to look at: a text of [MaxText] could have thousands of labels.
const mostSettings = 2 + nodeset.MostLabels + nodeset.MostExpressions

// mostSetting is how many bytes a setting has at most: more than a label's key and value have. A longer one is matched with no pattern, which takes some
// hundred bytes of memory for each byte.
const mostSetting = 512

func parsePool(text string) (Pool, error) {
	p := Pool{Labels: map[string]string{}}
	if strings.TrimSpace(text) == "" {
		return p, errors.New("it is empty; expected a node label, a base and a weight, like nodesize=large,base=1,weight=2")
	}
	if n := strings.Count(text, ",") + 1; n > mostSettings {
		return p, fmt.Errorf("it has %d settings; it may have %d: base, weight, %d node labels and %d labels or values that nodes do not have; select its nodes by fewer labels",
			n, mostSettings, nodeset.MostLabels, nodeset.MostExpressions)
	}
	var seen []string
	for setting := range strings.SplitSeq(text, ",") {
		setting = strings.TrimSpace(setting)
		if len(setting) > mostSetting {
			return p, fmt.Errorf("a setting has %d characters; it may have %d", len(setting), mostSetting)
		}
		key, err := p.set(setting)
		if err != nil {
			return p, err
		}
		if slices.Contains(seen, key) {
			return p, fmt.Errorf("%s is given twice", key)
		}
		seen = append(seen, key)
	}
	nodes, err := nodeset.New(p.Labels, p.Expressions)
	if err != nil {
		return p, err
	}
	if nodes.Empty() {
		return p, errors.New("it has no node label; expected one, like nodesize=large")
	}
	p.Labels, p.Expressions = nodes.Labels, nodes.Expressions
	return p, nil
}

// set takes a setting of a pool: key=value, key!=value or !key. It returns what is to be there once.
func (p *Pool) set(setting string) (once string, err error) {
	if absent, ok := strings.CutPrefix(setting, "!"); ok {
		key := strings.TrimSpace(absent)
		p.Expressions = append(p.Expressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist})
		return "!" + key, checkKey(key)
	}
	if key, value, ok := strings.Cut(setting, "!="); ok {
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		p.Expressions = append(p.Expressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: []string{value}})
		return key + "!=" + value, checkKey(key)
	}
	key, value, ok := strings.Cut(setting, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if !ok {
		return key, fmt.Errorf("%q has no equals sign; expected key=value, key!=value or !key", setting)
	}
	switch key {
	case "base", "weight":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return key, fmt.Errorf("%s is %q; expected a whole number from 0", key, value)
		}
		if key == "base" {
			p.Base = n
		} else {
			p.Weight = n
		}
		return key, nil
	}
	if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 && checkKey(key) == nil {
		return key, fmt.Errorf("%q is no value of label %s: %s", value, key, strings.Join(msgs, "; "))
	}
	if _, twice := p.Labels[key]; !twice {
		p.Labels[key] = value
	}
	return key, checkKey(key)
}

// checkKey reports a key that is none of a label.
func checkKey(key string) error {
	if key == "base" || key == "weight" {
		return fmt.Errorf("%s is no label here; expected %s=1, or a label with another key", key, key)
	}
	if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
		return fmt.Errorf("%q is no label key: %s", key, strings.Join(msgs, "; "))
	}
	return nil
}
