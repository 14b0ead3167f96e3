package preview

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// nodes are those that the pods of a DaemonSet run on.
func (w *shape) nodes() (out []*machine) {
	for i := range machines {
		if m := &machines[i]; (w.selector == nil || m.ssd) && (w.tolerates || !m.tainted) {
			out = append(out, m)
		}
	}
	return out
}

// order is the pool of each pod, or -1: first the bases, and then the weights.
func (w *shape) order(count int) []int {
	var out []int
	if w.kind == "Job" || w.pinned {
		return slices.Repeat([]int{-1}, count)
	}
	for i, p := range w.pools {
		out = append(out, slices.Repeat([]int{i}, int(p.base))...)
	}
	given := make([]int64, len(w.pools))
	for n := int64(1); len(out) < count; n++ {
		next := w.next(n, given)
		if out = append(out, next); next >= 0 {
			given[next]++
		}
	}
	return out[:count]
}

// next is the pool of the n-th pod after the bases, of k pools with a weight. So that none is ever more than 1 - 1/(2k-2) pods from its share,
// it is one that is at least 1/(2k-2) pods below its share, and of those the one that would first be too far below it, the last one in a tie.
// Of two pools, that is the one that is furthest below its share. (Tijdeman, see package sequence.)
func (w *shape) next(n int64, given []int64) int {
	var sum, k int64
	for _, p := range w.pools {
		if sum += p.weight; p.weight > 0 {
			k++
		}
	}
	least := big.NewRat(1, max(1, 2*k-2))
	best, first := -1, new(big.Rat)
	for i, p := range w.pools {
		if p.weight == 0 {
			continue
		}
		below := new(big.Rat).Sub(big.NewRat(n*p.weight, sum), big.NewRat(given[i], 1))
		late := new(big.Rat).Sub(big.NewRat(given[i]+1, 1), least)
		late.Mul(late, big.NewRat(sum, p.weight))
		if (k == 1 || below.Cmp(least) >= 0) && (best < 0 || late.Cmp(first) <= 0) {
			best, first = i, late
		}
	}
	return best
}

// wanted is what a pod should be.
type wanted struct {
	*shape
	ordinal, pool, seat int
	node                *machine
}

// asked are what the containers ask for, in thousandths, the init containers first. What has a limit only requests that.
func (w *wanted) asked() (requests, limits []map[string]int64) {
	for _, b := range slices.Concat(w.init, w.main) {
		r, l := map[string]int64{}, map[string]int64{}
		for name, of := range b.limits {
			r[name], l[name] = of.milli, of.milli
		}
		for name, of := range b.requests {
			r[name] = of.milli
		}
		requests, limits = append(requests, r), append(limits, l)
	}
	if w.node != nil {
		for name := range w.template.percent {
			w.size(name, requests, limits)
		}
	}
	return requests, limits
}

// size gives the containers their parts of a share of the node.
func (w *wanted) size(name string, requests, limits []map[string]int64) {
	unit := int64(1000) // bytes
	if name == "cpu" {
		unit = 1
	}
	total := w.node.allocatable[name].milli / unit * w.template.percent[name] / 100
	if least, ok := w.template.min[name]; ok {
		total = max(total, least.milli/unit)
	}
	if most, ok := w.template.max[name]; ok {
		total = min(total, most.milli/unit)
	}
	var weights []int64
	var of []int
	for i := range requests {
		if i >= len(w.init) || w.init[i].sidecar {
			weight := int64(-1)
			if r, ok := requests[i][name]; ok {
				weight = (r + unit - 1) / unit
			}
			weights, of = append(weights, weight), append(of, i)
		}
	}
	for n, part := range parts(total, weights) {
		i := of[n]
		requests[i][name] = part * unit
		limit, ok := limits[i][name]
		switch {
		case !w.template.noLimits:
			limits[i][name] = part * unit
		case ok && limit < part*unit:
			delete(limits[i], name)
		}
	}
	left := total * unit
	for i := range w.init {
		if w.init[i].sidecar {
			left -= requests[i][name]
			continue
		}
		if r, ok := requests[i][name]; ok {
			requests[i][name] = min(r, left)
		}
		if l, ok := limits[i][name]; ok && !w.template.noLimits {
			limits[i][name] = min(l, left)
		}
	}
}

// parts divides a total by weights: rounded down, and what is left one by one to the largest weight for each unit that it would then
// make. A weight of -1 is an even share.
func parts(total int64, weights []int64) []int64 {
	var sum, some int64
	for _, w := range weights {
		if w >= 0 {
			sum, some = sum+w, some+1
		}
	}
	scaled, all := make([]int64, len(weights)), int64(0)
	for i, w := range weights {
		switch {
		case some == 0:
			scaled[i] = 1
		case w < 0:
			scaled[i] = sum
		default:
			scaled[i] = w * some
		}
		all += scaled[i]
	}
	times := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	out, left := make([]int64, len(weights)), total
	for i, w := range scaled {
		out[i] = new(big.Int).Div(times(total, w), big.NewInt(all)).Int64()
		left -= out[i]
	}
	for ; left > 0; left-- {
		best := 0
		for i := range scaled {
			if times(scaled[i], out[best]+1).Cmp(times(scaled[best], out[i]+1)) > 0 {
				best = i
			}
		}
		out[best]++
	}
	return out
}

// spec is the spec of the pod: that of the manifest, and what the controllers, the RuntimeClass and Stowage make of it.
func (w *wanted) spec(t *testing.T) corev1.PodSpec {
	t.Helper()
	data, err := json.Marshal(w.pod)
	if err != nil {
		t.Fatal(err)
	}
	var spec corev1.PodSpec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	if overhead := overheads[w.class]; overhead != nil {
		spec.Overhead = corev1.ResourceList{}
		for name, of := range overhead {
			spec.Overhead[corev1.ResourceName(name)] = *resource.NewMilliQuantity(of.milli, resource.DecimalSI)
		}
	}
	selectors := []map[string]string{classSelector[w.class]}
	if w.pool >= 0 {
		selectors = append(selectors, w.pools[w.pool].labels)
	}
	for _, selector := range selectors {
		for key, value := range selector {
			if spec.NodeSelector == nil {
				spec.NodeSelector = map[string]string{}
			}
			spec.NodeSelector[key] = value
		}
	}
	if w.kind == "StatefulSet" {
		spec.Hostname, spec.Subdomain = fmt.Sprint(w.name, "-", w.ordinal), w.name
	}
	if w.node != nil {
		w.ofDaemon(&spec)
	}
	w.resources(&spec)
	return spec
}

// ofDaemon ties a pod to its node as the DaemonSet controller does.
func (w *wanted) ofDaemon(spec *corev1.PodSpec) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{w.node.name}}}},
	}}
	taints := []string{"not-ready NoExecute", "unreachable NoExecute", "disk-pressure NoSchedule", "memory-pressure NoSchedule", "pid-pressure NoSchedule", "unschedulable NoSchedule"}
	if spec.HostNetwork {
		taints = append(taints, "network-unavailable NoSchedule")
	}
	for _, taint := range taints {
		key, effect, _ := strings.Cut(taint, " ")
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: "node.kubernetes.io/" + key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)})
	}
}

// resources writes the resource entries: those of a peer pod are gone, and it asks for one VM.
func (w *wanted) resources(spec *corev1.PodSpec) {
	requests, limits := w.asked()
	for i := range requests {
		list, at := spec.InitContainers, i
		if i >= len(w.init) {
			list, at = spec.Containers, i-len(w.init)
		}
		list[at].Resources = corev1.ResourceRequirements{}
		if w.class != "kata-remote" {
			list[at].Resources = corev1.ResourceRequirements{Requests: quantities(requests[i]), Limits: quantities(limits[i])}
		}
	}
	if w.class == "kata-remote" {
		one := quantities(map[string]int64{"kata.peerpods.io/vm": 1000})
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	}
}

func quantities(of map[string]int64) corev1.ResourceList {
	var out corev1.ResourceList
	for name, milli := range of {
		if out == nil {
			out = corev1.ResourceList{}
		}
		out[corev1.ResourceName(name)] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	return out
}

// marks are the labels and annotations of [marksOf].
func (w *wanted) marks() map[string]string {
	out := map[string]string{}
	if w.pool >= 0 {
		out[stowage.PoolLabel], out[stowage.SeatLabel] = strconv.Itoa(w.pool), strconv.Itoa(w.seat)
		if w.kind != "StatefulSet" {
			out[corev1.PodDeletionCost] = strconv.Itoa(10_000_000 - w.ordinal - 1)
		}
	}
	if w.node != nil {
		out[stowage.SizedByLabel] = w.template.name
	}
	if w.class == "kata-remote" {
		out[stowage.PeerPodLabel] = "true"
		maps.Copy(out, w.vm())
	}
	return out
}

// vm is the size of a peer pod's VM: the sum of the limits, or of the requests where there is no limit, rounded up once.
func (w *wanted) vm() map[string]string {
	sum := map[string]int64{}
	requests, limits := w.asked()
	for i := range requests {
		counted := maps.Clone(requests[i])
		maps.Copy(counted, limits[i])
		for name, milli := range counted {
			sum[name] += milli
		}
	}
	out := map[string]string{}
	for annotation, of := range map[string]struct {
		name string
		unit int64
	}{
		"default_vcpus": {"cpu", 1000}, "default_memory": {"memory", 1000 << 20}, "default_gpus": {"nvidia.com/gpu", 1000},
	} {
		if n := (sum[of.name] + of.unit - 1) / of.unit; n > 0 {
			out["io.katacontainers.config.hypervisor."+annotation] = strconv.FormatInt(n, 10)
		}
	}
	return out
}
