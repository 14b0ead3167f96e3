package preview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

const (
	strategyText = `custom-pod-schedule-strategy: "type=od,base=1,weight=20:type=spot,weight=80"`
	podSpec      = `spec: {containers: [{name: c, image: x}]}`
	template     = `selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, ` + podSpec + `}`
)

// manifest is one of a kind, with metadata and fields of the spec beside the template.
func manifest(apiVersion, kind, metadata, spec string) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {%s}\nspec: {%s, %s}\n", apiVersion, kind, metadata, spec, template)
}

// podOf is a pod of a dump, whose controller is an object with a UID.
func podOf(name, owner string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {a: b, pod-template-hash: 5d8f}, ownerReferences: [%s]}\n%s\nstatus: {phase: Running}\n", name, owner, podSpec)
}

// ownedBy is the reference of a controller.
func ownedBy(apiVersion, kind, name, uid string) string {
	return fmt.Sprintf("{apiVersion: %s, kind: %s, name: %s, uid: %s, controller: true}", apiVersion, kind, name, uid)
}

// outcome are the pods of each workload, with those in each pool, and the warnings.
func outcome(t *testing.T, input string) (pods map[string]string, warnings []string) {
	t.Helper()
	in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(input), Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	p := New(in, Settings{Spread: true})
	admitted, warnings, err := p.Admit(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	all, in0, in1 := map[string]int{}, map[string]int{}, map[string]int{}
	names := map[string]bool{}
	for i := range admitted {
		w, pod := admitted[i].Workload.String(), admitted[i].Pod
		if key := w + " " + pod.Name; names[key] {
			t.Errorf("two pods have the name %s", key)
		} else {
			names[key] = true
		}
		all[w]++
		switch pod.Labels[stowage.PoolLabel] {
		case "0":
			in0[w]++
		case "1":
			in1[w]++
		}
	}
	pods = map[string]string{}
	for _, w := range p.Workloads() {
		pods[w] = fmt.Sprintf("%d: %d/%d", all[w], in0[w], in1[w])
	}
	return pods, warnings
}

func TestIdentity(t *testing.T) {
	const apps, argo, kruise = "apps/v1", "argoproj.io/v1alpha1", "apps.kruise.io/v1alpha1"
	deployment := manifest(apps, "Deployment", "name: viaref", "replicas: 4")
	rollout := "---\napiVersion: " + argo + "\nkind: Rollout\nmetadata: {name: viaref, annotations: {" + strategyText + "}}\n" +
		"spec: {replicas: 5, workloadRef: {apiVersion: apps/v1, kind: Deployment, name: viaref}}\n"
	web := manifest(apps, "Deployment", "name: web, uid: d-1, annotations: {"+strategyText+"}", "replicas: 10")
	replicaSet := manifest(apps, "ReplicaSet", "name: web-5d8f, uid: r-1, ownerReferences: ["+ownedBy(apps, "Deployment", "web", "d-1")+"]", "replicas: 10")
	pods := ""
	for i := range 3 {
		pods += podOf(fmt.Sprintf("web-5d8f-%d", i), ownedBy(apps, "ReplicaSet", "web-5d8f", "r-1"))
	}
	distributor := func(metadata, pools string) string {
		return "---\napiVersion: versprei.versprei.io/v1beta1\nkind: PodDistributor\nmetadata: {" + metadata + "}\n" +
			"spec: {target: {apiVersion: apps/v1, kind: Deployment, name: web}, distribution: [" + pools + "]}\n"
	}
	const first, second = "{nodeLabel: {p: a}, weight: 1}, {nodeLabel: {p: b}, weight: 0}", "{nodeLabel: {p: a}, weight: 0}, {nodeLabel: {p: b}, weight: 1}"
	plain := manifest(apps, "Deployment", "name: web", "replicas: 2")
	cron := "---\napiVersion: batch/v1\nkind: CronJob\nmetadata: {name: night, uid: c-1}\nspec: {schedule: '* * * * *', jobTemplate: {spec: {template: {" + podSpec + "}}}}\n"
	job := func(name string) string { return ownedBy("batch/v1", "Job", name, "j-"+name) }
	for name, tc := range map[string]struct {
		input string
		want  map[string]string
		// warnings are parts of them.
		warnings []string
	}{
		"a Rollout and the Deployment of its template":    {input: rollout + deployment, want: map[string]string{"Rollout default/viaref": "5: 2/3", "Deployment default/viaref": "4: 0/0"}},
		"the same in the other order":                     {input: deployment + rollout, want: map[string]string{"Rollout default/viaref": "5: 2/3", "Deployment default/viaref": "4: 0/0"}},
		"a Rollout and a Deployment with equal templates": {input: manifest(argo, "Rollout", "name: viaref, annotations: {"+strategyText+"}", "replicas: 5") + deployment, want: map[string]string{"Rollout default/viaref": "5: 2/3", "Deployment default/viaref": "4: 0/0"}},
		"StatefulSets of two groups": {
			input: manifest(apps, "StatefulSet", "name: db", "replicas: 2") + manifest(kruise, "StatefulSet", "name: db, namespace: default, annotations: {"+strategyText+"}", "replicas: 5"),
			want:  map[string]string{"StatefulSet default/db": "2: 0/0", "StatefulSet.apps.kruise.io default/db": "5: 2/3"},
		},
		"a dump":                     {input: web + replicaSet + pods, want: map[string]string{"Deployment default/web": "10: 3/7"}},
		"a dump from below":          {input: pods + replicaSet + web, want: map[string]string{"Deployment default/web": "10: 3/7"}},
		"without its ReplicaSet":     {input: web + pods, want: map[string]string{"Deployment default/web": "10: 3/7"}},
		"without its Deployment":     {input: replicaSet + pods, want: map[string]string{"ReplicaSet default/web-5d8f": "10: 0/0"}},
		"of another namespace":       {input: strings.Replace(web, "name: web", "name: web, namespace: other", 1) + replicaSet, want: map[string]string{"Deployment other/web": "10: 3/7", "ReplicaSet default/web-5d8f": "10: 0/0"}},
		"of a former Deployment":     {input: strings.Replace(web, "d-1", "d-2", 1) + replicaSet, want: map[string]string{"Deployment default/web": "10: 3/7", "ReplicaSet default/web-5d8f": "10: 0/0"}},
		"of a manifest without uids": {input: strings.Replace(web, "uid: d-1, ", "", 1) + replicaSet + pods, want: map[string]string{"Deployment default/web": "10: 3/7"}},
		"of a kind of others": {
			input: "---\napiVersion: example.com/v1\nkind: App\nmetadata: {name: app, uid: a-1}\n" + manifest(apps, "Deployment", "name: web, ownerReferences: ["+ownedBy("example.com/v1", "App", "app", "a-1")+"]", "replicas: 2"),
			want:  map[string]string{"Deployment default/web": "2: 0/0"}, warnings: []string{"1 App"},
		},
		"of each other": {
			input: manifest(apps, "ReplicaSet", "name: left, uid: x, ownerReferences: ["+ownedBy(apps, "ReplicaSet", "right", "r")+"]", "replicas: 1") +
				manifest(apps, "ReplicaSet", "name: right, uid: r, ownerReferences: ["+ownedBy(apps, "ReplicaSet", "left", "x")+"]", "replicas: 2"),
			want: map[string]string{"ReplicaSet default/left": "1: 0/0", "ReplicaSet default/right": "2: 0/0"},
		},
		"a copy with the uid of a dump": {
			input: web + strings.Replace(web, "name: web", "name: copy", 1),
			want:  map[string]string{"Deployment default/web": "10: 3/7", "Deployment default/copy": "10: 3/7"},
		},
		"one object twice": {
			input: plain + manifest(apps, "Deployment", "name: web, namespace: default", "replicas: 3"), want: map[string]string{"Deployment default/web": "3: 0/0"},
			warnings: []string{"standard input: document 2 (Deployment default/web): the same object is in standard input: document 1, too; the last one counts"},
		},
		"one node twice": {
			input: strings.Repeat("---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n", 2) + "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent}\nspec: {" + template + "}\n",
			want:  map[string]string{"DaemonSet default/agent": "1: 0/0"}, warnings: []string{"(Node node-1): the same object is in"},
		},
		"a CronJob, its Job and a pod": {
			input: cron +
				"---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: night-29, uid: j-1, ownerReferences: [" + ownedBy("batch/v1", "CronJob", "night", "c-1") + "]}\nspec: {template: {" + podSpec + "}}\n" +
				podOf("night-29-x", ownedBy("batch/v1", "Job", "night-29", "j-1")),
			want: map[string]string{"CronJob default/night": "1: 0/0"},
		},
		"a CronJob and pods without their Jobs": {
			input: cron + podOf("night-29312345-x", job("night-29312345")) + podOf("night-29312346-x", job("night-29312346")),
			want:  map[string]string{"CronJob default/night": "1: 0/0"},
		},
		"pods of Jobs that the CronJob did not make": {
			input: cron + podOf("night-7-x", job("night-7")) + podOf("night-by-hand-x", job("night-by-hand")) + podOf("day-29312345-x", job("day-29312345")) +
				podOf("other-x", job("other")) + strings.Replace(podOf("night-29312345-x", job("night-29312345")), "kind: Job", "kind: Other", 1) +
				strings.Replace(podOf("night-29312346-x", job("night-29312346")), "name: night-29312346-x", "name: night-29312346-x, namespace: other", 1),
			want: map[string]string{
				"CronJob default/night": "1: 0/0", "Pod default/night-7-x": "1: 0/0", "Pod default/night-by-hand-x": "1: 0/0", "Pod default/day-29312345-x": "1: 0/0",
				"Pod default/other-x": "1: 0/0", "Pod default/night-29312345-x": "1: 0/0", "Pod other/night-29312346-x": "1: 0/0",
			},
		},
		"pods with generated names": {
			input: strings.Repeat("---\napiVersion: v1\nkind: Pod\nmetadata: {generateName: task-}\n"+podSpec+"\n", 2), want: map[string]string{"Pod default/task-": "2: 0/0"},
		},
		"a PodDistributor twice": {
			input: plain + distributor("name: web", first) + distributor("name: web, namespace: default", second), want: map[string]string{"Deployment default/web": "2: 0/2"},
			warnings: []string{"PodDistributor default/web): the same object is in"},
		},
		"two PodDistributors of one target": {
			input: plain + distributor("name: b", second) + distributor("name: a", first), want: map[string]string{"Deployment default/web": "2: 2/0"},
			warnings: []string{"PodDistributor default/b: it has no effect, because PodDistributor a has the same target"},
		},
		"the older one of two": {
			input:    plain + distributor("name: a, creationTimestamp: \"2026-02-01T00:00:00Z\"", first) + distributor("name: b, creationTimestamp: \"2026-01-01T00:00:00Z\"", second),
			want:     map[string]string{"Deployment default/web": "2: 0/2"},
			warnings: []string{"PodDistributor default/a: it has no effect, because PodDistributor b has the same target"},
		},
		"one of a cluster and a new one": {
			input:    plain + distributor("name: a", first) + distributor("name: b, creationTimestamp: \"2026-01-01T00:00:00Z\"", second),
			want:     map[string]string{"Deployment default/web": "2: 0/2"},
			warnings: []string{"PodDistributor default/a: it has no effect, because PodDistributor b has the same target"},
		},
		"a PodDistributor of a kind without a known template": {
			input: plain + "---\napiVersion: core.strimzi.io/v1beta2\nkind: StrimziPodSet\nmetadata: {name: kafka}\nspec: {pods: []}\n" +
				strings.Replace(distributor("name: d", first), "apiVersion: apps/v1, kind: Deployment, name: web", "apiVersion: core.strimzi.io/v1beta2, kind: StrimziPodSet, name: kafka", 1),
			want: map[string]string{"Deployment default/web": "2: 0/0"},
			warnings: []string{
				"PodDistributor default/d: its target core.strimzi.io/v1beta2 StrimziPodSet kafka is in the input, but preview knows no pod template of that kind",
				"1 StrimziPodSet",
			},
		},
		"a PodDistributor of nothing": {
			input: plain + strings.Replace(distributor("name: d", first), "name: web", "name: other", 1),
			want:  map[string]string{"Deployment default/web": "2: 0/0"}, warnings: []string{"its target apps/v1 Deployment other is not in the input"},
		},
		"a PodDistributor of a ReplicaSet of a Deployment": {
			input:    web + replicaSet + strings.Replace(distributor("name: d", first), "Deployment, name: web", "ReplicaSet, name: web-5d8f", 1),
			want:     map[string]string{"Deployment default/web": "10: 3/7"},
			warnings: []string{"ReplicaSet web-5d8f is a part of the workload that made it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, warnings := outcome(t, tc.input)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the pods (-want +got):\n%s", diff)
			}
			for _, part := range tc.warnings {
				if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, part) }) {
					t.Errorf("no warning has %q", part)
				}
			}
			if len(warnings) != len(tc.warnings) {
				t.Errorf("the warnings are %q", warnings)
			}
		})
	}
}

// Manifests that are laid over a cluster may be a dump of it. What a workload of the cluster made is a part of that.
func TestOverlayOfADump(t *testing.T) {
	load := func(input string) *Inputs {
		in, err := LoadChange(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(input), Namespace: "default"})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	web := manifest("apps/v1", "Deployment", "name: web, uid: d-1", "replicas: 10")
	replicaSet := manifest("apps/v1", "ReplicaSet", "name: web-5d8f, uid: r-1, ownerReferences: ["+ownedBy("apps/v1", "Deployment", "web", "d-1")+"]", "replicas: 10")
	pod := podOf("web-5d8f-a", ownedBy("apps/v1", "ReplicaSet", "web-5d8f", "r-1"))
	for name, change := range map[string]string{"all of it": web + replicaSet + pod, "what the Deployment made": replicaSet + pod, "a pod": pod} {
		in := load(web)
		in.Overlay(load(change), in.Workloads[0].meta.CreationTimestamp.Time)
		got := map[string]int64{}
		for i := range in.Workloads {
			got[in.Workloads[i].String()] += in.Workloads[i].Replicas()
		}
		if want := map[string]int64{"Deployment default/web": 10}; !maps.Equal(got, want) {
			t.Errorf("%s: the workloads are %v", name, got)
		}
	}
}

// A kind may be one of Kubernetes and one of another project. Only the workload that is meant is scaled or removed.
func TestWorkloadsOfOneNameAndKind(t *testing.T) {
	const ours, theirs = "apps", "apps.kruise.io"
	set := func(group, version string) string {
		return manifest(group+"/"+version, "StatefulSet", "name: web", "replicas: 2, serviceName: web")
	}
	first, second := set(ours, "v1"), set(theirs, "v1beta1")
	for name, tc := range map[string]struct {
		input, group   string
		scaled, remain map[string]int64 // the replicas by group
	}{
		"without a group, it is that of Kubernetes": {first + second, "", map[string]int64{ours: 7, theirs: 2}, map[string]int64{theirs: 2}},
		"in any order": {second + first, "", map[string]int64{ours: 7, theirs: 2}, map[string]int64{theirs: 2}},
		"with its group, it is that of another project":     {first + second, theirs, map[string]int64{ours: 2, theirs: 7}, map[string]int64{ours: 2}},
		"with the group of Kubernetes":                      {second + first, ours, map[string]int64{ours: 7, theirs: 2}, map[string]int64{theirs: 2}},
		"without a group, it is the only one":               {second, "", map[string]int64{theirs: 7}, map[string]int64{}},
		"with the group of Kubernetes, it is not the other": {second, ours, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(tc.input), Namespace: "default"})
			if err != nil {
				t.Fatal(err)
			}
			of := func(in *Inputs) map[string]int64 {
				out := map[string]int64{}
				for i := range in.Workloads {
					out[in.Workloads[i].Group] = in.Workloads[i].Replicas()
				}
				return out
			}
			kind := schema.GroupKind{Group: tc.group, Kind: "StatefulSet"}
			scaled, less := in.Clone(), in.Clone()
			if ok := scaled.Scale(kind, "default", "web", 7); ok != (tc.scaled != nil) || ok && !maps.Equal(of(scaled), tc.scaled) {
				t.Errorf("scaled (%t), the replicas are %v, want %v", ok, of(scaled), tc.scaled)
			}
			if ok := less.Remove(kind, "default", "web"); ok != (tc.remain != nil) || ok && !maps.Equal(of(less), tc.remain) {
				t.Errorf("removed (%t), the rest is %v, want %v", ok, of(less), tc.remain)
			}
			if left := len(less.Objects.Workloads); left != len(less.Workloads) {
				t.Errorf("%d workloads are left, and %d objects of them", len(less.Workloads), left)
			}
		})
	}
}
