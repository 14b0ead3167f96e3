// Package migrate makes policies of Stowage from the settings of other schedulers. It is pure.
package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// What Datadog's Cluster Agent reads of workloads, and of its own environment (the README of pkg/clusteragent/autoscaling/cluster/spot in
// github.com/DataDog/datadog-agent, 7.79 and later).
const (
	datadogPrefix  = "autoscaling.datadoghq.com/"
	datadogEnabled = datadogPrefix + "spot-enabled"
	datadogConfig  = datadogPrefix + "spot-config"
	datadogEnv     = "DD_AUTOSCALING_CLUSTER_SPOT_"
)

// Label is a node label.
type Label struct {
	Key, Value string
	Absent     bool // the nodes are those that lack the label
}

// Options are what the settings of the other scheduler do not say.
type Options struct {
	OnDemand, Spot Label // of the nodes
	Namespace      string
}

// Policy is an object to write, with what its reader must know.
type Policy struct {
	Object any
	Notes  []string
}

// datadogSpot is the settings of one workload, or the default ones.
type datadogSpot struct {
	Percentage          *int32 `json:"percentage"`
	MinOnDemandReplicas *int32 `json:"minOnDemandReplicas"`
	timeout             time.Duration
}

// Datadog returns the policies that stand for the settings of Datadog's spot scheduling. They are a ClusterSpreadPolicy for its
// defaults, and a PodDistributor for each workload that has its own settings. It returns an error for settings that it does not understand, joined.
func Datadog(objects []*unstructured.Unstructured, o Options) ([]Policy, error) {
	defaults, notes, err := datadogAgent(objects)
	errs := []error{err}
	var own []Policy
	var others []string // workloads with the defaults
	seen := map[string]bool{}
	for _, u := range objects {
		if u.GetLabels()[datadogEnabled] != "true" {
			continue
		}
		if u.GetNamespace() == "" {
			u.SetNamespace(o.Namespace)
		}
		name := show(u)
		if err := errors.Join(checkIdentity(u), checkFirst(seen, u)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		settings, lines, err := datadogWorkload(u, defaults)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		case settings == nil && defaults == nil:
			errs = append(errs, fmt.Errorf("%s: it has no settings of its own, and the input has no DatadogAgent with the default ones; add it to the input", name))
		case settings == nil:
			if labels, _, _ := unstructured.NestedStringMap(u.Object, "spec", "template", "metadata", "labels"); labels[datadogEnabled] != "true" {
				others = append(others, name)
			}
		default:
			own = append(own, Policy{o.distributor(u, settings), lines})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out []Policy
	if defaults != nil {
		if len(others) > 0 {
			notes = append(notes, fmt.Sprintf("a policy selects by the labels of pods: add %s: \"true\" to spec.template.metadata.labels of %s", datadogEnabled, strings.Join(others, ", ")))
		}
		out = append(out, Policy{o.clusterPolicy(defaults), append(notes, "it is in Audit, and changes nothing before you write Enforce")})
	}
	if len(out)+len(own) == 0 {
		return nil, fmt.Errorf("no object of the input has the label %s: \"true\", and none is a DatadogAgent", datadogEnabled)
	}
	return append(out, own...), nil
}

// datadogAgent reads the default settings. There is one ClusterSpreadPolicy for them, so there may be one DatadogAgent.
func datadogAgent(objects []*unstructured.Unstructured) (*datadogSpot, []string, error) {
	var agents []*unstructured.Unstructured
	var names []string
	for _, u := range objects {
		if u.GetKind() == "DatadogAgent" {
			agents, names = append(agents, u), append(names, plain(strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/")))
		}
	}
	switch len(agents) {
	case 0:
		return nil, nil, nil
	case 1:
		return datadogDefaults(agents[0])
	}
	return &datadogSpot{}, nil, fmt.Errorf("the input has %d DatadogAgents (%s), and each may have other default settings; leave one in the input", len(agents), strings.Join(names, ", "))
}

// datadogDefaults reads the environment of the Cluster Agent.
func datadogDefaults(u *unstructured.Unstructured) (*datadogSpot, []string, error) {
	env, _, err := unstructured.NestedSlice(u.Object, "spec", "override", "clusterAgent", "env")
	if err != nil {
		return nil, nil, fmt.Errorf("DatadogAgent %s: %w", plain(u.GetName()), err)
	}
	d := &datadogSpot{}
	var notes []string
	var errs []error
	for i, item := range env {
		v, _ := item.(map[string]any)
		name, _ := v["name"].(string)
		value, ok := v["value"].(string)
		key, ours := strings.CutPrefix(name, datadogEnv)
		if !ours {
			continue
		}
		wrong := func(err error) {
			errs = append(errs, fmt.Errorf("DatadogAgent %s: spec.override.clusterAgent.env[%d] (%s): %w", plain(u.GetName()), i, plain(name), err))
		}
		if !ok {
			wrong(errors.New("the value is not written there"))
			continue
		}
		switch key {
		case "ENABLED":
		case "PERCENTAGE":
			d.Percentage, err = number(value, 100)
		case "MIN_ON_DEMAND_REPLICAS":
			d.MinOnDemandReplicas, err = number(value, 1<<31-1)
		case "SCHEDULE_TIMEOUT":
			d.timeout, err = time.ParseDuration(value)
		case "FALLBACK_DURATION":
			notes = append(notes, name+" has no counterpart: Stowage tries a pool without room again by itself (--probe-interval)")
		case "REBALANCE_STABILIZATION_PERIOD":
			notes = append(notes, name+" has no counterpart of its own: --rebalance-cooldown holds for all workloads")
		default:
			notes = append(notes, plain(name)+" has no counterpart")
		}
		if err != nil {
			wrong(err)
			err = nil
		}
	}
	if d.Percentage == nil {
		errs = append(errs, fmt.Errorf("DatadogAgent %s: %sPERCENTAGE is not in spec.override.clusterAgent.env", plain(u.GetName()), datadogEnv))
	}
	return d, append(notes, d.notes()...), errors.Join(errs...)
}

// notes say what base and spill mean instead.
func (d *datadogSpot) notes() (out []string) {
	if ptr.Deref(d.MinOnDemandReplicas, 0) > 0 {
		out = append(out, "base comes before the ratio: the percentage is of the pods beyond it, where Datadog's minimum is a part of all pods")
	}
	if d.timeout > 0 && d.after() != d.timeout {
		out = append(out, fmt.Sprintf("the timeout of %s becomes %s: spill.after is 10s to 1h", d.timeout, d.after()))
	}
	return out
}

// datadogWorkload reads the settings of a workload, over the default ones. It returns nil if the workload has none of its own.
func datadogWorkload(u *unstructured.Unstructured, defaults *datadogSpot) (*datadogSpot, []string, error) {
	d, found := &datadogSpot{}, false
	if defaults != nil {
		*d = *defaults
	}
	var notes []string
	annotations := u.GetAnnotations()
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		var err error
		switch {
		case !strings.HasPrefix(key, datadogPrefix+"spot-"):
		case key == datadogConfig:
			found, err = true, d.decode(annotations[key])
		case key == datadogPrefix+"spot-percentage":
			found = true
			d.Percentage, err = number(annotations[key], 100)
		case key == datadogPrefix+"spot-min-on-demand-replicas":
			found = true
			d.MinOnDemandReplicas, err = number(annotations[key], 1<<31-1)
		default:
			notes = append(notes, "the annotation "+plain(key)+" has no counterpart")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("metadata.annotations[%s]: %w", plain(key), err)
		}
	}
	if !found {
		return nil, nil, nil
	}
	if d.Percentage == nil {
		return nil, nil, errors.New("it has no percentage, and the input has no DatadogAgent with the default one")
	}
	return d, append(notes, d.notes()...), nil
}

// decode reads the settings of an annotation in JSON over those that there are. It keeps the default ones as they are.
func (d *datadogSpot) decode(text string) error {
	if d.Percentage != nil {
		d.Percentage = new(*d.Percentage)
	}
	if d.MinOnDemandReplicas != nil {
		d.MinOnDemandReplicas = new(*d.MinOnDemandReplicas)
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(d); err != nil {
		return err
	}
	if p := ptr.Deref(d.Percentage, 0); p < 0 || p > 100 || ptr.Deref(d.MinOnDemandReplicas, 0) < 0 {
		return errors.New("percentage is 0 to 100, and minOnDemandReplicas is 0 or more")
	}
	return nil
}

func number(text string, most int64) (*int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 || n > most {
		return nil, fmt.Errorf("%q is not a number from 0 to %d", text, most)
	}
	return new(int32(n)), nil
}

// after is how long pods wait for spot nodes.
func (d *datadogSpot) after() time.Duration {
	if d.timeout == 0 {
		return time.Minute
	}
	return min(max(d.timeout, 10*time.Second), time.Hour)
}

// parts are base, weights and overflow of the two pools. A pool on demand without a weight takes pods when spot has no room.
func (d *datadogSpot) parts() (base, onDemand, spot, overflow int32) {
	base, spot = ptr.Deref(d.MinOnDemandReplicas, 0), *d.Percentage
	if onDemand = 100 - spot; onDemand == 0 {
		overflow = 1
	}
	return base, onDemand, spot, overflow
}

func (o *Options) toleration() []versprei.Toleration {
	return []versprei.Toleration{{Key: o.Spot.Key, Operator: string(corev1.TolerationOpEqual), Value: o.Spot.Value, Effect: string(corev1.TaintEffectNoSchedule)}}
}

func (l Label) selector() map[string]versprei.LabelValue {
	if l.Absent {
		return nil
	}
	return map[string]versprei.LabelValue{l.Key: versprei.LabelValue(l.Value)}
}

// expressions are what a pool of the nodes has beside [Label.selector].
func (l Label) expressions() []versprei.NodeRequirement {
	if !l.Absent {
		return nil
	}
	return []versprei.NodeRequirement{{Key: l.Key, Operator: corev1.NodeSelectorOpDoesNotExist}}
}

// clusterPolicy is the policy of all workloads with the default settings.
func (o *Options) clusterPolicy(d *datadogSpot) *stowage.ClusterSpreadPolicy {
	base, onDemand, spot, overflow := d.parts()
	return &stowage.ClusterSpreadPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: stowage.GroupVersion.String(), Kind: "ClusterSpreadPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: "datadog-spot"},
		Spec: stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: stowage.SpreadPolicySpec{
			Mode:     stowage.PolicyAudit,
			Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{datadogEnabled: "true"}},
			Kinds:    []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}},
			Pools: []stowage.PolicyPool{
				{Name: "on-demand", NodeSelector: o.OnDemand.selector(), MatchExpressions: o.OnDemand.expressions(), Base: base, Weight: onDemand, Overflow: overflow},
				{Name: "spot", NodeSelector: o.Spot.selector(), Weight: spot, Spill: &versprei.Spill{After: d.after().String()}, Tolerations: o.toleration()},
			},
			Enforcement: versprei.EnforcementRequired, Repair: stowage.RepairAdopt, Rebalance: versprei.RebalanceEvict,
		}},
	}
}

// distributor is the policy of one workload with settings of its own.
func (o *Options) distributor(u *unstructured.Unstructured, d *datadogSpot) *versprei.PodDistributor {
	base, onDemand, spot, overflow := d.parts()
	return &versprei.PodDistributor{
		TypeMeta:   metav1.TypeMeta{APIVersion: versprei.GroupVersion.String(), Kind: "PodDistributor"},
		ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: distributorName(u.GetName(), u.GetKind())},
		Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName()},
			Distribution: []versprei.Pool{
				{Name: "on-demand", NodeLabel: o.OnDemand.selector(), MatchExpressions: o.OnDemand.expressions(), Base: base, Weight: onDemand, Overflow: overflow},
				{Name: "spot", NodeLabel: o.Spot.selector(), Weight: spot, Spill: &versprei.Spill{After: d.after().String()}, Tolerations: o.toleration()},
			},
			Enforcement: versprei.EnforcementRequired, Rebalance: versprei.RebalanceEvict,
		},
	}
}
