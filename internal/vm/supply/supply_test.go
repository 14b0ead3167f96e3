package supply

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

func compiled(name string, created int64, classes ...string) *catalog.Catalog {
	return catalog.Compile(&stowage.VMCatalog{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(created, 0))},
		Spec: stowage.VMCatalogSpec{RuntimeClasses: classes, Types: []stowage.VMType{
			{Name: "small", VCPUs: 2, Memory: resource.MustParse("4Gi"), PricePerHour: "0.1"}, {Name: "free", VCPUs: 4, Memory: resource.MustParse("8Gi")},
		}},
	})
}

func peer(namespace, name, vmType string, nanoCPU int64) *Peer {
	p := &Peer{Active: true, Node: "n", Machine: peerpod.Machine{Type: vmType, Ours: true, Need: &catalog.Need{NanoCPU: nanoCPU}}, VCPUs: 16, Memory: 32 << 30}
	p.Namespace, p.Name = namespace, name
	return p
}

// Whatever a tenant writes into a peer pod, little of it is kept.
func TestPeersKeepLittle(t *testing.T) {
	large := strings.Repeat("x", 200<<10)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: large, UID: "u", Controller: new(true)}},
		Labels: map[string]string{stowage.PeerPodLabel: "true"}, Annotations: map[string]string{},
	}}
	for i, key := range []string{
		stowage.OriginalResourcesAnnotation, stowage.MachineTypeAnnotation, stowage.GPUModelAnnotation, stowage.DefaultVCPUsAnnotation, stowage.DefaultMemoryAnnotation, "other",
	} {
		pod.Annotations[key] = fmt.Sprint(i, large)
	}
	pod.Annotations[stowage.OriginalResourcesAnnotation] = fmt.Sprintf(`{"machine":%q,"model":%q,"containers":{"c":{}}}`, large, large)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: large}
	config := peerpod.DefaultConfig()
	if data, err := json.Marshal(PeerOf(&config, pod)); err != nil || len(data) > 2<<10 {
		t.Errorf("%d bytes are kept, %v", len(data), err)
	}
}

// VMs of the catalog's types count with what the types have; others with what their annotations ask for, and they cost nothing that is known.
func TestCount(t *testing.T) {
	ended, waits := peer("a", "ended", "small", 1), peer("a", "waits", "small", 1)
	ended.Active, waits.Node = false, ""
	c := Count(compiled("c", 1), []*Peer{
		peer("a", "1", "small", 1e9), peer("a", "2", "small", 1e9), peer("b", "3", "free", 1e9), peer("b", "4", "theirs", 1e9), peer("b", "5", "", 0), ended, waits,
		peer("b", "y", "", 16e9), peer("b", "x", "", 9e9), peer("b", "z", "", 1e9), // two that no type fits, and one from before the catalog
	})
	got := map[string]string{}
	for at, u := range c.In {
		got[at.Namespace+"/"+at.Type] = fmt.Sprintf("%d %d %d %s", u.VMs, u.VCPUs, u.Memory>>30, catalog.Money(u.Price))
	}
	want := map[string]string{"a/small": "2 4 8 0.2", "b/free": "1 4 8 0", "b/": "5 80 160 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}
	s := &stowage.VMCatalogStatus{}
	c.Into(s)
	if diff := cmp.Diff(&stowage.VMCatalogStatus{
		VMs: 3, VCPUs: 8, Memory: "16Gi", PricePerHour: "0.2",
		Types: []stowage.VMTypeStatus{{Name: "small", VMs: 2, VCPUs: 4, Memory: "8Gi", PricePerHour: "0.2"}, {Name: "free", VMs: 1, VCPUs: 4, Memory: "8Gi", PricePerHour: "0"}},
		Unfit: &stowage.UnfitPods{Count: 2, Namespace: "b", Name: "x", Message: "the nearest type, free, lacks 5 CPU"},
	}, s); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestEffect(t *testing.T) {
	all := []*catalog.Catalog{compiled("old", 1, "kata-remote"), compiled("new", 2), compiled("none", 3, "kata-remote"), compiled("other", 4, "runc")}
	targets := []string{"kata-remote", "kata-other"}
	for i, want := range []stowage.ConditionReason{stowage.ReasonCounted, stowage.ReasonCounted, stowage.ReasonSuperseded, stowage.ReasonNoTarget} {
		if got, message := Effect(all, all[i], targets); got != want || message == "" {
			t.Errorf("%s is %s, want %s: %s", all[i].Name, got, want, message)
		}
	}
}

// The VM of a pod is there once the kubelet has made the pod's sandbox, or a container has started.
func TestMade(t *testing.T) {
	at := metav1.NewTime(time.Unix(1000, 0))
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: at}
	}
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}
	creating := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	pulling := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		made   bool
	}{
		"nothing yet":                {corev1.PodStatus{Phase: corev1.PodPending}, false},
		"scheduled":                  {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{condition(corev1.PodScheduled, "True")}}, false},
		"no sandbox":                 {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{condition(corev1.PodReadyToStartContainers, "False")}, ContainerStatuses: []corev1.ContainerStatus{creating}}, false},
		"a sandbox":                  {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{condition(corev1.PodReadyToStartContainers, "True")}, ContainerStatuses: []corev1.ContainerStatus{pulling}}, true},
		"an init container runs":     {corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{running}, ContainerStatuses: []corev1.ContainerStatus{creating}}, true},
		"a container has restarted":  {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}}}, true},
		"it runs":                    {corev1.PodStatus{Phase: corev1.PodRunning}, true},
		"it had no VM in time":       {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"}, false},
		"one container ended unseen": {corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}, running}}, true},
		"its container failed":       {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at}}}}}, true},
		"its sandbox never was":      {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}}, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at}, Spec: corev1.PodSpec{NodeName: "n"}, Status: tc.status}
		config := peerpod.DefaultConfig()
		if got := PeerOf(&config, pod); got.Made.IsZero() == tc.made {
			t.Errorf("%s: the VM is there: %t", name, !got.Made.IsZero())
		}
	}
}

func TestNamesOfClosedTypes(t *testing.T) {
	closed := func(names ...string) (out []catalog.Closure) {
		for _, name := range names {
			out = append(out, catalog.Closure{Key: catalog.Key{Type: name}})
		}
		return out
	}
	for want, of := range map[string][]catalog.Closure{"": nil, "a,b": closed("a", "a", "b"), "a,b,c,d and 2 more": closed("a", "b", "c", "d", "e", "f", "f")} {
		if got := namesOf(of); got != want {
			t.Errorf("the names are %q, want %q", got, want)
		}
	}
}
