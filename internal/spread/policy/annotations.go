package policy

import (
	"fmt"
	"strconv"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// StrategyText returns the strategy that annotations give, if they give one.
func StrategyText(annotations map[string]string) (string, bool) {
	if len(annotations) == 0 {
		return "", false
	}
	on, _ := strconv.ParseBool(annotations[stowage.SpreadSwitchAnnotation])
	if text, ok := annotations[stowage.SpreadStrategyAnnotation]; ok && on {
		return text, true
	}
	text, ok := annotations[stowage.SpreadStrategyAliasAnnotation]
	return text, ok
}

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
