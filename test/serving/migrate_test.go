package serving

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The predecessors, as far as pods see them: what each is documented to do, and what it was
// seen to do where that says nothing (docs/migrate).
var predecessors = map[string]func(*corev1.Pod){
	// The peer-pods webhook: sums of all containers, the limit before the request.
	"peer-pods": func(p *corev1.Pod) {
		if p.Spec.RuntimeClassName == nil || *p.Spec.RuntimeClassName != "kata-remote" {
			return
		}
		var cpu, memory resource.Quantity
		for i := range p.Spec.Containers {
			cpu.Add(*p.Spec.Containers[i].Resources.Limits.Cpu())
			memory.Add(*p.Spec.Containers[i].Resources.Limits.Memory())
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
		if !cpu.IsZero() {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, stowage.DefaultVCPUsAnnotation, strconv.FormatInt(cpu.Value(), 10))
		}
		if !memory.IsZero() {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, stowage.DefaultMemoryAnnotation, strconv.FormatInt(memory.Value()>>20, 10))
		}
		vm := testkit.ResourceList("kata.peerpods.io/vm=1")
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: vm, Limits: vm.DeepCopy()}
	},
	// The strategy webhook in a burst: it has not seen the other pods, so each goes to the
	// first pool.
	"strategy": func(p *corev1.Pod) {
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector["nodesize"] = "od4vcpu16gb"
	},
	// FlexDaemonsets: the share for each container, however many there are.
	"flexdaemonsets": func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			share := testkit.ResourceList("cpu=400m,memory=1Gi")
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: share, Limits: share.DeepCopy()}
		}
	},
	// Versprei: a node selector of its own in the place of what there is.
	"versprei": func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, stowage.MutatedByKey, "spread-webhook-service")
		p.Spec.NodeSelector = map[string]string{"type": "default"}
	},
	// The same, which chooses another pool of the same PodDistributor.
	"versprei, another pool": func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"type": "spot", "nodesize": "spot8vcpu32gb"}
	},
}

// Each predecessor may stay for a while, called before us or after us: a peer pod and a
// DaemonSet's pod come out as if we were alone, and a pod of a spread workload has one
// placement, which is theirs, and no seat that says otherwise.
func TestWithPredecessor(t *testing.T) {
	for _, order := range []string{"aa", "zz"} {
		for name, change := range predecessors {
			t.Run(fmt.Sprintf("%s-%s", order, name), func(t *testing.T) {
				n := newTenant(t)
				create := predecessorPods(t, n)[name]()
				alone := create()

				webhook := order + "-" + strings.NewReplacer(", ", "-", " ", "-").Replace(name)
				label := "predecessor-" + webhook
				must(t, cluster.Client.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}},
					client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"yes"}}}`, label))))
				suite.StartWebhook(t, webhook, map[string]string{label: "yes"}, change)
				eventually(t, "the predecessor is called", func() (bool, error) {
					p := testkit.Pod("probe").Namespace(n.Namespace).RuntimeClass("kata-remote").Container("c", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi").Obj()
					p.Annotations = map[string]string{stowage.ModeKey: "Off"} // us it leaves out
					before := p.DeepCopy()
					err := n.Create(t.Context(), p, client.DryRunAll)
					return p.Spec.NodeSelector != nil || suite.ResourcesOf(p) != suite.ResourcesOf(before), err
				})
				got := create()
				switch name {
				case "peer-pods", "flexdaemonsets":
					if diff := cmp.Diff(suite.VMSize(alone), suite.VMSize(got)); diff != "" {
						t.Errorf("the VM (-alone +both):\n%s", diff)
					}
					if diff := cmp.Diff(suite.ResourcesOf(alone), suite.ResourcesOf(got)); diff != "" {
						t.Errorf("resources (-alone +both):\n%s", diff)
					}
				default:
					if alone.Labels[stowage.SeatLabel] != "1" {
						t.Errorf("alone, the pod has no seat: %v", alone.Labels)
					}
					theirs := &corev1.Pod{}
					change(theirs)
					if diff := cmp.Diff(theirs.Spec.NodeSelector, got.Spec.NodeSelector); diff != "" {
						t.Errorf("the node selector is not the predecessor's alone (-want +got):\n%s", diff)
					}
					for _, key := range []string{stowage.SeatLabel, stowage.PoolLabel} {
						if v, ok := got.Labels[key]; ok {
							t.Errorf("the pod runs where the predecessor says and has %s=%s", key, v)
						}
					}
					for _, key := range []string{stowage.ClaimAnnotation, corev1.PodDeletionCost} {
						if v, ok := got.Annotations[key]; ok {
							t.Errorf("the pod runs where the predecessor says and has %s=%s", key, v)
						}
					}
				}
			})
		}
	}
}

// predecessorPods prepare a namespace for the pods that the predecessors care for, and return
// what makes one, in a dry run.
func predecessorPods(t *testing.T, n *tenant) map[string]func() func() *corev1.Pod {
	distributed := func(pools ...versprei.Pool) func() func() *corev1.Pod {
		return func() func() *corev1.Pod {
			rs := n.BareReplicaSet(t, "versprei", 0, nil)
			n.Distributor(t, "versprei", "versprei", func(s *versprei.PodDistributorSpec) {
				s.Target.Kind, s.Distribution = "ReplicaSet", pools
			})
			create := func() *corev1.Pod { return n.TryPod(t, rs, suite.ReplicaSetKind, nil, client.DryRunAll) }
			eventually(t, "the replicas know the PodDistributor", func() (bool, error) {
				for range 8 { // each of the replicas, most likely
					if create().Labels[stowage.SeatLabel] == "" {
						return false, nil
					}
				}
				return true, nil
			})
			return create
		}
	}
	return map[string]func() func() *corev1.Pod{
		"peer-pods": func() func() *corev1.Pod {
			return func() *corev1.Pod {
				return n.CreatePod(t, suite.PeerPod().Container("a", "cpu=1,memory=1Gi", "cpu=2,memory=2Gi").Container("b", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi"), client.DryRunAll)
			}
		},
		"strategy": func() func() *corev1.Pod {
			rs := n.BareReplicaSet(t, "strategy", 0, annotated("nodesize=spot4vcpu16gb,weight=1"))
			return func() *corev1.Pod { return n.TryPod(t, rs, suite.ReplicaSetKind, nil, client.DryRunAll) }
		},
		// Of two labels, the predecessor knows one.
		"versprei": distributed(versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"type": "spot", "nodesize": "spot4vcpu16gb"}, Weight: 1}),
		"versprei, another pool": distributed(
			versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"type": "spot", "nodesize": "spot4vcpu16gb"}, Weight: 1},
			versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"type": "spot", "nodesize": "spot8vcpu32gb"}},
		),
		"flexdaemonsets": func() func() *corev1.Pod {
			n.SizeTemplate(t, "share", "{cpuPercentage: 10, memoryPercentage: 10}")
			create := func() (*corev1.Pod, error) {
				p := testkit.Pod("daemon").Namespace(n.Namespace).Annotation(flexdaemonsets.TemplateAnnotation, n.Namespace+".share").Container("a", "", "").Container("b", "", "").Obj()
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "daemons", UID: "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a001", Controller: new(true)}}
				p.Spec.Affinity = suite.PinnedTo("od4-1")
				return p, n.Create(t.Context(), p, client.DryRunAll)
			}
			eventually(t, "the template is known", func() (bool, error) {
				for range 8 {
					if p, err := create(); err != nil || p.Labels[stowage.SizedByLabel] == "" {
						return false, err
					}
				}
				return true, nil
			})
			return func() *corev1.Pod {
				p, err := create()
				must(t, err)
				return p
			}
		},
	}
}
