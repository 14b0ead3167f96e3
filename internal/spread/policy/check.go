package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Finding is a setting that has no effect, or that is wrong.
type Finding struct {
	Field string // such as metadata.annotations
	Text  string
	Fix   string // what to do about it
	// Invalid says that it is a strategy that divides no pods.
	Invalid bool
}

func (f Finding) String() string { return f.Field + ": " + f.Text }

// Check returns what is wrong with the settings of a Namespace or of a workload, for whoever writes them. The template is that
// of the workload's pods; nil for an object without one.
func Check(kind string, own feature.Metadata, template *feature.Metadata) []Finding {
	f := findings{field: "metadata"}
	f.unknown(own)
	if template != nil {
		f.field = "spec.template.metadata"
		f.unknown(*template)
		f.field = "metadata"
	}
	switch {
	case kind == "Namespace":
		f.mode(own)
		f.failurePolicy(own)
		for _, key := range slices.Sorted(maps.Keys(own.Annotations)) {
			if slices.Contains(strategyKeys, key) || settingOf(key) != nil {
				f.add("annotations", "%s has no effect on a Namespace; write it on a workload or its pod template", key).Fix = "remove it, or move it to a workload of the namespace"
			}
		}
		return f.found
	case kind == "DaemonSet" && template != nil:
		f.field = "spec.template.metadata"
		f.mode(*template)
		return f.found
	case kind == "Job" || kind == "CronJob":
		f.ofJob(kind, own, template)
		if template != nil {
			f.field = "spec.template.metadata"
			f.mode(*template)
		}
		return f.found
	case template == nil: // a pod
		f.mode(own)
	default:
		for n, list := range []map[string]string{own.Annotations, own.Labels} {
			if _, ok := list[stowage.ModeKey]; ok {
				f.add([]string{"annotations", "labels"}[n], "%s has no effect on a %s; write it on its pod template or its namespace", stowage.ModeKey, kind).Fix = "move it to spec.template.metadata, or label the namespace"
			}
		}
	}
	f.strategy(own.Annotations)
	if template != nil {
		f.field = "spec.template.metadata"
		f.mode(*template)
		f.strategy(template.Annotations)
		f.both(own.Annotations, template.Annotations)
	}
	return f.found
}

// ofJob finds a strategy on a Job or a CronJob: see [matchOf].
func (f *findings) ofJob(kind string, own feature.Metadata, template *feature.Metadata) {
	help := map[string]string{"Job": "name the Job in a PodDistributor", "CronJob": "remove it: the pods of a CronJob are not divided"}[kind]
	for _, m := range []*feature.Metadata{&own, template} {
		if m == nil {
			continue
		}
		for _, key := range strategyKeys {
			if _, ok := m.Annotations[key]; ok {
				f.add("annotations", "%s has no effect on a %s", key, kind).Fix = help
				return
			}
		}
	}
}

// both finds that an object and its pod template have a strategy each.
func (f *findings) both(own, template map[string]string) {
	one, is := StrategyText(template)
	if other, both := StrategyText(own); is && both && one != other {
		f.add("annotations", "the strategy of the pod template wins over another one in metadata.annotations").Fix = "remove one of the two"
	}
}

// prefixes are those of Stowage's own keys, and knownKeys what of these it reads or writes.
var (
	prefixes = []string{"stowage.dev/", "flexdaemonsets.xai/"}
	// writtenKeys are those that people write.
	writtenKeys = []string{
		stowage.ModeKey, stowage.FailurePolicyLabel, stowage.GateLabel, stowage.PeerPodsLimitAnnotation, stowage.PeerPodsCapacityAnnotation,
		stowage.RebalanceAnnotation, stowage.RepairAnnotation, stowage.SpillAnnotation, stowage.AcrossAnnotation, flexdaemonsets.TemplateAnnotation,
	}
	knownKeys = append([]string{
		stowage.CheckAnnotation, stowage.OriginalResourcesAnnotation, stowage.PeerPodLabel, stowage.PoolLabel, stowage.SeatLabel, stowage.DomainLabel,
		stowage.ClaimAnnotation, stowage.MinDomainsAnnotation, stowage.StandingAnnotation, stowage.BlocklistAnnotation, stowage.SizedByLabel,
		stowage.DeclaredResourcesAnnotation, stowage.NodeClassLabel,
	}, writtenKeys...)
)

// unknown finds keys with a prefix of Stowage's that it does not know.
func (f *findings) unknown(m feature.Metadata) {
	left := mostUnknown
	for n, list := range []map[string]string{m.Annotations, m.Labels} {
		for _, key := range slices.Sorted(maps.Keys(list)) {
			if left == 0 || !ours(key) || slices.Contains(knownKeys, key) {
				continue
			}
			left--
			f.add([]string{"annotations", "labels"}[n], "%s is no key that Stowage knows, and has no effect%s", key, meant(key))
		}
	}
}

// ours reports whether a key has a prefix of Stowage's.
func ours(key string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// mostMistakes is how many mistakes a key may have, at most, to be taken for another one, and mostUnknown how many unknown keys are told.
const (
	mostMistakes = 3
	mostUnknown  = 8
)

// meant asks whether a key is another one, misspelt.
func meant(key string) string {
	least, nearest := mostMistakes+1, ""
	for _, known := range writtenKeys {
		if len(key) > len(known)+mostMistakes {
			continue // it is not compared, because keys of any length may come
		}
		if d := distance(key, known); d < least {
			least, nearest = d, "; is "+known+" meant?"
		}
	}
	return nearest
}

// Check returns what [Check] does, and whether a PodDistributor divides the pods of a workload that has a strategy in annotations.
func (f *Finder) Check(ctx context.Context, w world.Object, own feature.Metadata, template *feature.Metadata) ([]Finding, error) {
	found := Check(w.Kind, own, template)
	_, written := StrategyText(own.Annotations)
	field := "metadata.annotations"
	if template != nil {
		if _, ok := StrategyText(template.Annotations); ok {
			written, field = true, "spec.template.metadata.annotations"
		}
	}
	if !written || w.Kind == "Namespace" {
		return found, nil
	}
	d, err := f.World.PodDistributor(ctx, w.Namespace, []world.Ref{w.Ref})
	if err != nil || d == nil {
		return found, err
	}
	// Whoever writes the workload, or reaches the port, may not be allowed to read PodDistributors.
	const text = "the strategy is ignored, because a PodDistributor divides the pods of this workload"
	return append(found, Finding{Field: field, Text: text, Fix: fmt.Sprintf("remove the strategy in %s, or delete the PodDistributor", field)}), nil
}

// Beside says that a strategy in annotations is ignored, to somebody who may read the PodDistributor.
func Beside(d *versprei.PodDistributor) string {
	return fmt.Sprintf("the strategy is ignored, because PodDistributor %s divides the pods of this workload", d.Name)
}

// Mentions reports whether annotations or labels have something that [Check] looks at.
func Mentions(m map[string]string) bool {
	for key := range m {
		if ours(key) || slices.Contains(strategyKeys, key) {
			return true
		}
	}
	return false
}

type findings struct {
	field string
	found []Finding
}

func (f *findings) add(part, format string, args ...any) *Finding {
	field := f.field + "." + part
	f.found = append(f.found, Finding{Field: field, Text: fmt.Sprintf(format, args...), Fix: "correct or remove it in " + field})
	return &f.found[len(f.found)-1]
}

// mode checks the mode, which is in annotations before labels.
func (f *findings) mode(m feature.Metadata) {
	part, value, ok := "annotations", "", false
	if value, ok = m.Annotations[stowage.ModeKey]; !ok {
		part = "labels"
		value, ok = m.Labels[stowage.ModeKey]
	}
	if ok && !slices.ContainsFunc([]stowage.Mode{stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff}, func(mode stowage.Mode) bool { return strings.EqualFold(value, string(mode)) }) {
		f.add(part, "%s is %q and is taken as %s; it must be %s, %s or %s", stowage.ModeKey, value, stowage.ModeAudit, stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff)
	}
}

// failurePolicy checks the label by which a namespace asks for exactness at the price of a dependency.
func (f *findings) failurePolicy(m feature.Metadata) {
	if v, ok := m.Labels[stowage.FailurePolicyLabel]; ok && v != "Fail" && v != "Ignore" {
		f.add("labels", "%s is %q and has no effect; it must be Fail or Ignore", stowage.FailurePolicyLabel, v)
	}
	if _, ok := m.Annotations[stowage.FailurePolicyLabel]; ok {
		f.add("annotations", "%s has no effect as an annotation; write it as a label", stowage.FailurePolicyLabel).Fix = "move it to metadata.labels"
	}
}

// strategyKeys are the annotations that give a strategy.
var strategyKeys = []string{stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, stowage.SpreadStrategyAliasAnnotation}

// strategy checks a strategy in annotations, and the settings beside it.
func (f *findings) strategy(annotations map[string]string) {
	_, hasStrategy := annotations[stowage.SpreadStrategyAnnotation]
	alias, hasAlias := annotations[stowage.SpreadStrategyAliasAnnotation]
	value, hasSwitch := annotations[stowage.SpreadSwitchAnnotation]
	on, err := strconv.ParseBool(value)
	if hasSwitch && err != nil {
		f.add("annotations", "%s is %q; expected 'true' or 'false'", stowage.SpreadSwitchAnnotation, value)
	}
	switch {
	case hasStrategy && !hasSwitch && !hasAlias:
		f.add("annotations", "%s has no effect without %s: 'true'", stowage.SpreadStrategyAnnotation, stowage.SpreadSwitchAnnotation).Fix =
			fmt.Sprintf("add %s: 'true' to %s.annotations, or remove %s there", stowage.SpreadSwitchAnnotation, f.field, stowage.SpreadStrategyAnnotation)
	case on && !hasStrategy && !hasAlias:
		f.add("annotations", "%s has no effect without %s", stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation).Fix =
			fmt.Sprintf("add %s to %s.annotations, or remove %s there", stowage.SpreadStrategyAnnotation, f.field, stowage.SpreadSwitchAnnotation)
	case on && hasStrategy && hasAlias && alias != annotations[stowage.SpreadStrategyAnnotation]:
		f.add("annotations", "%s differs from %s and is ignored", stowage.SpreadStrategyAliasAnnotation, stowage.SpreadStrategyAnnotation)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if text := ignored(key, annotations[key]); text != "" {
			f.add("annotations", "%s", text)
		}
	}
	text, ok := StrategyText(annotations)
	if !ok {
		return
	}
	key := stowage.SpreadStrategyAnnotation
	if !on || !hasStrategy {
		key = stowage.SpreadStrategyAliasAnnotation
	}
	f.text(key, text, annotations[stowage.AcrossAnnotation])
}

// text finds what is wrong with a strategy, which an annotation has, over domains.
func (f *findings) text(key, text, over string) {
	strategy, err := sequence.Parse(text)
	wrong := key
	if err == nil { // the cause alone, because each finding names the annotation
		_, err = compileText(text, over)
		wrong, err = stowage.AcrossAnnotation, errors.Unwrap(err)
	}
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			f.found = append(f.found, Finding{Field: f.field + ".annotations", Text: fmt.Sprintf("%s: %s", wrong, line), Invalid: true})
		}
		return
	}
	for i := range strategy.Len() {
		pool := strategy.Pool(i)
		if pool.Base == 0 && pool.Weight == 0 {
			f.add("annotations", "%s: pool %d has no base and no weight, so it never gets a pod", key, i)
		}
		for _, label := range pool.Nodes().Keys() {
			if word := misspelt(label); word != "" {
				f.add("annotations", "%s: pool %d: %s is taken as a node label; is %s meant?", key, i, label, word)
			}
		}
	}
}

// repairs are the values of the annotation of repair.
var repairs = []stowage.Repair{stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate}

// settingOf returns what checks a setting that stands beside a strategy, or nil for another annotation. The check returns what a
// value must be, or "" if it is that.
func settingOf(key string) func(value string) string {
	switch key {
	case stowage.RebalanceAnnotation:
		return func(v string) string {
			if r := versprei.Rebalance(v); r == versprei.RebalanceNever || r == versprei.RebalanceEvict {
				return ""
			}
			return fmt.Sprintf("%s or %s", versprei.RebalanceNever, versprei.RebalanceEvict)
		}
	case stowage.RepairAnnotation:
		return func(v string) string {
			if slices.Contains(repairs, stowage.Repair(v)) {
				return ""
			}
			return fmt.Sprintf("%s, %s or %s", stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate)
		}
	case stowage.AcrossAnnotation:
		return func(v string) string {
			if _, err := sequence.ParseAcross(v); err != nil {
				return "a label key and its values, such as topology.kubernetes.io/zone: zone-a, zone-b"
			}
			return ""
		}
	case stowage.SpillAnnotation:
		return func(v string) string {
			if _, err := parseSpill(v); err != nil {
				return "a duration from 10s to 1h, such as 2m"
			}
			return ""
		}
	}
	return nil
}

// ignored says that the value of a setting is ignored, or "" if it is not.
func ignored(key, value string) string {
	check := settingOf(key)
	if check == nil {
		return ""
	}
	if must := check(value); must != "" {
		return fmt.Sprintf("%s is %q and is ignored; it must be %s", key, value, must)
	}
	return ""
}

// misspelt returns the word of a strategy that a label key looks like, or "". A key with a domain or a dash is a label.
func misspelt(key string) string {
	for word, most := range map[string]int{"weight": 2, "base": 1} {
		if len(key) > len(word)+most {
			continue // it is not compared, because keys may be long
		}
		if distance(strings.ToLower(key), word) <= most {
			return word
		}
	}
	return ""
}

// distance is how many mistakes make one word of another. A mistake is a letter that is wrong, missing, or too much, or swapped with
// its neighbour (optimal string alignment distance).
func distance(a, b string) int {
	// The last two rows of the table, and the one that is made: rows[2][j] is how many mistakes make b[:j] of a[:i]. Keys of strangers may be long.
	var rows [3][]int
	for n := range rows {
		rows[n] = make([]int, len(b)+1)
	}
	for j := range rows[2] {
		rows[2][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[2][j] = min(rows[1][j]+1, rows[2][j-1]+1, rows[1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[2][j] = min(rows[2][j], rows[0][j-2]+1)
			}
		}
	}
	return rows[2][len(b)]
}
