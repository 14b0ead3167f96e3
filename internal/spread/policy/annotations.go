package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// annotate reads the settings that stand in annotations beside a strategy: of the pod template first, then of the uppermost
// workload, which may be nil.
func (c *Compiled) annotate(template map[string]string, root *world.Workload) {
	setting := func(key string) (string, bool) { return setting(template, root, key) }
	note := func(key, value string) {
		if text := ignored(key, value); text != "" {
			c.Warnings = append(c.Warnings, text)
		}
	}
	if c.Policy != nil {
		c.lower(setting)
		return
	}
	if v, ok := setting(stowage.RebalanceAnnotation); ok && c.Distributor == nil {
		c.Evict = versprei.Rebalance(v) == versprei.RebalanceEvict
		note(stowage.RebalanceAnnotation, v)
	}
	if v, ok := setting(stowage.AcrossAnnotation); ok && c.Distributor == nil {
		note(stowage.AcrossAnnotation, v)
	}
	if v, ok := setting(stowage.SpillAnnotation); ok && c.Distributor == nil && c.Written != nil {
		if after, err := parseSpill(v); err == nil {
			c.Spill = slices.Repeat([]spill.Rule{{After: after}}, c.Len())
		}
		note(stowage.SpillAnnotation, v)
	}
	if v, ok := setting(stowage.RepairAnnotation); ok {
		if note(stowage.RepairAnnotation, v); slices.Contains(repairs, stowage.Repair(v)) {
			c.Repair = stowage.Repair(v)
		}
	}
}

// setting returns a setting in annotations: of the pod template or, if it has none, of the uppermost workload, which may be nil.
func setting(template map[string]string, root *world.Workload, key string) (string, bool) {
	if v, ok := template[key]; ok {
		return v, true
	}
	if root == nil {
		return "", false
	}
	v, ok := root.Annotations[key]
	return v, ok
}

// lower reads the settings that stand in annotations of a workload with a policy. They may only lower what the policy asks for.
func (c *Compiled) lower(setting func(key string) (string, bool)) {
	for _, key := range []string{stowage.RebalanceAnnotation, stowage.SpillAnnotation, stowage.AcrossAnnotation} {
		if _, ok := setting(key); ok {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s has no effect, because %s divides the pods of this workload", key, c.Told()))
		}
	}
	v, ok := setting(stowage.RepairAnnotation)
	if !ok {
		return
	}
	switch level := slices.Index(repairs, stowage.Repair(v)); {
	case level < 0:
		c.Warnings = append(c.Warnings, ignored(stowage.RepairAnnotation, v))
	case level > slices.Index(repairs, c.Repair):
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s is %s and is ignored: %s has repair %s, which a workload may only lower", stowage.RepairAnnotation, v, c.Told(), c.Repair))
	default:
		c.Repair, c.EvictEarly = repairs[level], false
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
