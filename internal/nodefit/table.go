package nodefit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// Verdict is whether the nodes of a cell take a pod. A cell is a pool, or a domain of a pool.
type Verdict int

const (
	// Takes means that a node has room for the pod now. Other pods and their spread may still keep it from there.
	Takes Verdict = iota
	// Full means that a node would take the pod if it were empty, or that one may be made.
	Full
	// Unknown means that a filter decides which [Judge] does not know.
	Unknown
	// Never means that no node of the cell can take the pod.
	Never
)

// Answer is what [Judge] says of a pod and a cell.
type Answer struct {
	Verdict Verdict
	// Filter is the Filter plugin of kube-scheduler that decides, and Why says it for people: a sentence that begins with the pods. Both are empty
	// for Takes and Full.
	Filter, Why string
}

// Cell is what [Judge] reads of a cell.
type Cell struct {
	// Set is what a seat in the cell has a pod select.
	Set nodeset.Set
	// Nodes are the nodes of the set.
	Nodes []corev1.Node
	// Growing says that a node autoscaler may make a node there for the pod.
	Growing bool
	Proven  Evidence
	// Pods are those of all nodes. Without them the answer is never Takes.
	Pods []corev1.Pod
	// Now is the present time. Where it is zero, no node counts as one that starts.
	Now time.Time
}

// Lister lists the nodes of a set. It returns a cell without evidence and pods.
type Lister func(nodeset.Set) Cell

// Evidence is whether pods of the same workload have had nodes in a cell. What those nodes lack now may return: a taint is for maintenance, and a
// device plugin or a feature discovery starts again.
type Evidence int

const (
	// NoEvidence is none.
	NoEvidence Evidence = iota
	// Ran means that pods have had nodes there. They may have asked for less. Only taints pass.
	Ran
	// RanAlike means that pods have had nodes there which asked for the same or more. What their nodes lack passes, too.
	RanAlike
)

// Volumes is what is known of a pod's volumes.
type Volumes struct {
	// Terms are the [VolumeTerms] of each volume that is not for any node, and of the StorageClass of each that is still to be made.
	Terms [][]corev1.NodeSelectorTerm
	// Unknown says that the scheduler decides about one of them by what is not known here.
	Unknown bool
}

// startsFor is for how long a node may lack the devices that it will have. The drivers of a GPU may take ten minutes.
const startsFor = 15 * time.Minute

// subject is a pod that is judged.
type subject struct {
	pod      *corev1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	requests corev1.ResourceList
	volumes  *Volumes
	cell     *Cell
	// reach reports for each volume whether a node reaches it.
	reach []func(*corev1.Node) bool
}

// The Filter plugins that an answer names.
const (
	ByAffinity  = "NodeAffinity"
	ByTaint     = "TaintToleration"
	BySize      = "NodeResourcesFit"
	ByVolume    = "VolumeBinding"
	BySpread    = "PodTopologySpread"
	ByDevice    = "DynamicResources"
	ByScheduler = "" // the pod names another scheduler
)

// row is what some Filter plugins of kube-scheduler's default profile make of a node without other pods.
type row struct {
	filters []string
	// refuses says why an empty node refuses the pod. Without it, what the plugins refuse passes: other pods come and go, and a cordon ends.
	refuses func(*subject, *corev1.Node) string
	// unknown says that the plugins decide about the pod by what is not known here.
	unknown func(*subject) string
}

// table has the Filter plugins of Kubernetes 1.30 to 1.37: those of the default profile in
// https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/apis/config/v1/default_plugins.go.
var table = []row{
	{filters: []string{ByAffinity, "NodeName"}, refuses: (*subject).neverSelects},
	{filters: []string{ByTaint}, refuses: (*subject).tainted},
	{filters: []string{BySize}, refuses: (*subject).tooLarge},
	{filters: []string{ByVolume, "VolumeZone"}, refuses: (*subject).outOfReach, unknown: (*subject).volumesUnknown},
	// Otherwise constraints are counted over pods, but for minDomains: see [subject.fewDomains].
	{filters: []string{BySpread}, refuses: (*subject).withoutKey},
	{filters: []string{ByDevice}, unknown: (*subject).devices},
	// VolumeRestrictions refuses a claim for one pod that another pod uses. An empty node is not at its limit of volumes, because a pod with more
	// claims than are looked at is unknown. Few pods need features that a node declares.
	{filters: []string{"VolumeRestrictions", "NodeVolumeLimits", "EBSLimits", "GCEPDLimits", "AzureDiskLimits", "NodeDeclaredFeatures"}},
	{filters: []string{"NodeUnschedulable", "NodePorts", "InterPodAffinity"}},
}

// Filters returns the Filter plugins that [Judge] knows.
func Filters() (out []string) {
	for _, r := range table {
		out = append(out, r.filters...)
	}
	slices.Sort(out)
	return out
}

// Judge says whether nodes of a cell take a pod with a seat there. It reads what the scheduler's filters read. What passes, such as a cordon, a node's
// start and the pods that are there, makes a cell Full and never Never. So does a node autoscaler, unless the cell's labels
// contradict the pod.
func Judge(pod *corev1.Pod, volumes Volumes, cell *Cell) Answer {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	s := &subject{pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), requests: requests, volumes: &volumes, cell: cell}
	for _, terms := range volumes.Terms {
		s.reach = append(s.reach, reaching(terms))
	}
	unknown := s.unknown()
	reasons, open := map[Answer]int{}, false
	for i := range cell.Nodes {
		refused := s.refusedBy(&cell.Nodes[i])
		switch {
		case refused.Verdict == Never:
			reasons[refused]++
		case unknown.Verdict == Unknown:
			return unknown
		case cell.Pods == nil:
			return s.unlessFewDomains(Answer{Verdict: Full})
		case s.room(&cell.Nodes[i]):
			return s.unlessFewDomains(Answer{Verdict: Takes})
		default:
			open = true
		}
	}
	if open {
		return s.unlessFewDomains(Answer{Verdict: Full})
	}
	if len(cell.Nodes) == 0 || cell.Growing {
		return s.ofNodesToCome(unknown)
	}
	most := Answer{}
	for _, a := range slices.SortedFunc(maps.Keys(reasons), func(a, b Answer) int { return cmp.Compare(a.Why, b.Why) }) {
		if reasons[a] > reasons[most] {
			most = a
		}
	}
	return most
}

// ofNodesToCome says whether nodes that may be made take the pod.
func (s *subject) ofNodesToCome(unknown Answer) Answer {
	if contradicts(s.pod, s.cell.Set) {
		return Answer{Never, ByAffinity, otherNodes}
	}
	for _, terms := range s.volumes.Terms {
		if ReachOf(terms, s.cell.Set) <= OfNodes {
			return Answer{Never, ByVolume, outOfReach}
		}
	}
	if unknown.Verdict == Unknown {
		return unknown
	}
	return Answer{Verdict: Full}
}

// unknown says which filter decides by what is not known.
func (s *subject) unknown() Answer {
	if name := s.pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		return Answer{Unknown, ByScheduler, "the pods have the scheduler " + name}
	}
	for _, r := range table {
		if r.unknown == nil {
			continue
		}
		if why := r.unknown(s); why != "" {
			return Answer{Unknown, r.filters[0], why}
		}
	}
	return Answer{}
}

// refusedBy says whether and why a node would refuse the pod even if it were empty.
func (s *subject) refusedBy(node *corev1.Node) Answer {
	for _, r := range table {
		if r.refuses == nil {
			continue
		}
		if why := r.refuses(s, node); why != "" {
			return Answer{Never, r.filters[0], why}
		}
	}
	return Answer{}
}

const (
	otherNodes = "the pods select other nodes"
	outOfReach = "the pods' volumes are elsewhere"
)

func (s *subject) selectsOthers(node *corev1.Node) string {
	selected, _ := s.affinity.Match(node)
	if named := s.pod.Spec.NodeName; !selected || named != "" && named != node.Name {
		return otherNodes
	}
	return ""
}

// neverSelects is [subject.selectsOthers], unless such pods have had nodes there.
func (s *subject) neverSelects(node *corev1.Node) string {
	if s.cell.Proven == RanAlike {
		return ""
	}
	return s.selectsOthers(node)
}

func (s *subject) tainted(node *corev1.Node) string {
	if s.cell.Proven >= Ran {
		return ""
	}
	taint, found := untolerated(&s.pod.Spec, node.Spec.Taints, func(t *corev1.Taint) bool { return repels(t) && !passing(t.Key) })
	if !found {
		return ""
	}
	return "the pods do not tolerate the taint " + taint.ToString()
}

func (s *subject) tooLarge(node *corev1.Node) string {
	starts := !s.cell.Now.IsZero() && s.cell.Now.Sub(node.CreationTimestamp.Time) < startsFor && lacks(node, s.requests)
	if starts || s.cell.Proven == RanAlike || count(withCapacity(node), nil, s.requests) > 0 {
		return ""
	}
	return "the pods are too large"
}

func (s *subject) outOfReach(node *corev1.Node) string {
	if slices.ContainsFunc(s.reach, func(reaches func(*corev1.Node) bool) bool { return !reaches(node) }) {
		return outOfReach
	}
	return ""
}

func (s *subject) volumesUnknown() string {
	if s.volumes.Unknown {
		return "where the pods' volumes can be is not known"
	}
	return ""
}

func (s *subject) devices() string {
	if len(s.pod.Spec.ResourceClaims) > 0 {
		return "the pods claim devices"
	}
	return ""
}

// room reports whether the node has room for the pod beside those that are there.
func (s *subject) room(node *corev1.Node) bool {
	if !s.open(node) || count(node, s.cell.Pods, s.requests) == 0 {
		return false
	}
	taken := false
	for i := range s.cell.Pods {
		if other := &s.cell.Pods[i]; other.Spec.NodeName == node.Name && !podstatus.Ended(other) {
			taken = taken || slices.ContainsFunc(hostPorts(s.pod), func(p corev1.ContainerPort) bool {
				return slices.ContainsFunc(hostPorts(other), func(q corev1.ContainerPort) bool { return conflict(p, q) })
			})
		}
	}
	return !taken
}

// open reports whether the node takes new pods such as this one.
func (s *subject) open(node *corev1.Node) bool {
	closed, _ := s.closed(node)
	return closed == Open && s.selectsOthers(node) == ""
}

// unlessFewDomains is an answer about a cell whose nodes would take the pod, were there not a topology spread constraint that asks for more
// domains than they have. Then only so many pods have a node as the constraint allows in each domain.
func (s *subject) unlessFewDomains(a Answer) Answer {
	if s.cell.Growing {
		return a
	}
	for i := range s.pod.Spec.TopologySpreadConstraints {
		c := &s.pod.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway || c.MinDomains == nil || !selectsItself(s.pod, c) || ptr.Deref(c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) != corev1.NodeInclusionPolicyHonor {
			continue
		}
		if s.fewDomains(c) {
			return Answer{Never, BySpread, "a constraint over " + c.TopologyKey + " asks for more domains than the pool has"}
		}
	}
	return a
}

// fewDomains reports whether the nodes that the pod selects have fewer values of a constraint's key than its minDomains.
func (s *subject) fewDomains(c *corev1.TopologySpreadConstraint) bool {
	values := map[string]bool{}
	for i := range s.cell.Nodes {
		node := &s.cell.Nodes[i]
		if s.selectsOthers(node) != "" || s.withoutKey(node) != "" {
			continue
		}
		if s.tainted(node) != "" && ptr.Deref(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyHonor {
			continue
		}
		values[node.Labels[c.TopologyKey]] = true
	}
	return len(values) < int(*c.MinDomains)
}

// selectsItself reports whether a constraint counts the pod that has it. If not, the number of domains does not matter. An empty selector
// counts no pods.
func selectsItself(pod *corev1.Pod, c *corev1.TopologySpreadConstraint) bool {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return true
	}
	some := !selector.Empty() || slices.ContainsFunc(c.MatchLabelKeys, func(key string) bool { _, has := pod.Labels[key]; return has })
	return some && selector.Matches(labels.Set(pod.Labels))
}

// withoutKey says whether a node lacks the key of a topology spread constraint. Such a node takes none of the constraint's pods.
func (s *subject) withoutKey(node *corev1.Node) string {
	for i := range s.pod.Spec.TopologySpreadConstraints {
		c := &s.pod.Spec.TopologySpreadConstraints[i]
		if _, has := node.Labels[c.TopologyKey]; !has && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			return "the nodes have no label " + c.TopologyKey + ", over which the pods are spread"
		}
	}
	return ""
}

// contradicts reports whether no node of a cell could be one that a pod selects.
func contradicts(pod *corev1.Pod, cell nodeset.Set) bool {
	for key, value := range pod.Spec.NodeSelector {
		if cell.Meet(&corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}) == nodeset.None {
			return true
		}
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	var terms []corev1.NodeSelectorTerm
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(t.MatchExpressions)+len(t.MatchFields) > 0 { // an empty term matches nothing
			terms = append(terms, t)
		}
	}
	return len(terms) == 0 || ReachOf(terms, cell) == Elsewhere
}
