package impact

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/api"
	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/preview/crds"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Nothing here is decided by an API server: a fake client only hands out what there is. That the counts come true is tested in
// test/impact.

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// shop is a cluster with some workloads, and without policies.
type shop struct {
	objects []client.Object
	dryRun  func(context.Context, *corev1.Pod) error
}

func (s *shop) add(objects ...client.Object) { s.objects = append(s.objects, objects...) }

// node adds a node of a pool.
func (s *shop) node(pool string, number int, cpu string) {
	room := testkit.ResourceList("cpu=" + cpu + ",memory=16Gi,pods=110,kata.peerpods.io/vm=5")
	s.add(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", pool, number), Labels: map[string]string{"pool": pool, corev1.LabelInstanceTypeStable: "m.large", "kubernetes.io/hostname": fmt.Sprintf("%s-%d", pool, number)}},
		Status:     corev1.NodeStatus{Allocatable: room, Capacity: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
}

func template(app, cpu string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=" + cpu)}}}},
	}
}

// deployment adds a Deployment whose pods run on some nodes; "" is none.
func (s *shop) deployment(name, cpu string, change func(*appsv1.Deployment), nodes ...string) {
	replicas := int32(len(nodes))
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Template: template(name, cpu)},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: replicas, UpdatedReplicas: replicas, Replicas: replicas},
	}
	if change != nil {
		change(d)
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", UID: types.UID(name + "-1"), OwnerReferences: owner("apps/v1", "Deployment", name, d.UID)}}
	s.add(d, rs)
	s.pods(&d.Spec.Template, owner("apps/v1", "ReplicaSet", rs.Name, rs.UID), name, nodes)
}

func owner(version, kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: new(true)}}
}

func (s *shop) pods(of *corev1.PodTemplateSpec, by []metav1.OwnerReference, name string, nodes []string) {
	for i, node := range nodes {
		p := &corev1.Pod{ObjectMeta: *of.ObjectMeta.DeepCopy(), Spec: *of.Spec.DeepCopy()}
		p.Namespace, p.Name, p.OwnerReferences = "shop", fmt.Sprintf("%s-%d", name, i), by
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		s.add(p)
	}
}

func newShop() *shop {
	s := &shop{}
	s.add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "shop"}}})
	s.node("od", 1, "8")
	s.node("od", 2, "8")
	s.node("spot", 1, "4")
	s.node("other", 1, "8")
	// 10 pods; 2 are to run on demand and 8 on spot, by the policy below.
	s.deployment("web", "500m", nil, "od-1", "od-1", "od-1", "od-1", "od-1", "spot-1", "spot-1", "spot-1", "other-1", "other-1")
	s.deployment("pinned", "100m", func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "od"} }, "od-1", "od-1")
	s.deployment("off", "100m", func(d *appsv1.Deployment) { d.Spec.Template.Annotations = map[string]string{stowage.ModeKey: "Off"} }, "od-2")
	s.deployment("paused", "100m", func(d *appsv1.Deployment) { d.Spec.Paused = true }, "od-2", "od-2")
	s.deployment("agentless", "100m", func(d *appsv1.Deployment) { d.Spec.Template.Labels["tier"] = "none" }, "od-2")
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(2)), Template: template("db", "100m"), VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}},
		Status:     appsv1.StatefulSetStatus{ReadyReplicas: 2},
	}
	s.add(set)
	of := set.Spec.Template.DeepCopy()
	of.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	s.pods(of, owner("apps/v1", "StatefulSet", "db", "db"), "db", []string{"od-1", "spot-1"})
	for i, pool := range []string{"od", "spot"} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", i)}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: fmt.Sprint("data-db-", i)}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}},
		}}}}
		s.add(v)
	}
	// A peer pod, and a DaemonSet.
	s.add(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata-remote"}, Handler: "kata-remote"})
	s.deployment("vm", "1500m", func(d *appsv1.Deployment) { d.Spec.Template.Spec.RuntimeClassName = new("kata-remote") }, "od-2")
	daemons := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent", UID: "agent", Annotations: map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}},
		Spec:       appsv1.DaemonSetSpec{Template: template("agent", "100m")},
	}
	s.add(daemons)
	s.pods(&daemons.Spec.Template, owner("apps/v1", "DaemonSet", "agent", "agent"), "agent", []string{"od-1", "od-2", "spot-1", "other-1"})
	return s
}

const policyText = `
apiVersion: stowage.dev/v1alpha1
kind: ClusterSpreadPolicy
metadata: {name: shop}
spec:
  mode: Enforce
  namespaceSelector: {matchLabels: {team: shop}}
  selector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}
  kinds: [{group: apps, kind: ReplicaSet}, {group: apps, kind: StatefulSet}]
  pools:
  - {name: od, nodeSelector: {pool: od}, weight: 20}
  - {name: spot, nodeSelector: {pool: spot}, weight: 80}
`

const catalogText = `
apiVersion: stowage.dev/v1alpha1
kind: VMCatalog
metadata: {name: types}
spec:
  types:
  - {name: small, vcpus: 2, memory: 4Gi, pricePerHour: "0.1"}
  - {name: large, vcpus: 4, memory: 8Gi, pricePerHour: "0.2"}
`

// of returns the report on a change of the shop.
func (s *shop) of(t *testing.T, change Change, manifests string, prices *Prices) (*Report, error) {
	t.Helper()
	if manifests != "" {
		var err error
		if change.Manifests, err = preview.LoadChange(t.Context(), preview.Source{Names: []string{"-"}, In: strings.NewReader(manifests), Namespace: "shop", Schemas: crds.Schemas{}}); err != nil {
			t.Fatal(err)
		}
	}
	return s.options(t).Of(t.Context(), change, prices)
}

// options are those for the shop.
func (s *shop) options(t *testing.T) *Options {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	return &Options{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(s.objects...).Build(), Registration: "stowage", Clock: clocktesting.NewFakePassiveClock(now), DryRun: s.dryRun,
		Settings: preview.Settings{Namespace: "stowage-system", Spread: true, Sizing: true, PeerPods: true, PeerPodConfig: peerpod.DefaultConfig()},
	}
}

func TestReport(t *testing.T) {
	prices, err := ReadPrices("testdata/prices.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sizes := "apiVersion: flexdaemonsets.xai/v1alpha1\nkind: FlexDaemonsetTemplate\nmetadata: {name: tenth}\nspec: {cpuPercentage: 10, memoryPercentage: 5}\n"
	for name, tc := range map[string]struct {
		change    Change
		manifests string
		shop      func(*shop)
	}{
		"nothing":             {},
		"a policy":            {manifests: policyText},
		"a policy that moves": {manifests: policyText + "  rebalance: Evict\n"},
		"a policy in Audit":   {manifests: strings.Replace(policyText, "Enforce", "Audit", 1)},
		"enforced":            {manifests: strings.Replace(policyText, "Enforce", "Audit", 1), change: Change{Enforce: true}},
		"more replicas":       {change: Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "web"}: 40}}, manifests: policyText},
		"sizes":               {manifests: sizes},
		"more VMs":            {change: Change{Replicas: map[Name]int32{{Kind: "Deployment", Namespace: "shop", Name: "vm"}: 4}}},
		"a catalog of VMs":    {manifests: catalogText},
		"a cheaper VM": {manifests: strings.Replace(catalogText, "types:", "types:\n  - {name: cheap, vcpus: 2, memory: 4Gi, pricePerHour: '0.05'}", 1), shop: func(s *shop) {
			o := &stowage.VMCatalog{}
			if err := yaml.Unmarshal([]byte(catalogText), o); err != nil {
				panic(err)
			}
			s.add(o)
		}},
		"a pool without room": {manifests: strings.Replace(policyText, "weight: 80}", "weight: 80, spill: {after: 1m}}", 1), change: Change{Exhausted: map[string]int64{"spot": 1}}},
		"a node less":         {change: Change{Remove: []Name{{Kind: "Node", Name: "spot-1"}}}, manifests: policyText},
		"a new workload": {manifests: policyText + `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: new, namespace: shop}
spec: {replicas: 5, selector: {matchLabels: {app: new}}, template: {metadata: {labels: {app: new}}, spec: {containers: [{name: c, image: none, resources: {requests: {cpu: 100m}}}]}}}
`},
		"not reached": {manifests: policyText, shop: func(s *shop) { s.add(registration()) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop()
			if tc.shop != nil {
				tc.shop(s)
			}
			r, err := s.of(t, tc.change, tc.manifests, prices)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, w := range r.Warnings {
				fmt.Fprintln(&out, "Warning:", w)
			}
			if err := r.Print(&out, "text", false); err != nil {
				t.Fatal(err)
			}
			testkit.Golden(t, filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden"), out.String())
		})
	}
}

// registration asks about the pods of no namespace.
func registration() client.Object {
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "pods", NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"none": "them"}},
	}}}
}

func TestChangeOfWhatIsNot(t *testing.T) {
	for name, tc := range map[string]struct {
		change Change
		want   string
	}{
		"remove":         {Change{Remove: []Name{{Kind: "Deployment", Namespace: "shop", Name: "none"}}}, "there is no Deployment shop/none"},
		"another group":  {Change{Remove: []Name{{"apps.kruise.io", "Deployment", "shop", "web"}}}, "there is no Deployment.apps.kruise.io shop/web"},
		"scale":          {Change{Replicas: map[Name]int32{{Kind: "DaemonSet", Namespace: "shop", Name: "agent"}: 1}}, "there is no DaemonSet shop/agent with a replica count"},
		"enforce":        {Change{Enforce: true}, "no policy is in Audit"},
		"exhaust a pool": {Change{Exhausted: map[string]int64{"none": 0}}, "no workload of the input has a pool none"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newShop().of(t, tc.change, "", nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q", err, tc.want)
			}
		})
	}
}

// The schema that other programs read is that of the reports.
func TestSchema(t *testing.T) {
	data, err := os.ReadFile("../../docs/reference/impact.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	schema := &spec.Schema{}
	if err := json.Unmarshal(data, schema); err != nil {
		t.Fatal(err)
	}
	prices, err := ReadPrices("testdata/prices.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := newShop().of(t, Change{}, policyText+"  across: {topologyKey: zone, domains: [{value: a}, {value: b}]}\n", prices)
	if err != nil {
		t.Fatal(err)
	}
	check := func(valid bool, change func(map[string]any)) {
		t.Helper()
		var out bytes.Buffer
		if err := r.Print(&out, "json", true); err != nil {
			t.Fatal(err)
		}
		report := map[string]any{}
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		change(report)
		if result := validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(report); result.IsValid() != valid {
			t.Errorf("valid is %t, want %t: %v", result.IsValid(), valid, result.Errors)
		}
	}
	check(true, func(map[string]any) {})
	check(false, func(r map[string]any) { delete(r, "cluster") })
	check(false, func(r map[string]any) { r["workloads"].([]any)[0].(map[string]any)["moved"] = "many" })
	check(false, func(r map[string]any) { r["unknown"] = 1 })
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]string{
		"deployment/web": "Deployment shop/web", "deploy/other/web": "Deployment other/web", "Deployments/web": "Deployment shop/web", "sts/db": "StatefulSet shop/db",
		"clusterspreadpolicies/web": "ClusterSpreadPolicy web", "spreadpolicy/web": "SpreadPolicy shop/web", "node/a": "Node a", "pd/web": "PodDistributor shop/web",
		"statefulset.apps.kruise.io/web": "StatefulSet.apps.kruise.io shop/web", "deploy.apps/web": "Deployment.apps shop/web", "deployment.batch/web": "", "nodes./a": "", "pd.stowage.dev/a": "",
		"clusterspreadpolicies.stowage.dev/web": "ClusterSpreadPolicy.stowage.dev web",
		"web":                                   "", "thing/web": "", "deploymenties/web": "", "spreadpolicies/web": "SpreadPolicy shop/web", "node/a/b": "", "deployment/": "", "deployment//web": "", "deployment/a/b/c": "", "": "",
	} {
		n, err := ParseName(text, "shop")
		if got := n.String(); err == nil && got != want || err != nil && want != "" {
			t.Errorf("ParseName(%q) is %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestReadPricesRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"another kind":      {"apiVersion: v1\nkind: Prices\nnodes: [{}]", "apiVersion and kind"},
		"no price":          {"apiVersion: " + Version + "\nkind: Prices", "at least one price is required"},
		"a negative price":  {"apiVersion: " + Version + "\nkind: Prices\nnodes: [{hourly: -1}]", "nodes[0]: a price must not be negative"},
		"two kinds at once": {"apiVersion: " + Version + "\nkind: Prices\nnodes: [{hourly: 1, vcpuHourly: 1}]", "nodes[0]: it has hourly beside"},
		"an unknown field":  {"apiVersion: " + Version + "\nkind: Prices\nprices: []", "unknown field"},
		"too large":         {strings.Repeat("#", maxPrices+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "prices.yaml")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadPrices(file); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q", err, tc.want)
			}
		})
	}
}

// A page has all that a text has, and shows which seats get a pod and which lose theirs.
func TestPage(t *testing.T) {
	r, err := newShop().of(t, Change{}, policyText, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := r.Print(&out, "html", false); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"<h2>Policies</h2>", "<td>od 5→2, spot 3→8, outside 2→0</td>", "<p>The change concerns 4 workloads with 15 pods.</p>", "<li>Stowage is not installed here", "pool od: 5 → 2 pods", "pool spot: 3 → 8 pods", `<i class="extra"></i>a pod that the pool loses</li></ul>`} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%s is missing in\n%s", part, &out)
		}
	}
	if gone, come := strings.Count(out.String(), `stroke="#cf222e"`), strings.Count(out.String(), "stroke-dasharray"); gone != 6 || come != 8 {
		t.Errorf("%d pods go, and %d seats get one", gone, come)
	}
}

// unmarshal reads YAML.
func unmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

// A change may leave a workload to a policy that is invalid.
func TestInvalidPolicyTakesOver(t *testing.T) {
	s := plain()
	s.live(t, even)
	s.live(t, strings.NewReplacer("{name: even}", "{name: zbad}",
		"{name: spot, nodeSelector: {pool: spot}, weight: 1}", "{name: spot, nodeSelector: {pool: spot}, weight: 1, maxReplicas: 50%, spill: {after: 1m, maxSpill: 1}}").Replace(even))
	s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-1")
	r, err := s.of(t, Change{Remove: []Name{{Kind: "ClusterSpreadPolicy", Name: "even"}}}, "", nil)
	if err != nil || len(r.Workloads) != 1 || !slices.Equal(r.Workloads[0].Reasons, []finding.Reason{finding.InvalidPolicy}) {
		t.Fatalf("%+v, %v", r, err)
	}
}

// On a page, what a note says links to its reason. A reason of two workloads links twice, and one of none is not there.
func TestReasons(t *testing.T) {
	s := plain()
	s.live(t, even)
	s.deployment("picky", "100m", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "od"}
	}, "od-0", "od-0")
	s.deployment("busy", "100m", func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 2}
	}, "od-0", "od-0")
	r, err := s.of(t, Change{Exhausted: map[string]int64{"spot": 0}}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := r.Print(&page, "html", true); err != nil {
		t.Fatal(err)
	}
	got := map[string][]finding.Reason{}
	for _, w := range r.Workloads {
		got[w.Name] = w.Reasons
	}
	want := map[string][]finding.Reason{"picky": {finding.PodsChooseNodes}, "busy": {finding.RolloutUnfinished, finding.NoRoomInPool}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s\n%s", diff, r.text(true))
	}
	for _, reason := range slices.Concat(want["picky"], want["busy"]) {
		if link := fmt.Sprintf(`<a href="https://github.com/stowage-dev/stowage/blob/main/docs/reasons.md#%s">%s</a>`, strings.ToLower(string(reason)), reason); !strings.Contains(page.String(), link) {
			t.Errorf("%s is missing in\n%s", link, &page)
		}
	}
	s.add(registration())
	if r, err = s.of(t, Change{}, "", nil); err != nil {
		t.Fatal(err)
	}
	r.ListAll()
	for _, w := range r.Workloads {
		if !slices.Equal(w.Reasons, []finding.Reason{finding.LeftOut}) {
			t.Errorf("%s, which the registration leaves out, has the reasons %v", w.Name, w.Reasons)
		}
	}
	if len(r.Workloads) != 2 {
		t.Errorf("the report has %d workloads", len(r.Workloads))
	}
}
