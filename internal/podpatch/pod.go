package podpatch

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
)

// Pod is the part of a v1.Pod that Stowage reads. Everything else in a pod,
// most of its bytes, is skipped while decoding.
type Pod struct {
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata is the part of a pod's metadata that Stowage reads.
type Metadata struct {
	Name            string            `json:"name"`
	GenerateName    string            `json:"generateName"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	OwnerReferences []Owner           `json:"ownerReferences"`
}

// Owner is the part of an owner reference that Stowage reads.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// Spec is the part of a pod's spec that Stowage reads.
type Spec struct {
	RuntimeClassName string      `json:"runtimeClassName"`
	Resources        *Resources  `json:"resources"`
	InitContainers   []Container `json:"initContainers"`
	Containers       []Container `json:"containers"`
}

// Container is the part of a container that Stowage reads.
type Container struct {
	Name          string                        `json:"name"`
	RestartPolicy corev1.ContainerRestartPolicy `json:"restartPolicy"`
	Resources     *Resources                    `json:"resources"`
}

// Resources are the resource entries of a container or of a whole pod.
type Resources struct {
	Requests ResourceList `json:"requests,omitempty"`
	Limits   ResourceList `json:"limits,omitempty"`
	Claims   []Claim      `json:"claims,omitempty"`
}

// Claim is a container's reference to a claim of dynamic resource allocation.
type Claim struct {
	Name string `json:"name"`
}

// DecodeOptions are how JSON from the API server is read: names are
// case-sensitive and unknown fields are ignored, as the API server itself does;
// names are not checked for duplicates nor strings for UTF-8, because the API
// server has just encoded them.
var DecodeOptions = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

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
	c.Spec.InitContainers = cloneContainers(p.Spec.InitContainers)
	c.Spec.Containers = cloneContainers(p.Spec.Containers)
	c.Spec.Resources = p.Spec.Resources.clone()
	return &c
}

func cloneContainers(list []Container) []Container {
	list = slices.Clone(list)
	for i := range list {
		list[i].Resources = list[i].Resources.clone()
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

// SetAnnotation sets one annotation, making the map where there is none.
func (p *Pod) SetAnnotation(key, value string) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]string{}
	}
	p.Metadata.Annotations[key] = value
}
