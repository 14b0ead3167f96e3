// Package testkit builds the objects that tests use. It decides nothing and talks
// to nobody; package controlplane runs the cluster that tests use.
package testkit

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// PodBuilder builds a pod step by step.
type PodBuilder struct{ pod corev1.Pod }

// Pod begins a pod in namespace default without containers.
func Pod(name string) *PodBuilder {
	return &PodBuilder{corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
	}}
}

// Namespace sets the pod's namespace.
func (b *PodBuilder) Namespace(name string) *PodBuilder {
	b.pod.Namespace = name
	return b
}

// RuntimeClass sets the pod's RuntimeClass.
func (b *PodBuilder) RuntimeClass(name string) *PodBuilder {
	b.pod.Spec.RuntimeClassName = &name
	return b
}

// Annotation sets an annotation.
func (b *PodBuilder) Annotation(key, value string) *PodBuilder {
	metav1.SetMetaDataAnnotation(&b.pod.ObjectMeta, key, value)
	return b
}

// Label sets a label.
func (b *PodBuilder) Label(key, value string) *PodBuilder {
	metav1.SetMetaDataLabel(&b.pod.ObjectMeta, key, value)
	return b
}

// Owner makes a ReplicaSet of the given name the pod's controller.
func (b *PodBuilder) Owner(name string) *PodBuilder {
	b.pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a001", Controller: new(true),
	}}
	return b
}

// Container adds a container with requests and limits, each written like
// "cpu=1,memory=1Gi"; "" is none.
func (b *PodBuilder) Container(name, requests, limits string) *PodBuilder {
	b.pod.Spec.Containers = append(b.pod.Spec.Containers, container(name, requests, limits))
	return b
}

// InitContainer adds an init container that runs to its end.
func (b *PodBuilder) InitContainer(name, requests, limits string) *PodBuilder {
	b.pod.Spec.InitContainers = append(b.pod.Spec.InitContainers, container(name, requests, limits))
	return b
}

// Sidecar adds an init container that keeps running.
func (b *PodBuilder) Sidecar(name, requests, limits string) *PodBuilder {
	c := container(name, requests, limits)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	b.pod.Spec.InitContainers = append(b.pod.Spec.InitContainers, c)
	return b
}

// PodResources sets spec.resources.
func (b *PodBuilder) PodResources(requests, limits string) *PodBuilder {
	r := resources(requests, limits)
	b.pod.Spec.Resources = &r
	return b
}

// Claim makes the last container refer to a claim of dynamic resource allocation.
func (b *PodBuilder) Claim(name string) *PodBuilder {
	c := &b.pod.Spec.Containers[len(b.pod.Spec.Containers)-1]
	c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: name})
	b.pod.Spec.ResourceClaims = append(b.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: new(name)})
	return b
}

// Obj returns a copy of the pod.
func (b *PodBuilder) Obj() *corev1.Pod { return b.pod.DeepCopy() }

// View returns the pod as Stowage sees it.
func (b *PodBuilder) View(tb testing.TB) *podpatch.Pod {
	tb.Helper()
	return View(tb, &b.pod)
}

// View returns a pod as Stowage sees it.
func View(tb testing.TB, pod *corev1.Pod) *podpatch.Pod {
	tb.Helper()
	data, err := json.Marshal(pod)
	if err != nil {
		tb.Fatal(err)
	}
	view, err := podpatch.Decode(data)
	if err != nil {
		tb.Fatal(err)
	}
	return view
}

func container(name, requests, limits string) corev1.Container {
	return corev1.Container{Name: name, Image: "image", Resources: resources(requests, limits)}
}

func resources(requests, limits string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: ResourceList(requests), Limits: ResourceList(limits)}
}

// ResourceList reads a list like "cpu=1,memory=1Gi". It panics if it can't.
func ResourceList(s string) corev1.ResourceList {
	if s == "" {
		return nil
	}
	list := corev1.ResourceList{}
	for entry := range strings.SplitSeq(s, ",") {
		name, quantity, _ := strings.Cut(entry, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return list
}
