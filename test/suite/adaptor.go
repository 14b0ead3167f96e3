package suite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// Adaptor stands in for the program that makes the VMs of peer pods. It "makes" the VM of a pod a while after the pod got its node, and never
// makes one of a type that it refuses: as cloud-api-adaptor, it then says nothing, and the pod waits
// (https://github.com/confidential-containers/cloud-api-adaptor/issues/2395).
type Adaptor struct {
	name  string
	takes time.Duration

	mu      sync.Mutex
	refused map[string]bool
	made    map[types.UID]string // types, by pod
}

// NewAdaptor plays the adaptor for the pods of [Adaptor.Own] until the test ends.
func NewAdaptor(t *testing.T, takes time.Duration, refused ...string) *Adaptor {
	t.Helper()
	a := &Adaptor{name: fmt.Sprintf("adaptor-%d", time.Now().UnixNano()), takes: takes, refused: map[string]bool{}, made: map[types.UID]string{}}
	for _, name := range refused {
		a.refused[name] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := a.look(ctx); err != nil && ctx.Err() == nil {
				t.Logf("the adaptor: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return a
}

// Name is the value of the label of the pods whose VMs the adaptor makes.
func (a *Adaptor) Name() string { return a.name }

// Own has the adaptor make the VMs of a template's pods.
func (a *Adaptor) Own(template *corev1.PodTemplateSpec) {
	template.Labels[controlplane.AdaptorLabel] = a.name
}

// Refuse has the adaptor refuse a type, or not any more.
func (a *Adaptor) Refuse(name string, refuse bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused[name] = refuse
}

// Made returns how many VMs of each type were made.
func (a *Adaptor) Made() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[string]int{}
	for _, name := range a.made {
		count[name]++
	}
	return count
}

// look looks at all of its pods once.
func (a *Adaptor) look(ctx context.Context) error {
	var pods corev1.PodList
	if err := Cluster.Client.List(ctx, &pods, client.MatchingLabels{controlplane.AdaptorLabel: a.name}); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
			continue
		}
		if pod.DeletionTimestamp != nil { // a Job waits until its pod has failed
			before := pod.DeepCopy()
			pod.Status.Phase = corev1.PodFailed
			if err := Cluster.Client.Status().Patch(ctx, pod, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
				return err
			}
			continue
		}
		machine := pod.Annotations[stowage.MachineTypeAnnotation]
		a.mu.Lock()
		refused := a.refused[machine]
		a.mu.Unlock()
		if refused || time.Since(pod.CreationTimestamp.Time) < a.takes {
			continue
		}
		now, before := metav1.Now(), pod.DeepCopy()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
		for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		for _, c := range pod.Spec.Containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			})
		}
		if err := Cluster.Client.Status().Patch(ctx, pod, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return err
		}
		a.mu.Lock()
		a.made[pod.UID] = machine
		a.mu.Unlock()
	}
	return nil
}
