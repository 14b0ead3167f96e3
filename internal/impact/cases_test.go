package impact

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// live adds the policy of a text to the cluster, an hour old.
func (s *shop) live(t *testing.T, text string) {
	t.Helper()
	p := &stowage.ClusterSpreadPolicy{}
	unmarshal(t, text, p)
	p.UID, p.Generation, p.CreationTimestamp = types.UID(p.Name), 1, metav1.NewTime(now.Add(-2*time.Hour))
	s.add(p)
}

// plain is a cluster with two pools of a node in each of three zones.
func plain() *shop {
	s := &shop{}
	s.add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "shop"}}})
	for _, pool := range []string{"od", "spot"} {
		for i, zone := range []string{"a", "b", "c"} {
			s.node(pool, i, "4")
			s.objects[len(s.objects)-1].GetLabels()["zone"] = zone
		}
	}
	return s
}

const even = `
apiVersion: stowage.dev/v1alpha1
kind: ClusterSpreadPolicy
metadata: {name: even}
spec:
  mode: Enforce
  namespaceSelector: {matchLabels: {team: shop}}
  selector: {}
  kinds: [{group: apps, kind: ReplicaSet}, {group: apps, kind: StatefulSet}]
  pools:
  - {name: od, nodeSelector: {pool: od}, weight: 1}
  - {name: spot, nodeSelector: {pool: spot}, weight: 1}
`

// text sums up a workload: its counts and what is unsure.
func text(w *Workload) string {
	var pools []string
	for _, p := range w.Pools {
		pools = append(pools, fmt.Sprintf("%s %d→%d", p.Name, p.Now, p.Then))
	}
	out := fmt.Sprintf("%s, moved %d, stay %d", strings.Join(pools, " "), w.Moved, w.Stay)
	for _, n := range []struct {
		name string
		of   int64
	}{{"evicted", w.Evicted}, {"drained", w.Drained}, {"waiting", w.Waiting}, {"without", w.WithoutSeat}} {
		if n.of > 0 {
			out += fmt.Sprintf(", %s %d", n.name, n.of)
		}
	}
	if len(w.Unsure) > 0 {
		out += ", unsure: " + strings.Join(w.Unsure, "; ")
	}
	return out
}

// TestCases are what a count alone does not see, and what a tenant can do.
func TestCases(t *testing.T) {
	set := func(nodes ...string) *appsv1.StatefulSet {
		replicas := int32(len(nodes))
		return &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       appsv1.StatefulSetSpec{Replicas: &replicas, Template: template("web", "100m")}, Status: appsv1.StatefulSetStatus{ReadyReplicas: replicas},
		}
	}
	addSet := func(s *shop, o *appsv1.StatefulSet, nodes ...string) {
		s.add(o)
		s.pods(&o.Spec.Template, owner("apps/v1", "StatefulSet", o.Name, o.UID), o.Name, nodes)
	}
	withClaims := func(o *appsv1.StatefulSet) *appsv1.StatefulSet {
		o.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		return o
	}
	zones := func(values ...string) string {
		return "  across: {topologyKey: zone, domains: [{value: " + strings.Join(values, "}, {value: ") + "}]}\n"
	}
	deployment := func(spec, pod string) string {
		return fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {%s selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {%s containers: [{name: c, image: none, resources: {requests: {cpu: 100m}}}]}}}\n", spec, pod)
	}
	for name, tc := range map[string]struct {
		shop      func(*testing.T, *shop)
		change    Change
		manifests string
		want      string // of the workload web, or empty if nothing changes
		warning   string
	}{
		"a pool without room and without spill": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-1")
			},
			change: Change{Exhausted: map[string]int64{"spot": 0}}, warning: "pool spot has no spill",
			want: "od 2→2 spot 2→2, moved 0, stay 4, unsure: its pods for pool spot would wait",
		},
		"a domain without room and without spill": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even+zones("a", "b"))
				s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-1")
			},
			change: Change{Exhausted: map[string]int64{"spot/a": 0}},
			want:   "od 2→2 spot 2→2, moved 0, stay 4, unsure: its pods for pool spot would wait",
		},
		"a node goes": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				s.deployment("web", "1", nil, "od-0", "od-1", "spot-0", "spot-0")
			},
			change: Change{Remove: []Name{{Kind: "Node", Name: "spot-0"}}},
			want:   "od 2→2 spot 2→2, moved 0, stay 2, drained 2",
		},
		"pods that become larger": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-0")
			},
			manifests: strings.Replace(deployment("", ""), "cpu: 100m", "cpu: 3", 1),
			want:      "od 2→2 spot 2→2, moved 0, stay 4",
		},
		"other domains": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even+zones("a", "b"))
				s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-1")
			},
			manifests: even + zones("b", "c"),
			want:      "od 1→2 spot 1→2, moved 2, stay 2",
		},
		"ordinals change places": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				addSet(s, set("", "", "", ""), "od-0", "spot-0", "od-0", "spot-0")
			},
			manifests: strings.Replace(even, "pool: od}, weight: 1", "pool: od}, base: 2, weight: 1", 1),
			want:      "od 2→3 spot 2→1, moved 1, stay 3",
		},
		"paused by the manifest": {
			shop:      func(_ *testing.T, s *shop) { s.deployment("web", "100m", nil, "od-0", "od-1") },
			manifests: even + "---\n" + deployment("paused: true,", ""),
			want:      "od 2→1 spot 0→1, moved 1, stay 1, unsure: it is paused, so that nothing replaces its pods",
		},
		"OnDelete by the manifest": {
			shop:      func(_ *testing.T, s *shop) { addSet(s, set("", ""), "od-0", "od-1") },
			manifests: even + "---\n" + strings.Replace(strings.Replace(deployment("serviceName: web, updateStrategy: {type: OnDelete},", ""), "Deployment", "StatefulSet", 1), "serviceName: web, ", "", 1),
			want:      "od 2→1 spot 0→1, moved 1, stay 1, unsure: its updateStrategy is OnDelete, so that nothing replaces its pods",
		},
		"a Rollout with steps": {
			shop: func(_ *testing.T, s *shop) {
				u := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "web"},
					"spec": map[string]any{"replicas": int64(2), "strategy": map[string]any{"canary": map[string]any{"steps": []any{map[string]any{"pause": map[string]any{}}}}},
						"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c"}}}}},
				}}
				rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "web-1", OwnerReferences: owner("argoproj.io/v1alpha1", "Rollout", "web", "web")}}
				s.add(u, rs)
				of := template("web", "100m")
				s.pods(&of, owner("apps/v1", "ReplicaSet", "web-1", "web-1"), "web", []string{"od-0", "od-1"})
			},
			manifests: even, want: "od 2→1 spot 0→1, moved 1, stay 1, unsure: its rollout has steps, at which it may wait",
		},
		"a Deployment with a volume": {
			shop: func(_ *testing.T, s *shop) {
				s.deployment("web", "100m", func(d *appsv1.Deployment) {
					d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
				}, "od-0", "od-1")
			},
			manifests: even, want: "od 2→1 spot 0→1, moved 1, stay 1, unsure: the volumes of its pods may be bound to where they are",
		},
		"domains for a StatefulSet with volumes": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				addSet(s, withClaims(set("", "", "", "")), "od-0", "spot-0", "od-0", "spot-0")
			},
			manifests: even + zones("a", "b"), want: "od 2→2 spot 2→2, moved 2, stay 2, unsure: the volumes of its pods may be bound to where they are",
		},
		"a peer pod larger than the nodes": {
			shop: func(_ *testing.T, s *shop) {
				s.add(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata-remote"}, Handler: "kata-remote"})
				s.deployment("web", "6", func(d *appsv1.Deployment) { d.Spec.Template.Spec.RuntimeClassName = new("kata-remote") }, "", "")
			},
			manifests: even, want: "od 0→1 spot 0→1, moved 0, stay 0",
		},
		"a strategy that apply takes away": {
			shop: func(_ *testing.T, s *shop) {
				s.deployment("web", "100m", func(d *appsv1.Deployment) {
					strategy := "pool=od,weight=1:pool=spot,weight=1"
					d.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: strategy, corev1.LastAppliedConfigAnnotation: fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, strategy)}
				}, "od-0", "spot-0")
			},
			manifests: deployment("", ""), want: "0 1→0 1 1→0, moved 0, stay 2, without 2",
		},
		"a label for a node": {
			shop:      func(t *testing.T, s *shop) { s.live(t, even); s.deployment("web", "100m", nil, "od-0", "spot-0") },
			manifests: "apiVersion: v1\nkind: Node\nmetadata: {name: od-0, labels: {new: label}}\n",
		},
		"a new StatefulSet with volumes": {
			shop:      func(t *testing.T, s *shop) { s.live(t, even) },
			manifests: "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, namespace: shop}\nspec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: none}]}}, volumeClaimTemplates: [{metadata: {name: data}}]}\n",
			want:      "od 0→1 spot 0→1, moved 0, stay 0",
		},
		"a new Deployment over domains": {
			shop:      func(t *testing.T, s *shop) { s.live(t, even+zones("a", "b", "c")) },
			manifests: deployment("replicas: 2,", ""),
			want:      "od 0→1 spot 0→1, moved 0, stay 0",
		},
		"room in each domain": {
			shop: func(_ *testing.T, s *shop) {
				s.deployment("web", "1", nil, strings.Split(strings.Repeat("od-0 ", 12), " ")[:12]...)
			},
			manifests: strings.Replace(even, "pool: od}, weight: 1", "pool: od}, weight: 0, base: 1", 1) + zones("a", "b", "c"),
			want:      "od 12→1 spot 0→11, moved 12, stay 0",
		},
		"more pods without a policy": {
			shop:   func(_ *testing.T, s *shop) { s.deployment("web", "3", nil, "od-0") },
			change: Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "web"}: 8}},
			want:   ", moved 0, stay 1, waiting 2, without 8",
		},
		"maximum of the pools": {
			shop: func(_ *testing.T, s *shop) {
				s.deployment("web", "100m", nil, "od-0", "od-0", "od-0", "od-0", "od-0", "od-0", "od-0", "od-0", "od-0", "od-0")
			},
			manifests: strings.ReplaceAll(even, "weight: 1}", "weight: 1, maxReplicas: 3}"),
			want:      "od 10→3 spot 0→3, moved 3, stay 3, without 4",
		},
		"eviction without repair": {
			shop:      func(_ *testing.T, s *shop) { s.deployment("web", "100m", nil, "od-0", "od-0") },
			manifests: even + "  rebalance: Evict\n  repair: \"Off\"\n", want: "od 2→1 spot 0→1, moved 1, stay 1",
		},
		"a replica count that would fill the memory": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				s.deployment("web", "100m", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(1<<31 - 1)) }, "od-0")
			},
			change: Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "web"}: 2_000_000}},
			want:   "od 1→0 spot 0→0, moved 0, stay 1, unsure: its pods cannot be previewed: it asks for more than 5000 pods; a rollout is under way",
		},
		"a RuntimeClass that contradicts the template": {
			shop: func(_ *testing.T, s *shop) {
				s.add(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "other", Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"a": "b"}}})
				s.deployment("web", "100m", func(d *appsv1.Deployment) {
					d.Spec.Template.Spec.RuntimeClassName, d.Spec.Template.Spec.NodeSelector = new("other"), map[string]string{"a": "c"}
				}, "od-0")
			},
			manifests: even, want: `od 1→0 spot 0→0, moved 0, stay 1, unsure: its pods cannot be previewed: spec.nodeSelector[a] is "c", but RuntimeClass "other" demands "b"`,
		},
		"pods with the owner of another namespace": {
			shop: func(t *testing.T, s *shop) {
				s.live(t, even)
				s.deployment("web", "100m", nil, "od-0", "spot-0")
				of := template("web", "100m")
				s.pods(&of, owner("apps/v1", "ReplicaSet", "web-1", "web-1"), "forged", []string{"od-0"})
				s.objects[len(s.objects)-1].SetNamespace("other")
			},
			change: Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "web"}: 4}}, want: "od 1→2 spot 1→2, moved 0, stay 2",
		},
		"a ReplicaSet of nobody": {
			shop: func(_ *testing.T, s *shop) {
				rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Template: template("web", "100m")}}
				s.add(rs)
				s.pods(&rs.Spec.Template, owner("apps/v1", "ReplicaSet", "web", "web"), "web", []string{"od-0", "od-0"})
			},
			manifests: even, want: "od 2→1 spot 0→1, moved 1, stay 1, unsure: nothing replaces its pods, so that only new ones follow",
		},
		"pods of a kind that is not known": {
			shop: func(_ *testing.T, s *shop) {
				of := template("db", "100m")
				s.pods(&of, owner("core.strimzi.io/v1beta2", "StrimziPodSet", "db", "db"), "db", []string{"od-0"})
			},
			manifests: even, warning: "what becomes of the pods of a StrimziPodSet (1)",
		},
		"a kind that changes nothing": {manifests: even + "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\n", warning: "1 NodePool"},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			if tc.shop != nil {
				tc.shop(t, s)
			}
			r, err := s.of(t, tc.change, tc.manifests, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for i := range r.Workloads {
				if r.Workloads[i].Name == "web" {
					got = text(&r.Workloads[i])
				}
			}
			if got != tc.want {
				t.Errorf("the workload is\n%s, want\n%s", got, tc.want)
			}
			if all := strings.Join(r.Warnings, "\n"); !strings.Contains(all, tc.warning) {
				t.Errorf("the warnings are %q, want %q", all, tc.warning)
			}
		})
	}
}

// A size that another change leaves alone is not a part of it, and nor is what others put into the pods.
func TestOtherSizes(t *testing.T) {
	s := newShop()
	for _, o := range s.objects {
		if p, ok := o.(*corev1.Pod); ok && strings.HasPrefix(p.Name, "agent") {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar", Resources: corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=1")}})
		}
	}
	r, err := s.of(t, Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "web"}: 3}}, "", nil)
	if err != nil || len(r.DaemonSets) > 0 {
		t.Errorf("the report has %v, %v", r.DaemonSets, err)
	}
}

// Two policies of one name are two, and each run says the same.
func TestPoliciesOfOneName(t *testing.T) {
	s := plain()
	s.add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	s.deployment("web", "100m", nil, "od-0", "od-0")
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web", UID: "other"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Template: template("web", "100m")}}
	s.add(d)
	own := strings.Replace(strings.Replace(strings.Replace(even, "ClusterSpreadPolicy", "SpreadPolicy", 1), "  namespaceSelector: {matchLabels: {team: shop}}\n", "", 1), "{name: even}", "{name: even, namespace: NS}", 1)
	manifests := strings.ReplaceAll(own, "NS", "shop") + "---\n" + strings.ReplaceAll(own, "NS", "other")
	last := ""
	for range 10 {
		r, err := s.of(t, Change{}, manifests, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range r.Policies {
			got += fmt.Sprintf("%s %s %d; ", p.Source, p.Change, p.Workloads)
		}
		if last != "" && got != last {
			t.Fatalf("%s, and then %s", last, got)
		}
		last = got
	}
	if want := "SpreadPolicy shop/even added 1; SpreadPolicy other/even added 1; "; last != want {
		t.Errorf("the policies are %s, want %s", last, want)
	}
}
