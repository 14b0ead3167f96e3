package impact

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Version is the API version of a report. A field that is renamed, or that means something else, makes another one.
const Version = "cli.stowage.dev/v1alpha1"

// Report says what a change would do.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // Impact
	// Change says that something would be changed. Otherwise the report is about the next rollout of each workload, as things are.
	Change bool `json:"change"`
	// Cluster sums up the workloads below.
	Cluster Totals `json:"cluster"`
	// Policies are what divides pods after the change, or divided them before.
	Policies []Policy `json:"policies"`
	Pools    []Pool   `json:"pools"`
	// Workloads are those for which the change changes something, those first for which it changes most.
	Workloads  []Workload  `json:"workloads"`
	DaemonSets []DaemonSet `json:"daemonSets"`
	VMs        *VMs        `json:"vms,omitempty"`
	Cost       *Cost       `json:"cost,omitempty"`
	Warnings   []string    `json:"warnings,omitempty"`

	others []Workload // with a policy; the change does not concern them
}

// Counts are pods. Those up to Unscheduled are counted now, by where the pods are and what their workload is to have.
type Counts struct {
	Pods int64 `json:"pods"` // that there are
	// InPlace are pods in a pool that is to have them, and InOtherPool those in one that is to have fewer. InOtherDomain are those of InPlace
	// in a domain of the pool that is to have fewer. Outside are pods on nodes of no pool. Unscheduled have no node now.
	InPlace       int64 `json:"inPlace"`
	InOtherPool   int64 `json:"inOtherPool"`
	InOtherDomain int64 `json:"inOtherDomain"`
	Outside       int64 `json:"outside"`
	Unscheduled   int64 `json:"unscheduled"`
	// Drained are pods on nodes that the change removes.
	Drained int64 `json:"drained"`
	// Adopted get a seat where they run, without a restart.
	Adopted int64 `json:"adopted"`
	// KeptByVolume are pods whose volumes may be where they run, so that they stay.
	KeptByVolume int64 `json:"keptByVolume"`
	// Evicted are pods that Stowage makes go before the next rollout, at most.
	Evicted int64 `json:"evicted"`
	// Replicas are how many pods there are after the next rollout. Stay is how many places they have where pods are now, and Moved how many
	// pods are in another pool or domain than now.
	Replicas int64 `json:"replicas"`
	Stay     int64 `json:"stay"`
	Moved    int64 `json:"moved"`
	// WithoutSeat are pods after the next rollout that the scheduler places as it likes.
	WithoutSeat int64 `json:"withoutSeat"`
	// Waiting is how many pods find no room on the present nodes after the next rollout, where nothing is known to make nodes. It is an
	// estimate.
	Waiting int64 `json:"waiting"`
}

func (c *Counts) add(o *Counts) {
	c.Pods += o.Pods
	c.InPlace += o.InPlace
	c.InOtherPool += o.InOtherPool
	c.InOtherDomain += o.InOtherDomain
	c.Outside += o.Outside
	c.Unscheduled += o.Unscheduled
	c.Drained += o.Drained
	c.Adopted += o.Adopted
	c.KeptByVolume += o.KeptByVolume
	c.Evicted += o.Evicted
	c.Replicas += o.Replicas
	c.Stay += o.Stay
	c.Moved += o.Moved
	c.WithoutSeat += o.WithoutSeat
	c.Waiting += o.Waiting
}

// Totals are counts over workloads.
type Totals struct {
	// Workloads are those that the change concerns, and Unsure those of them whose counts may come out otherwise.
	Workloads int `json:"workloads"`
	Unsure    int `json:"unsure"`
	// Refused are those whose new pods the API server refuses because of what Stowage would add to them.
	Refused int `json:"refused"`
	Counts
	// OtherWorkloads are those with a policy that the change does not concern, and Drift those of them whose next rollout moves pods anyway.
	OtherWorkloads int `json:"otherWorkloads"`
	Drift          int `json:"drift"`
	// PodsWithoutRoom, NodesLacking and NodesFreed are those of all pools, and nodes of none: see [Estimate].
	PodsWithoutRoom int64 `json:"podsWithoutRoom"`
	NodesLacking    int64 `json:"nodesLacking"`
	NodesFreed      int64 `json:"nodesFreed"`
}

// Policy is a source that divides pods, over all of its workloads.
type Policy struct {
	Source string `json:"source"`
	// Change is added, changed, removed, or empty.
	Change    string `json:"change,omitempty"`
	Workloads int    `json:"workloads"`
	Unsure    int    `json:"unsure"`
	// Unsuitable are workloads that cannot use each of its pools.
	Unsuitable int `json:"unsuitable"`
	Counts
}

// Pool is the nodes with some labels, over the workloads that the change concerns.
type Pool struct {
	Name   string `json:"name"`
	Labels string `json:"labels"`
	Nodes  int    `json:"nodes"`
	// Now and Then are the pods in the pool, now and after the next rollout.
	Now  int64 `json:"now"`
	Then int64 `json:"then"`
	Estimate
}

// Estimate is what nobody can know for certain: other pods come and go, and nodes are not always packed alike.
type Estimate struct {
	// PodsWithoutRoom are those for which no present node has room, and NodesLacking how many nodes of the shape they fill.
	PodsWithoutRoom int64  `json:"podsWithoutRoom"`
	NodesLacking    int64  `json:"nodesLacking"`
	Shape           string `json:"shape,omitempty"`
	// Autoscaled says that one of Karpenter's NodePools may make such nodes.
	Autoscaled bool `json:"autoscaled"`
	// NodesFreed are nodes on which only pods of DaemonSets would be left.
	NodesFreed int64 `json:"nodesFreed"`
}

// Workload is what a change does to one workload.
type Workload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Other says that the change does not concern it. Such workloads are listed only where all are asked for.
	Other bool `json:"other,omitempty"`
	// Policy is what divides its pods after the change, and Former what does now, if that is something else. Empty is nothing.
	Policy string `json:"policy,omitempty"`
	Former string `json:"former,omitempty"`
	// LeftAlone says why no pod gets a seat though there is a policy.
	LeftAlone string `json:"leftAlone,omitempty"`
	// Unsure says why the counts may come out otherwise. Without such a reason, they are what will be.
	Unsure []string `json:"unsure,omitempty"`
	Counts
	Pools []WorkloadPool `json:"pools,omitempty"`
	// Refused says that the API server refuses its new pods because of what Stowage would add to them, as a dry run has shown, and what to do.
	Refused string `json:"refused,omitempty"`
	// Unsuitable are pools in which its pods cannot run, with the reason.
	Unsuitable []string `json:"unsuitable,omitempty"`
	// Reasons are those of docs/reasons.md that the texts above have, and that the pods would have.
	Reasons []finding.Reason `json:"reasons,omitempty"`
	// VMs are how many peer-pod VMs its pods take, now and after the next rollout, and VM is their size then.
	VMs *VMChange `json:"vms,omitempty"`
}

// WorkloadPool is what a workload has in a pool: now, before its next rollout, and after it.
type WorkloadPool struct {
	Name string `json:"name"`
	// Gives is what the pool gives to new pods, beside their seat.
	Gives   string           `json:"gives,omitempty"`
	Now     int64            `json:"now"`
	Soon    int64            `json:"soon"`
	Then    int64            `json:"then"`
	Domains []WorkloadDomain `json:"domains,omitempty"`
}

// WorkloadDomain is what a workload has in a domain of a pool.
type WorkloadDomain struct {
	Name string `json:"name"`
	Now  int64  `json:"now"`
	Then int64  `json:"then"`
}

// VMChange is VMs of peer pods.
type VMChange struct {
	Now  int64  `json:"now"`
	Then int64  `json:"then"`
	Size string `json:"size,omitempty"`
	// TypesNow and TypesThen are how many VMs of each type there are, and will be.
	TypesNow  map[string]int64 `json:"typesNow,omitempty"`
	TypesThen map[string]int64 `json:"typesThen,omitempty"`
	// PriceNow and PriceThen are what the VMs cost in an hour, by the catalogs before and after the change.
	PriceNow  string `json:"priceNow,omitempty"`
	PriceThen string `json:"priceThen,omitempty"`
	// Offer is what the catalog has for the pods.
	Offer *catalog.Offer `json:"offer,omitempty"`

	priceNow, priceThen int64
}

// changes reports whether there are VMs, and then not as many as now, or of another type.
func (v *VMChange) changes() bool {
	return v != nil && (v.Now != v.Then || !maps.Equal(v.TypesNow, v.TypesThen))
}

// VMs are those of all nodes.
type VMs struct {
	Now      int64 `json:"now"`
	Then     int64 `json:"then"`
	Capacity int64 `json:"capacity"`
	// PriceNow and PriceThen are what they cost in an hour, as far as VMCatalogs have their prices.
	PriceNow  string `json:"priceNow,omitempty"`
	PriceThen string `json:"priceThen,omitempty"`
}

// change reports whether there are VMs, and then not as many as now, or of another price.
func (v *VMs) change() bool {
	return v != nil && (v.Now != v.Then || v.PriceNow != v.PriceThen)
}

// DaemonSet is what a change does to the sizes of a DaemonSet's pods. The sums are of all of its pods.
type DaemonSet struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pods      int    `json:"pods"`
	// Changed are pods that get another size.
	Changed    int    `json:"changed"`
	CPUNow     string `json:"cpuNow"`
	CPUThen    string `json:"cpuThen"`
	MemoryNow  string `json:"memoryNow"`
	MemoryThen string `json:"memoryThen"`
}

// Changes reports whether something would change.
func (r *Report) Changes() bool {
	return r.Cluster.Workloads > 0 || len(r.DaemonSets) > 0 || r.VMs.change()
}

// changes reports whether the next rollout, or Stowage before it, changes something about a workload.
func (w *Workload) changes() bool {
	return w.Moved+w.Evicted+w.Adopted > 0 || w.Replicas != w.Pods && w.Kind != "Job" || w.VMs.changes()
}

// because adds a reason, if there is one.
func (w *Workload) because(reason finding.Reason) {
	if reason != "" && !slices.Contains(w.Reasons, reason) {
		w.Reasons = append(w.Reasons, reason)
	}
}

// ListAll lists the workloads with a policy that the change does not concern, too.
func (r *Report) ListAll() {
	r.Workloads, r.others = append(r.Workloads, r.others...), nil
}

// sort puts what changes most first.
func (r *Report) sort() {
	slices.SortFunc(r.Workloads, func(a, b Workload) int {
		return cmp.Or(
			cmp.Compare(b.Moved+b.Evicted, a.Moved+a.Evicted), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Adopted, a.Adopted),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name),
		)
	})
	slices.SortFunc(r.Policies, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(b.Moved+b.Evicted, a.Moved+a.Evicted), cmp.Compare(a.Source, b.Source))
	})
	slices.SortFunc(r.Pools, func(a, b Pool) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Labels, b.Labels)) })
	slices.SortFunc(r.DaemonSets, func(a, b DaemonSet) int {
		return cmp.Or(cmp.Compare(b.Changed, a.Changed), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
