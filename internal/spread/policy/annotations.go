package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Check returns what is wrong with the annotations of a workload or its template, for whoever writes them. There are
// warnings about annotations without effect, and errors in a strategy.
func Check(annotations map[string]string) (warnings, errs []string) {
	_, hasStrategy := annotations[stowage.SpreadStrategyAnnotation]
	alias, hasAlias := annotations[stowage.SpreadStrategyAliasAnnotation]
	value, hasSwitch := annotations[stowage.SpreadSwitchAnnotation]
	on, err := strconv.ParseBool(value)
	if hasSwitch && err != nil {
		warnings = append(warnings, fmt.Sprintf("%s is %q; expected 'true' or 'false'", stowage.SpreadSwitchAnnotation, value))
	}
	switch {
	case hasStrategy && !hasSwitch && !hasAlias:
		warnings = append(warnings, fmt.Sprintf("%s has no effect without %s: 'true'", stowage.SpreadStrategyAnnotation, stowage.SpreadSwitchAnnotation))
	case on && !hasStrategy && !hasAlias:
		warnings = append(warnings, fmt.Sprintf("%s has no effect without %s", stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation))
	case on && hasStrategy && hasAlias && alias != annotations[stowage.SpreadStrategyAnnotation]:
		warnings = append(warnings, fmt.Sprintf("%s differs from %s and is ignored", stowage.SpreadStrategyAliasAnnotation, stowage.SpreadStrategyAnnotation))
	}
	if v, ok := annotations[stowage.SpillAnnotation]; ok {
		if _, err := parseSpill(v); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s is %q and is ignored: %v", stowage.SpillAnnotation, v, err))
		}
	}
	if text, ok := StrategyText(annotations); ok {
		if _, err := sequence.Parse(text); err != nil {
			key := stowage.SpreadStrategyAnnotation
			if !on || !hasStrategy {
				key = stowage.SpreadStrategyAliasAnnotation
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				errs = append(errs, fmt.Sprintf("%s: %s", key, line))
			}
		}
	}
	return warnings, errs
}

// annotate reads the settings that stand in annotations beside a strategy: of the pod template first, then of the uppermost
// workload, which may be nil.
func (c *Compiled) annotate(template map[string]string, root *world.Workload) {
	setting := func(key string) (string, bool) {
		if v, ok := template[key]; ok {
			return v, true
		}
		if root == nil {
			return "", false
		}
		v, ok := root.Annotations[key]
		return v, ok
	}
	if v, ok := setting(stowage.RebalanceAnnotation); ok && c.Distributor == nil {
		switch versprei.Rebalance(v) {
		case versprei.RebalanceEvict:
			c.Evict = true
		case versprei.RebalanceNever:
		default:
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is %q and was ignored; it must be %s or %s", stowage.RebalanceAnnotation, v, versprei.RebalanceNever, versprei.RebalanceEvict))
		}
	}
	if v, ok := setting(stowage.SpillAnnotation); ok && c.Distributor == nil && c.Whole != nil {
		if after, err := parseSpill(v); err != nil {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is %q and was ignored: %v", stowage.SpillAnnotation, v, err))
		} else {
			c.Spill = slices.Repeat([]spill.Rule{{After: after}}, c.Whole.Len())
		}
	}
	if v, ok := setting(stowage.RepairAnnotation); ok {
		if r := stowage.Repair(v); slices.Contains([]stowage.Repair{stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate}, r) {
			c.Repair = r
		} else {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is %q and was ignored; it must be %s, %s or %s", stowage.RepairAnnotation, v, stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate))
		}
	}
}

// The bounds of how long a pod waits until other pools take it, and what holds where a PodDistributor says nothing.
const (
	minSpill     = 10 * time.Second
	maxSpill     = time.Hour
	defaultSpill = "2m"
)

func parseSpill(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minSpill || d > maxSpill {
		return 0, errors.New("it must be a duration from 10s to 1h, such as 2m")
	}
	return d, nil
}
