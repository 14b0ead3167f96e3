package podpatch_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

func absent(key string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
}

func require(r ...corev1.NodeSelectorRequirement) func(*podpatch.Pod) {
	return func(p *podpatch.Pod) { p.Require(r) }
}

func unrequire(key string) func(*podpatch.Pod) {
	return func(p *podpatch.Pod) {
		p.Unrequire(func(r *corev1.NodeSelectorRequirement) bool { return r.Key == key })
	}
}

func TestDiff(t *testing.T) {
	cases := map[string]struct {
		pod    string
		change func(*podpatch.Pod)
		want   string
	}{
		"no change is an empty patch": {
			pod:    `{"metadata":{"annotations":{"a":"1"}},"spec":{"containers":[{"name":"c","resources":{}}]}}`,
			change: func(*podpatch.Pod) {},
			want:   `null`,
		},
		"the only gate is removed with its list": {
			pod:    `{"metadata":{},"spec":{"schedulingGates":[{"name":"g"}]}}`,
			change: func(p *podpatch.Pod) { p.Ungate("g") },
			want:   `[{"op":"remove","path":"/spec/schedulingGates"}]`,
		},
		"a gate is removed, and the others stay": {
			pod:    `{"metadata":{},"spec":{"schedulingGates":[{"name":"a"},{"name":"g"},{"name":"b"}]}}`,
			change: func(p *podpatch.Pod) { p.Ungate("g") },
			want:   `[{"op":"remove","path":"/spec/schedulingGates/1"}]`,
		},
		"a constraint loses its number of domains, and another one gets one": {
			pod: `{"metadata":{},"spec":{"topologySpreadConstraints":[{"topologyKey":"a","minDomains":3},{"topologyKey":"b"},{"topologyKey":"c","minDomains":2}]}}`,
			change: func(p *podpatch.Pod) {
				p.Spec.TopologySpreadConstraints[0].MinDomains, p.Spec.TopologySpreadConstraints[1].MinDomains = nil, new(int32(4))
			},
			want: `[{"op":"remove","path":"/spec/topologySpreadConstraints/0/minDomains"},{"op":"add","path":"/spec/topologySpreadConstraints/1/minDomains","value":4}]`,
		},
		"a gate that a pod does not have": {
			pod:    `{"metadata":{},"spec":{"schedulingGates":[{"name":"a"}]}}`,
			change: func(p *podpatch.Pod) { p.Ungate("g") },
			want:   `null`,
		},
		"an annotation is added to a map that exists": {
			pod:    `{"metadata":{"annotations":{"theirs":"1"}},"spec":{}}`,
			change: func(p *podpatch.Pod) { p.SetAnnotation("example.com/ours~", "2") },
			want:   `[{"op":"add","path":"/metadata/annotations/example.com~1ours~0","value":"2"}]`,
		},
		"a missing map is added whole": {
			pod:    `{"metadata":{},"spec":{}}`,
			change: func(p *podpatch.Pod) { p.SetAnnotation("b", "2"); p.SetAnnotation("a", "1") },
			want:   `[{"op":"add","path":"/metadata/annotations","value":{"a":"1","b":"2"}}]`,
		},
		"an empty map gets its entries one by one": {
			pod:    `{"metadata":{"annotations":{}},"spec":{}}`,
			change: func(p *podpatch.Pod) { p.SetAnnotation("a", "1") },
			want:   `[{"op":"add","path":"/metadata/annotations/a","value":"1"}]`,
		},
		"a changed value is replaced": {
			pod:    `{"metadata":{"annotations":{"a":"1","b":"1"}},"spec":{}}`,
			change: func(p *podpatch.Pod) { p.SetAnnotation("a", "2") },
			want:   `[{"op":"replace","path":"/metadata/annotations/a","value":"2"}]`,
		},
		"the last entry's removal removes the map": {
			pod:    `{"metadata":{"labels":{"a":"1"}},"spec":{}}`,
			change: func(p *podpatch.Pod) { delete(p.Metadata.Labels, "a") },
			want:   `[{"op":"remove","path":"/metadata/labels"}]`,
		},
		"resources go and come entry by entry": {
			pod: `{"metadata":{},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1"}}}]}}`,
			change: func(p *podpatch.Pod) {
				p.Spec.Containers[0].Resources.Limits = podpatch.ResourceList{"example.com/vm": "1"}
				p.Spec.Containers[0].Resources.Requests = nil
			},
			want: `[{"op":"remove","path":"/spec/containers/0/resources/limits/cpu"},` +
				`{"op":"remove","path":"/spec/containers/0/resources/limits/memory"},` +
				`{"op":"add","path":"/spec/containers/0/resources/limits/example.com~1vm","value":"1"},` +
				`{"op":"remove","path":"/spec/containers/0/resources/requests"}]`,
		},
		"a container without a resources object gets one": {
			pod: `{"metadata":{},"spec":{"initContainers":[{"name":"i"}],"containers":[{"name":"c"}]}}`,
			change: func(p *podpatch.Pod) {
				p.Spec.Containers[0].Resources = &podpatch.Resources{Limits: podpatch.ResourceList{"cpu": "1"}}
			},
			want: `[{"op":"add","path":"/spec/containers/0/resources","value":{"limits":{"cpu":"1"}}}]`,
		},
		"a node selector grows key by key": {
			pod:    `{"metadata":{},"spec":{"nodeSelector":{"a":"1"}}}`,
			change: func(p *podpatch.Pod) { p.SetNodeSelector("karpenter.sh/type", "spot") },
			want:   `[{"op":"add","path":"/spec/nodeSelector/karpenter.sh~1type","value":"spot"}]`,
		},
		"tolerations grow at their end, and not twice": {
			pod: `{"metadata":{},"spec":{"tolerations":[{"key":"a","operator":"Exists"}]}}`,
			change: func(p *podpatch.Pod) {
				p.AddToleration(corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists})
				p.AddToleration(corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists})
			},
			want: `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"b","operator":"Exists"}}]`,
		},
		"a preference in a pod without an affinity": {
			pod:    `{"metadata":{},"spec":{}}`,
			change: func(p *podpatch.Pod) { p.AddPreference(preference("a")) },
			want:   `[{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]}}}]`,
		},
		"a preference beside pod affinity": {
			pod:    `{"metadata":{},"spec":{"affinity":{"podAffinity":{}}}}`,
			change: func(p *podpatch.Pod) { p.AddPreference(preference("a")) },
			want:   `[{"op":"add","path":"/spec/affinity/nodeAffinity","value":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]}}]`,
		},
		"a preference beside required terms": {
			pod:    `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}}}}}`,
			change: func(p *podpatch.Pod) { p.AddPreference(preference("a")) },
			want:   `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution","value":[{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]}]`,
		},
		"a preference beside another, and not twice": {
			pod: `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]}}}}`,
			change: func(p *podpatch.Pod) {
				p.AddPreference(preference("a"))
				p.AddPreference(preference("b"))
			},
			want: `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-","value":{"weight":1,"preference":{"matchExpressions":[{"key":"b","operator":"Exists"}]}}}]`,
		},
		"requirements in a pod without an affinity": {
			pod:    `{"metadata":{},"spec":{}}`,
			change: require(absent("spot")),
			want:   `[{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"spot","operator":"DoesNotExist"}]}]}}}}]`,
		},
		"requirements beside a preference": {
			pod:    `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}}}`,
			change: require(absent("spot")),
			want:   `[{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution","value":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"spot","operator":"DoesNotExist"}]}]}}]`,
		},
		"requirements in each term that is not empty, and not twice": {
			pod: `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` +
				`{"matchExpressions":[{"key":"disk","operator":"Exists"}]},{},{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}]}}}}}`,
			change: func(p *podpatch.Pod) { require(absent("spot"))(p); require(absent("spot"))(p) },
			want: `[{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/-","value":{"key":"spot","operator":"DoesNotExist"}},` +
				`{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/2/matchExpressions","value":[{"key":"spot","operator":"DoesNotExist"}]}]`,
		},
		"requirements taken back": {
			pod: `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` +
				`{"matchExpressions":[{"key":"disk","operator":"Exists"},{"key":"spot","operator":"DoesNotExist"}]},{}]}}}}}`,
			change: unrequire("spot"),
			want:   `[{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions","value":[{"key":"disk","operator":"Exists"}]}]`,
		},
		"the only requirements taken back": {
			pod:    `{"metadata":{},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"spot","operator":"DoesNotExist"}]}]}}}}}`,
			change: unrequire("spot"),
			want:   `[{"op":"remove","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"}]`,
		},
		"a PriorityClass, and what follows from it": {
			pod:    `{"metadata":{},"spec":{"priorityClassName":"high","priority":1000,"preemptionPolicy":"PreemptLowerPriority"}}`,
			change: func(p *podpatch.Pod) { p.SetPriorityClass("low", new(int32(-5)), new(corev1.PreemptNever)) },
			want:   `[{"op":"add","path":"/spec/priorityClassName","value":"low"},{"op":"add","path":"/spec/priority","value":-5},{"op":"add","path":"/spec/preemptionPolicy","value":"Never"}]`,
		},
		"a PriorityClass whose value is not known": {
			pod:    `{"metadata":{},"spec":{"priorityClassName":"high","priority":1000,"preemptionPolicy":"PreemptLowerPriority"}}`,
			change: func(p *podpatch.Pod) { p.SetPriorityClass("low", nil, nil) },
			want:   `[{"op":"add","path":"/spec/priorityClassName","value":"low"},{"op":"remove","path":"/spec/priority"},{"op":"remove","path":"/spec/preemptionPolicy"}]`,
		},
		"a grace period": {
			pod:    `{"metadata":{},"spec":{"terminationGracePeriodSeconds":30}}`,
			change: func(p *podpatch.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(5)) },
			want:   `[{"op":"add","path":"/spec/terminationGracePeriodSeconds","value":5}]`,
		},
		"pod-level resources go whole": {
			pod:    `{"metadata":{},"spec":{"resources":{"limits":{"cpu":"1"}},"containers":[]}}`,
			change: func(p *podpatch.Pod) { p.Spec.Resources = nil },
			want:   `[{"op":"remove","path":"/spec/resources"}]`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before, err := podpatch.Decode([]byte(tc.pod))
			if err != nil {
				t.Fatal(err)
			}
			after := before.Clone()
			tc.change(after)
			got, err := podpatch.Diff(before, after).JSON()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod at a gate gets all that Stowage writes in one patch, which touches nothing else and holds for one version of one pod.
func TestStrategic(t *testing.T) {
	own := corev1.PodSchedulingGate{Name: "stowage.dev/seat"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "ns", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"app": "web", "copied": "x"}, Annotations: map[string]string{"theirs": "1"},
	}, Spec: corev1.PodSpec{
		Containers:      []corev1.Container{{Name: "c", Image: "i"}},
		SchedulingGates: []corev1.PodSchedulingGate{{Name: "a"}, own, {Name: "b"}},
		NodeSelector:    map[string]string{"disk": "ssd"},
		Tolerations:     []corev1.Toleration{{Key: "theirs"}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}}},
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: "Exists"}}}}}}},
	}}
	for name, change := range map[string]struct {
		ours   func(*podpatch.Pod)
		theirs func(*corev1.Pod)
	}{
		"the gate alone": {func(*podpatch.Pod) {}, func(*corev1.Pod) {}},
		"a seat": {func(p *podpatch.Pod) {
			p.SetLabel("seat", "1")
			delete(p.Metadata.Labels, "copied")
			p.SetAnnotation("claim", "x")
			p.SetNodeSelector("pool", "a")
			p.AddToleration(corev1.Toleration{Key: "spot"})
			p.AddPreference(preference("pool"))
		}, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "web", "seat": "1"}
			p.Annotations["claim"], p.Spec.NodeSelector["pool"] = "x", "a"
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "spot"})
			p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{preference("pool")}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := podpatch.FromPod(pod)
			after := before.Clone()
			change.ours(after)
			after.Ungate(own.Name)
			patch, err := podpatch.Strategic(before, after, pod.UID, pod.ResourceVersion)
			if err != nil || !strings.Contains(string(patch), `"uid":"uid"`) || !strings.Contains(string(patch), `"resourceVersion":"7"`) {
				t.Fatalf("%s, %v", patch, err)
			}
			was, _ := json.Marshal(pod)
			is, err := strategicpatch.StrategicMergePatch(was, patch, corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			var got corev1.Pod
			if err := json.Unmarshal(is, &got); err != nil {
				t.Fatal(err)
			}
			want := pod.DeepCopy()
			change.theirs(want)
			want.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}}
			if diff := cmp.Diff(want, &got); diff != "" {
				t.Errorf("patched (-want +got):\n%s\n%s", diff, patch)
			}
		})
	}
}

func preference(key string) corev1.PreferredSchedulingTerm {
	return corev1.PreferredSchedulingTerm{Weight: 1, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}},
	}}
}

// A patch applied to the document that before came from must give the document
// that after stands for, and leave everything else in it alone.
func TestDiffAppliesAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := podpatchGen().Draw(t, "before")
		after := before.Clone()
		change(t, after)

		doc := document(t, before)
		patch, err := podpatch.Diff(before, after).JSON()
		if err != nil {
			t.Fatal(err)
		}
		got := doc
		if string(patch) != "null" {
			p, err := jsonpatch.DecodePatch(patch)
			if err != nil {
				t.Fatal(err)
			}
			if got, err = p.Apply(doc); err != nil {
				t.Fatalf("apply %s to %s: %v", patch, doc, err)
			}
		}
		back, err := podpatch.Decode(got)
		if err != nil {
			t.Fatal(err)
		}
		if rest := podpatch.Diff(back, after); len(rest) != 0 {
			t.Fatalf("after the patch %s there is still a difference: %v", patch, rest)
		}
		var m map[string]any
		if err := json.Unmarshal(got, &m); err != nil {
			t.Fatal(err)
		}
		if m["spec"].(map[string]any)["fieldOfTheFuture"] != "stays" {
			t.Fatalf("an unknown field was lost: %s", got)
		}
	})
}

// document renders a pod with fields that we do not know.
func document(t *rapid.T, p *podpatch.Pod) []byte {
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m["spec"].(map[string]any)["fieldOfTheFuture"] = "stays"
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return data
}

func podpatchGen() *rapid.Generator[*podpatch.Pod] {
	return rapid.Custom(func(t *rapid.T) *podpatch.Pod {
		p := &podpatch.Pod{}
		p.Metadata.Annotations = stringMap().Draw(t, "annotations")
		p.Metadata.Labels = stringMap().Draw(t, "labels")
		for range rapid.IntRange(0, 3).Draw(t, "containers") {
			p.Spec.Containers = append(p.Spec.Containers, podpatch.Container{Name: "c", Resources: resourcesGen().Draw(t, "resources")})
		}
		return p
	})
}

func change(t *rapid.T, p *podpatch.Pod) {
	p.Metadata.Annotations = stringMap().Draw(t, "new annotations")
	p.Metadata.Labels = stringMap().Draw(t, "new labels")
	for i := range p.Spec.Containers {
		if r := resourcesGen().Draw(t, "new resources"); r != nil {
			p.Spec.Containers[i].Resources = r
		}
	}
}

func stringMap() *rapid.Generator[map[string]string] {
	return rapid.OneOf(rapid.Just(map[string]string(nil)),
		rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c/d", "e~f", "~1"}), rapid.SampledFrom([]string{"", "1", `"`}), 0, 4))
}

func resourcesGen() *rapid.Generator[*podpatch.Resources] {
	list := rapid.Custom(func(t *rapid.T) podpatch.ResourceList {
		m := rapid.MapOfN(rapid.SampledFrom([]string{"cpu", "memory", "x/y"}), rapid.Int64Range(0, 3), 0, 3).Draw(t, "list")
		if len(m) == 0 {
			return nil
		}
		out := podpatch.ResourceList{}
		for k, v := range m {
			out[corev1.ResourceName(k)] = podpatch.Quantity(fmt.Sprint(v))
		}
		return out
	})
	return rapid.OneOf(rapid.Just((*podpatch.Resources)(nil)), rapid.Custom(func(t *rapid.T) *podpatch.Resources {
		return &podpatch.Resources{Requests: list.Draw(t, "requests"), Limits: list.Draw(t, "limits")}
	}))
}

func TestQuantityParse(t *testing.T) {
	for in, want := range map[podpatch.Quantity]string{
		"1": "1", "500m": "500m", "1Gi": "1Gi", "2E": "2E", "1Ei": "1Ei", "1e3": "1e3", "-1": "-1",
		"": "", "abc": "", "1e31": "", "1e-31": "", "1e999999999": "", "1e-999999999": "", "0e9999999999999999999": "",
		podpatch.Quantity(strings.Repeat("9", 65)): "",
	} {
		got, err := in.Parse()
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("%q is %s (%v), want %q", in, got.String(), err, want)
		}
	}
}

func TestQuantityDecodes(t *testing.T) {
	p, err := podpatch.Decode([]byte(`{"spec":{"resources":{"limits":{"a":"1\u006d","b":2,"c":null}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := podpatch.ResourceList{"a": "1m", "b": "2", "c": ""}
	if diff := cmp.Diff(want, p.Spec.Resources.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","ownerReferences":[{"controller":true}]},"spec":{"containers":[{"resources":{"limits":{"cpu":"1"}}}]}}`))
	f.Add([]byte(`{"spec":{"containers":null,"resources":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := podpatch.Decode(data)
		if err != nil {
			return
		}
		if patch := podpatch.Diff(p, p.Clone()); len(patch) != 0 {
			t.Errorf("a pod differs from its clone: %v", patch)
		}
	})
}

// A merge patch names what changed in labels and annotations, and nothing else.
func TestMerge(t *testing.T) {
	pod := func(labels, annotations map[string]string) *podpatch.Pod {
		return &podpatch.Pod{Metadata: podpatch.Metadata{Labels: labels, Annotations: annotations}}
	}
	for name, tc := range map[string]struct {
		before, after *podpatch.Pod
		want          string
	}{
		"nothing":   {pod(nil, nil), pod(nil, nil), `{"metadata":{"resourceVersion":"7"}}`},
		"added":     {pod(nil, nil), pod(map[string]string{"a": "1"}, map[string]string{"b": "2"}), `{"metadata":{"annotations":{"b":"2"},"labels":{"a":"1"},"resourceVersion":"7"}}`},
		"as it was": {pod(map[string]string{"a": "1", "c": "3"}, nil), pod(map[string]string{"a": "1", "c": "4"}, nil), `{"metadata":{"labels":{"c":"4"},"resourceVersion":"7"}}`},
		"removed":   {pod(nil, map[string]string{"b": "2"}), pod(nil, nil), `{"metadata":{"annotations":{"b":null},"resourceVersion":"7"}}`},
		"emptied":   {pod(map[string]string{"a": "1"}, nil), pod(map[string]string{"a": ""}, nil), `{"metadata":{"labels":{"a":""},"resourceVersion":"7"}}`},
	} {
		got, err := podpatch.Merge(tc.before, tc.after, "7")
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
}
