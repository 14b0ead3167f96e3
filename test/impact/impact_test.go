// Package impact tests that `stowage impact` says what becomes of a cluster, on a real control plane: random clusters are looked at,
// changed and restarted, and their pods are counted.
package impact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/cli"
	"github.com/stowage-dev/stowage/internal/impact"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

var (
	clusters = flag.Int("clusters", 1, "how many random clusters")
	seed     = flag.Uint64("seed", 1, "of the first cluster; the others follow")
	size     = flag.Int("workloads", 40, "of each cluster")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(suite.Run(false, func(context.Context) (int, error) { return m.Run(), nil }))
}

// world is a random cluster: namespaces and nodes of its own in the control plane that all tests share.
type world struct {
	*rand.Rand
	t       *testing.T
	name    string
	tenants []*suite.Tenant
	// before and after are the policy of the cluster's namespaces; nil is none.
	before, after *stowage.ClusterSpreadPolicy
	closed        bool // the pool spot loses its room
}

// team is the label by which the policy selects namespaces.
const team = "team"

// TestRandomClusters looks at what a change would do, makes the change, restarts everything, and counts.
func TestRandomClusters(t *testing.T) {
	sure, unsure := 0, 0
	for i := range *clusters {
		t.Run(fmt.Sprintf("seed %d", *seed+uint64(i)), func(t *testing.T) {
			w := newWorld(t, *seed+uint64(i))
			n, m := w.run()
			sure, unsure = sure+n, unsure+m
		})
	}
	t.Logf("%d workloads are sure, and %d are not", sure, unsure)
	if total := sure + unsure; total == 0 || *clusters >= 5 && sure*100 < total*95 { // a few clusters may have what is rare
		t.Errorf("only %d of %d workloads are sure", sure, total)
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, name: fmt.Sprintf("impact-%d", seed)}
	for i := range 4 {
		labels := []string{"cluster=" + w.name}
		if i < 3 {
			labels = append(labels, team+"="+w.name)
		}
		w.tenants = append(w.tenants, suite.NewTenant(t, labels...))
	}
	room := testkit.ResourceList("cpu=1000,memory=1Ti,pods=2000")
	for _, pool := range []string{"od", "spot", "gpu", "other"} {
		for _, zone := range []string{"a", "b", "c"} {
			node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: room, Capacity: room}, ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("%s-%s-%s", w.name, pool, zone),
				Labels:      map[string]string{"pool": w.name + "-" + pool, corev1.LabelTopologyZone: zone, "cluster": w.name},
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			}}
			if pool == "gpu" { // nobody tolerates it, but for some
				node.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			}
			suite.Must(t, w.tenants[0].Create(t.Context(), node))
			t.Cleanup(func() { _ = suite.Cluster.Client.Delete(context.Background(), node) })
		}
	}
	// What changes goes round over the kinds of changes, so that few clusters have all of them.
	switch seed % 5 {
	case 1:
		w.after = w.policy(false)
	case 2:
		w.before = w.policy(false)
		w.after = w.before.DeepCopy()
		w.after.Spec.Pools[0].Weight, w.after.Spec.Pools[0].Base = 1+w.Int32N(9), w.Int32N(3)
	case 3:
		w.before = w.policy(false)
	case 4:
		w.before = w.policy(true)
		w.after, w.closed = w.before, true
	case 0: // only replica counts change
		w.before = w.policy(false)
		w.after = w.before
	}
	return w
}

// policy returns a random policy for three of the four namespaces.
func (w *world) policy(spill bool) *stowage.ClusterSpreadPolicy {
	pools := []string{"od", "spot"}
	if w.IntN(2) == 0 && !spill {
		pools = append(pools, "gpu")
	}
	p := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	p.Spec.NamespaceSelector = stowage.Selector{MatchLabels: map[string]versprei.LabelValue{team: versprei.LabelValue(w.name)}}
	p.Spec.SpreadPolicySpec = stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Enforcement: versprei.EnforcementRequired,
		Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}}}
	for i, name := range pools {
		pool := stowage.PolicyPool{Name: name, NodeSelector: w.selector(name), Weight: 1 + w.Int32N(5)}
		if i == 0 {
			pool.Base = w.Int32N(3)
		}
		if spill && name == "spot" {
			pool.Spill = &versprei.Spill{After: "10s"}
		}
		p.Spec.Pools = append(p.Spec.Pools, pool)
	}
	if w.IntN(3) == 0 {
		p.Spec.Pools[1].MaxReplicas = new(intstr.FromString("50%"))
	}
	if w.IntN(2) == 0 {
		p.Spec.Across = &versprei.Across{TopologyKey: corev1.LabelTopologyZone, Domains: []versprei.Domain{{Value: "a"}, {Value: "b"}, {Value: "c", Weight: 1 + w.Int32N(2)}}}
	}
	return p
}

func (w *world) selector(pool string) map[string]versprei.LabelValue {
	return map[string]versprei.LabelValue{"pool": versprei.LabelValue(w.name + "-" + pool)}
}

// run returns for how many workloads the report was sure, and for how many not.
func (w *world) run() (sure, unsure int) {
	t, c := w.t, suite.Cluster.Client
	if w.before != nil {
		w.apply(w.before.DeepCopy())
	}
	for i := range *size {
		w.workload(i)
	}
	w.settle()

	if w.before != nil {
		for _, of := range report(t).Workloads {
			if w.ours(of.Namespace) && !of.Other {
				t.Errorf("nothing is changed, and the next rollout changes %+v", of)
			}
		}
	}

	// 1. What would the change do?
	var args []string
	scaled := map[impact.Name]int32{}
	switch {
	case w.closed:
		args = append(args, "--exhausted", "spot")
	case w.after == nil:
		args = append(args, "--remove", "clusterspreadpolicy/"+w.name)
	case w.before == nil || w.before != w.after:
		p := w.after.DeepCopy()
		p.TypeMeta = metav1.TypeMeta{APIVersion: stowage.GroupVersion.String(), Kind: "ClusterSpreadPolicy"}
		data, err := yaml.Marshal(p)
		suite.Must(t, err)
		file := filepath.Join(t.TempDir(), "policy.yaml")
		suite.Must(t, os.WriteFile(file, data, 0o600))
		args = append(args, "-f", file)
	}
	if w.before == w.after && !w.closed || w.IntN(2) == 0 {
		for range 5 {
			n := w.tenants[w.IntN(len(w.tenants))]
			var list appsv1.DeploymentList
			suite.Must(t, n.List(t.Context(), &list, client.InNamespace(n.Namespace)))
			if len(list.Items) > 0 {
				d := list.Items[w.IntN(len(list.Items))]
				scaled[impact.Name{Kind: "Deployment", Namespace: n.Namespace, Name: d.Name}] = w.Int32N(20)
			}
		}
		for name, replicas := range scaled {
			args = append(args, "--replicas", fmt.Sprintf("deployment/%s/%s=%d", name.Namespace, name.Name, replicas))
		}
	}
	r := report(t, args...)

	// 2. Make it, and restart everything.
	for name, replicas := range scaled {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		suite.Must(t, c.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
	}
	switch {
	case w.closed:
		for _, zone := range []string{"a", "b", "c"} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-spot-%s", w.name, zone)}}
			suite.Must(t, c.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))))
		}
	case w.after == nil:
		suite.Must(t, c.Delete(t.Context(), w.before.DeepCopy()))
		w.tenants[0].Follows(t, nil, "", 0)
	case w.after != w.before:
		w.apply(w.after.DeepCopy())
	}
	for _, n := range w.tenants {
		restart := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().UTC().Format(time.RFC3339Nano)))
		var deployments appsv1.DeploymentList
		suite.Must(t, n.List(t.Context(), &deployments, client.InNamespace(n.Namespace)))
		for i := range deployments.Items {
			suite.Must(t, n.Patch(t.Context(), &deployments.Items[i], restart))
		}
		var sets appsv1.StatefulSetList
		suite.Must(t, n.List(t.Context(), &sets, client.InNamespace(n.Namespace)))
		for i := range sets.Items {
			suite.Must(t, n.Patch(t.Context(), &sets.Items[i], restart))
		}
	}

	// 3. Is it what was said, pod for pod?
	want := map[string]string{}
	for i := range r.Workloads {
		of := &r.Workloads[i]
		if !w.ours(of.Namespace) {
			continue
		}
		if len(of.Unsure) > 0 {
			unsure++
			t.Logf("unsure: %s %s/%s: %s", of.Kind, of.Namespace, of.Name, strings.Join(of.Unsure, "; "))
			continue
		}
		sure++
		want[of.Namespace+"/"+of.Name] = expected(of)
	}
	w.compare(want)
	return sure, unsure
}

// ours reports whether a namespace is of this cluster.
func (w *world) ours(namespace string) bool {
	return slices.ContainsFunc(w.tenants, func(n *suite.Tenant) bool { return n.Namespace == namespace })
}

// expected is what a report says of a workload, as [world.count] counts it.
func expected(of *impact.Workload) string {
	counts := map[string]int64{}
	for _, pool := range of.Pools {
		counts[pool.Name] += pool.Then
		for _, in := range pool.Domains {
			counts[pool.Name+"/"+in.Name] += in.Then
		}
	}
	counts["without"] = of.WithoutSeat
	return text(counts)
}

func text(counts map[string]int64) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		if counts[k] > 0 {
			out = append(out, fmt.Sprint(k, "=", counts[k]))
		}
	}
	return strings.Join(out, " ")
}

// compare waits until the pods of each workload are as expected. While a pool without room is tried now and then, they
// need not be at the same moment.
func (w *world) compare(want map[string]string) {
	t := w.t
	var wrong map[string]string
	defer func() {
		if len(wrong) > 0 {
			t.Errorf("what is there, and not what was said (-said +is):\n%s", gocmp.Diff(want, wrong))
		}
	}()
	right := map[string]bool{}
	suite.EventuallyEvery(t, time.Second, 4*time.Minute, "every workload is as it was said to be", func() (bool, error) {
		have, moving, err := w.count()
		if err != nil {
			return false, err
		}
		wrong = map[string]string{}
		for name, said := range want {
			is := have[name]
			if right[name] = is == said && !moving[name] || w.closed && right[name]; !right[name] {
				wrong[name] = is
			}
		}
		for name, said := range want {
			if wrong[name] == "" && len(wrong) > 0 {
				wrong[name] = said // what is right is not in the difference
			}
		}
		return len(wrong) == 0, nil
	})
}

// count counts the pods of each workload by pool and domain. A workload moves while it has not as many ready pods of one revision as it
// asks for. A pod counts where it runs, if that is where its seat is.
func (w *world) count() (have map[string]string, moving map[string]bool, err error) {
	ctx := w.t.Context()
	have, moving = map[string]string{}, map[string]bool{}
	for _, n := range w.tenants {
		var pods corev1.PodList
		var deployments appsv1.DeploymentList
		var sets appsv1.StatefulSetList
		for _, list := range []client.ObjectList{&pods, &deployments, &sets} {
			if err := n.List(ctx, list, client.InNamespace(n.Namespace)); err != nil {
				return nil, nil, err
			}
		}
		counts := map[string]map[string]int64{}
		active := map[string]int32{}
		for i := range pods.Items {
			p := &pods.Items[i]
			name := n.Namespace + "/" + p.Labels["app"]
			if !podstatus.Active(p) || !podstatus.Ready(p) {
				moving[name] = true
				continue
			}
			if counts[name] == nil {
				counts[name] = map[string]int64{}
			}
			active[name]++
			pool, domain := p.Labels[stowage.PoolLabel], p.Labels[stowage.DomainLabel]
			nodes := cmp.Or(map[string]string{"0": "od", "1": "spot"}[pool], pool) // annotations do not name their pools
			switch {
			case pool == "":
				counts[name]["without"]++
			case !strings.HasPrefix(p.Spec.NodeName, w.name+"-"+nodes+"-"+domain):
				counts[name]["elsewhere"]++
			default:
				counts[name][pool]++
				if domain != "" {
					counts[name][pool+"/"+domain]++
				}
			}
		}
		for i := range deployments.Items {
			d := &deployments.Items[i]
			name := n.Namespace + "/" + d.Name
			moving[name] = moving[name] || d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != *d.Spec.Replicas || d.Status.Replicas != *d.Spec.Replicas || active[name] != *d.Spec.Replicas
			have[name] = text(counts[name])
		}
		for i := range sets.Items {
			s := &sets.Items[i]
			name := n.Namespace + "/" + s.Name
			moving[name] = moving[name] || s.Status.ObservedGeneration < s.Generation || s.Status.CurrentRevision != s.Status.UpdateRevision || active[name] != *s.Spec.Replicas
			have[name] = text(counts[name])
		}
	}
	return have, moving, nil
}

// settle waits until no workload moves.
func (w *world) settle() {
	suite.EventuallyEvery(w.t, time.Second, 2*time.Minute, "the workloads are settled", func() (bool, error) {
		_, moving, err := w.count()
		return err == nil && !slices.Contains(slices.Collect(maps.Values(moving)), true), err
	})
}

// apply creates or changes the policy, and waits until every replica follows it.
func (w *world) apply(p *stowage.ClusterSpreadPolicy) {
	t, c := w.t, suite.Cluster.Client
	found := &stowage.ClusterSpreadPolicy{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: p.Name}, found); err == nil {
		found.Spec = p.Spec
		suite.Must(t, c.Update(t.Context(), found))
		p = found
	} else {
		suite.Must(t, c.Create(t.Context(), p))
		t.Cleanup(func() { _ = c.Delete(context.Background(), p) })
	}
	w.tenants[0].Follows(t, nil, p.UID, p.Generation)
}

// workload makes one of many kinds.
func (w *world) workload(i int) {
	t := w.t
	n := w.tenants[w.IntN(len(w.tenants))]
	name := fmt.Sprintf("app-%d", i)
	d := n.Deployment(name, w.IntN(13), nil)
	spec := &d.Spec.Template.Spec
	spec.NodeSelector = map[string]string{"cluster": w.name}
	spec.Containers[0].Resources.Requests = testkit.ResourceList(fmt.Sprintf("cpu=%dm", 100*(1+w.IntN(20))))
	if w.IntN(4) == 0 {
		spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	}
	strategy := fmt.Sprintf("pool=%[1]s-od,base=%[2]d,weight=%[3]d:pool=%[1]s-spot,weight=%[4]d", w.name, w.IntN(3), 1+w.IntN(4), 1+w.IntN(4))
	switch kind := w.IntN(100); {
	case kind < 12 && !w.closed:
		s := &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
			Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template, PodManagementPolicy: appsv1.ParallelPodManagement,
		}}
		if kind == 0 {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		}
		suite.Must(t, n.Create(t.Context(), s))
		return
	case kind < 20:
		d.Spec.Template.Annotations = suite.Annotated(strategy)
		if w.closed { // without spill, its pods would wait
			d.Spec.Template.Annotations = nil
		}
	case kind < 28:
		d.Annotations = suite.Annotated(strategy)
		if w.closed {
			d.Annotations = nil
		}
	case kind < 36 && !w.closed:
		pd := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{{Name: "od", NodeLabel: w.selector("od"), Weight: 1 + w.Int32N(3)}, {Name: "spot", NodeLabel: w.selector("spot"), Weight: 1 + w.Int32N(3)}},
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		}}
		if w.IntN(3) == 0 {
			pd.Spec.Distribution[1].MaxReplicas = new(intstr.FromInt32(1 + w.Int32N(3)))
		}
		if w.IntN(8) == 0 {
			pd.Spec.Enforcement = versprei.EnforcementPreferred
		}
		suite.Must(t, n.Create(t.Context(), pd))
	case kind < 42:
		spec.NodeSelector["pool"] = w.name + "-od"
	case kind < 46:
		d.Spec.Template.Annotations = map[string]string{stowage.ModeKey: []string{"Audit", "Off"}[w.IntN(2)]}
	}
	suite.Must(t, n.Create(t.Context(), d))
}

// report runs the command.
func report(t *testing.T, args ...string) *impact.Report {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit := cli.Main(t.Context(), slices.Concat([]string{"impact", "--kubeconfig", suite.Cluster.Kubeconfig, "-o", "json", "--all"}, args), cli.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, LookupEnv: func(string) (string, bool) { return "", false },
	})
	if exit != 0 && exit != 3 {
		t.Fatalf("stowage impact %s, exit %d:\n%s", strings.Join(args, " "), exit, &stderr)
	}
	r := &impact.Report{}
	suite.Must(t, json.Unmarshal(stdout.Bytes(), r))
	for _, w := range r.Warnings {
		t.Log("warning: ", w)
	}
	if text := new(bytes.Buffer); r.Print(text, "text", false) == nil {
		t.Log(text.String())
	}
	return r
}
