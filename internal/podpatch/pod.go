package podpatch

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// Pod is the part of a v1.Pod that Stowage reads. Everything else in a pod,
// most of its bytes, is skipped while decoding.
type Pod struct {
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata is the part of a pod's metadata that Stowage reads.
type Metadata struct {
	Name            string      `json:"name"`
	GenerateName    string      `json:"generateName"`
	Namespace       string      `json:"namespace"`
	Labels          Strings     `json:"labels"`
	Annotations     Strings     `json:"annotations"`
	OwnerReferences List[Owner] `json:"ownerReferences"`
}

// Owner is the part of an owner reference that Stowage reads.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// Plausible reports whether an owner reference can be of an object. The API server checks
// owner references only after mutating admission.
func (o *Owner) Plausible() bool {
	for _, part := range []string{o.APIVersion, o.Kind, o.Name, o.UID} {
		if part == "" || len(part) > content.DNS1123SubdomainMaxLength {
			return false
		}
	}
	// The name becomes part of a request's path, and the UID the name of a SeatLedger.
	return len(content.IsPathSegmentName(o.Name)) == 0 && len(content.IsDNS1123Subdomain(o.UID)) == 0
}

// ChoosesNodes reports whether an owner creates its pods for nodes that it has chosen: a DaemonSet, or a Node, whose static pods run
// already.
func (o *Owner) ChoosesNodes() bool {
	return o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, appsv1.GroupName+"/") || o.Kind == "Node" && o.APIVersion == "v1"
}

// Spec is the part of a pod's spec that Stowage reads.
type Spec struct {
	NodeName          string                         `json:"nodeName"`
	NodeSelector      Strings                        `json:"nodeSelector"`
	Affinity          *Affinity                      `json:"affinity"`
	Tolerations       List[corev1.Toleration]        `json:"tolerations"`
	SchedulingGates   List[corev1.PodSchedulingGate] `json:"schedulingGates"`
	RuntimeClassName  string                         `json:"runtimeClassName"`
	PriorityClassName string                         `json:"priorityClassName"`
	Priority          *int32                         `json:"priority"`
	PreemptionPolicy  *corev1.PreemptionPolicy       `json:"preemptionPolicy"`
	SchedulingGroup   *struct{}                      `json:"schedulingGroup"` // since Kubernetes 1.36
	WorkloadRef       *struct{}                      `json:"workloadRef"`     // its name before
	Resources         *Resources                     `json:"resources"`
	InitContainers    List[Container]                `json:"initContainers"`
	Containers        List[Container]                `json:"containers"`

	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds"`

	Volumes                   List[Volume]           `json:"volumes"`
	TopologySpreadConstraints List[SpreadConstraint] `json:"topologySpreadConstraints"`
}

// Volume is the part of a pod's volume that Stowage reads.
type Volume struct {
	Name                  string       `json:"name"`
	PersistentVolumeClaim *ClaimVolume `json:"persistentVolumeClaim"`
	// DownwardAPI and Projected say whether files of the volume have resources of a container.
	DownwardAPI HasResources `json:"downwardAPI"`
	Projected   HasResources `json:"projected"`
}

// ClaimVolume names a PersistentVolumeClaim.
type ClaimVolume struct {
	ClaimName string `json:"claimName"`
}

// SpreadConstraint is the part of a topology spread constraint that Stowage reads.
type SpreadConstraint struct {
	TopologyKey        string                               `json:"topologyKey"`
	WhenUnsatisfiable  corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable"`
	MinDomains         *int32                               `json:"minDomains"`
	NodeAffinityPolicy corev1.NodeInclusionPolicy           `json:"nodeAffinityPolicy"`
}

// Honors reports whether the constraint counts only the nodes that a pod selects.
func (c *SpreadConstraint) Honors() bool {
	return c.NodeAffinityPolicy == "" || c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
}

// Affinity is the part of an affinity that Stowage reads.
type Affinity struct {
	NodeAffinity *corev1.NodeAffinity `json:"nodeAffinity,omitempty"`
	// Together are the terms of the affinity to pods that are required, where they are few. Stowage warns of them, and changes none.
	Together []corev1.PodAffinityTerm `json:"-"`
}

// Container is the part of a container that Stowage reads.
type Container struct {
	Name          string                        `json:"name"`
	RestartPolicy corev1.ContainerRestartPolicy `json:"restartPolicy"`
	Resources     *Resources                    `json:"resources"`
	// Env are the entries of the environment that have resources of a container.
	Env EnvOfResources `json:"env"`
}

// EnvVar is an entry of a container's environment that has a resource of a container.
type EnvVar struct {
	Index int // in the container's list
	Name  string
	Ref   ResourceRef
	// Value is what is written in place of the reference, or nil.
	Value *string
}

// ResourceRef names a resource of a container, such as limits.cpu.
type ResourceRef struct {
	ContainerName string   `json:"containerName"`
	Resource      string   `json:"resource"`
	Divisor       Quantity `json:"divisor"`
}

// Resources are the resource entries of a container or of a whole pod.
type Resources struct {
	Requests ResourceList `json:"requests,omitempty"`
	Limits   ResourceList `json:"limits,omitempty"`
	Claims   Claims       `json:"claims,omitempty"`
}

// Claim is a container's reference to a claim of dynamic resource allocation.
type Claim struct {
	Name string `json:"name"`
}

// DecodeOptions are how JSON from the API server is read. Names are case-sensitive and unknown fields are ignored, as
// by the API server itself. Names are not checked for duplicates nor strings for UTF-8, because the API server has
// just encoded them. Other clients that reach the port may send a name twice: see [ignoreNull].
var DecodeOptions = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), json.WithUnmarshalers(json.UnmarshalFromFunc(ignoreNull)))

// ignoreNull leaves a value as it is where the JSON is null. Otherwise null would remove what an earlier entry of the same name gave, and a
// list that comes twice would not be found: with "spec":{"tolerations":[…]},"spec":null again and again, nothing would bound the lists that are decoded.
// An item of a list that is null fails: no API server writes one, and it has the memory of an item without the braces by which a review's room is found.
func ignoreNull(dec *jsontext.Decoder, _ any) error {
	if dec.PeekKind() != 'n' {
		return errors.ErrUnsupported // it is decoded as without this function
	}
	if parent, _ := dec.StackIndex(dec.StackDepth()); parent == '[' {
		return fmt.Errorf("%s has an item that is null", dec.StackPointer())
	}
	_, err := dec.ReadToken()
	return err
}

// Decode reads a pod from the JSON of a v1.Pod.
func Decode(data []byte) (*Pod, error) {
	var p Pod
	if err := json.Unmarshal(data, &p, DecodeOptions); err != nil {
		return nil, fmt.Errorf("decode the pod: %w", err)
	}
	return &p, nil
}

// DisplayName is the pod's name, or its generated name's prefix followed by an
// asterisk where the API server has not chosen a name yet.
func (p *Pod) DisplayName() string {
	if p.Metadata.Name != "" {
		return p.Metadata.Name
	}
	return p.Metadata.GenerateName + "*"
}

// Controller returns the pod's controlling owner, or nil.
func (p *Pod) Controller() *Owner {
	for i := range p.Metadata.OwnerReferences {
		if o := &p.Metadata.OwnerReferences[i]; o.Controller {
			return o
		}
	}
	return nil
}

// AllContainers yields the init containers and then the containers, in order.
func (p *Pod) AllContainers() iter.Seq[*Container] {
	return func(yield func(*Container) bool) {
		for _, list := range [][]Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// IsSidecar reports whether an init container runs for as long as the pod
// does (KEP-753).
func (c *Container) IsSidecar() bool {
	return c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Clone returns a copy that shares nothing which Stowage changes.
func (p *Pod) Clone() *Pod {
	c := *p
	c.Metadata.Labels = maps.Clone(p.Metadata.Labels)
	c.Metadata.Annotations = maps.Clone(p.Metadata.Annotations)
	c.Spec.NodeSelector = maps.Clone(p.Spec.NodeSelector)
	c.Spec.Tolerations = slices.Clone(p.Spec.Tolerations)
	if a := p.Spec.Affinity; a != nil {
		c.Spec.Affinity = &Affinity{Together: a.Together}
		if na := a.NodeAffinity; na != nil {
			n := *na
			n.PreferredDuringSchedulingIgnoredDuringExecution = slices.Clone(n.PreferredDuringSchedulingIgnoredDuringExecution)
			// The required terms are replaced as a whole where they change.
			c.Spec.Affinity.NodeAffinity = &n
		}
	}
	c.Spec.SchedulingGates = slices.Clone(p.Spec.SchedulingGates)
	c.Spec.TopologySpreadConstraints = slices.Clone(p.Spec.TopologySpreadConstraints)
	c.Spec.InitContainers = cloneContainers(p.Spec.InitContainers)
	c.Spec.Containers = cloneContainers(p.Spec.Containers)
	c.Spec.Resources = p.Spec.Resources.clone()
	return &c
}

func cloneContainers(list []Container) []Container {
	list = slices.Clone(list)
	for i := range list {
		list[i].Resources = list[i].Resources.clone()
		list[i].Env = slices.Clone(list[i].Env)
	}
	return list
}

func (r *Resources) clone() *Resources {
	if r == nil {
		return nil
	}
	c := *r
	c.Requests = maps.Clone(r.Requests)
	c.Limits = maps.Clone(r.Limits)
	return &c
}

// VolumeClaims returns the names of the PersistentVolumeClaims that the pod uses. That of a generic ephemeral volume is not among them.
func (p *Pod) VolumeClaims() (names []string) {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// Gated reports whether a pod waits at a scheduling gate of this name.
func (p *Pod) Gated(name string) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == name })
}

// Ungate removes the scheduling gate of this name, and no other.
func (p *Pod) Ungate(name string) {
	p.Spec.SchedulingGates = slices.DeleteFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == name })
}

// SetLabel sets one label, making the map where there is none.
func (p *Pod) SetLabel(key, value string) {
	if p.Metadata.Labels == nil {
		p.Metadata.Labels = map[string]string{}
	}
	p.Metadata.Labels[key] = value
}

// SetPriorityClass sets the pod's PriorityClass with the priority and the preemption policy that follow from it. Without these, which is nil, the pod
// has none. The Priority plugin of the API server sets them if it is called again after this call, and refuses a pod that has others. It is not called again
// after a webhook's second call.
func (p *Pod) SetPriorityClass(name string, priority *int32, preemption *corev1.PreemptionPolicy) {
	p.Spec.PriorityClassName, p.Spec.Priority, p.Spec.PreemptionPolicy = name, priority, preemption
}

// SetNodeSelector sets one node label, making the map where there is none.
func (p *Pod) SetNodeSelector(key, value string) {
	if p.Spec.NodeSelector == nil {
		p.Spec.NodeSelector = map[string]string{}
	}
	p.Spec.NodeSelector[key] = value
}

// AddToleration adds a toleration, unless the pod has it.
func (p *Pod) AddToleration(t corev1.Toleration) {
	if !slices.ContainsFunc(p.Spec.Tolerations, func(have corev1.Toleration) bool { return reflect.DeepEqual(have, t) }) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}

// nodeAffinity returns the pod's, making it where there is none.
func (p *Pod) nodeAffinity() *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return p.Spec.Affinity.NodeAffinity
}

// Require has the pod run only on nodes that meet some requirements, beside what it requires already: see [nodeset.Require].
func (p *Pod) Require(requirements []corev1.NodeSelectorRequirement) {
	required := &p.nodeAffinity().RequiredDuringSchedulingIgnoredDuringExecution
	*required = nodeset.Require(*required, requirements)
}

// Unrequire takes some requirements on nodes from the pod: see [nodeset.Without].
func (p *Pod) Unrequire(drop func(*corev1.NodeSelectorRequirement) bool) {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required := &a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*required = nodeset.Without(*required, drop)
	}
}

// AddPreference adds a preference for nodes, unless the pod has it.
func (p *Pod) AddPreference(term corev1.PreferredSchedulingTerm) {
	list := &p.nodeAffinity().PreferredDuringSchedulingIgnoredDuringExecution
	if !slices.ContainsFunc(*list, func(have corev1.PreferredSchedulingTerm) bool { return reflect.DeepEqual(have, term) }) {
		*list = append(*list, term)
	}
}

// RequiredTerms returns the terms of which a node must match one, if there are any.
func (p *Pod) RequiredTerms() []corev1.NodeSelectorTerm {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}

// SetAnnotation sets one annotation, making the map where there is none.
func (p *Pod) SetAnnotation(key, value string) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]string{}
	}
	p.Metadata.Annotations[key] = value
}

// FreeAnnotations returns how many more bytes of annotations the API server accepts in a pod. It refuses a pod where that is
// negative.
func FreeAnnotations(annotations map[string]string) int {
	free := validation.TotalAnnotationSizeLimitB
	for k, v := range annotations {
		free -= len(k) + len(v)
	}
	return free
}
