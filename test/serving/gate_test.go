package serving

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// opened is how many pods lost the gate after they were created, with a result.
func opened(t *testing.T, result string) (sum float64) {
	t.Helper()
	for _, r := range slices.Concat(cluster.Replicas(), cluster.Controllers()) {
		sum += metric(t, r, "stowage_gates_removed_total", fmt.Sprintf("result=%q", result))
	}
	return sum
}

// unreached has the API server call nobody, until the test ends or the function is called.
func unreached(t *testing.T) (restore func()) {
	t.Helper()
	return patchRegistration(t, func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = new("https://localhost:1/") })
}

// Pods that no replica saw wait at the gate, and the leader seats them as an admission would.
func TestGateOpens(t *testing.T) {
	n := newTenant(t)
	labelled := newTenant(t, stowage.ModeKey+"=Off")
	restore := unreached(t)
	nothing, unseated := opened(t, "nothing"), opened(t, "unseated")

	// 1. A Deployment, one with another gate, a StatefulSet, a Job, and a PodDistributor with tolerations and a preference.
	d := n.Deployment("web", 20, annotated(eightyOf))
	suite.Gated(&d.Spec.Template.Spec)
	must(t, n.Create(t.Context(), d))
	queued := n.Deployment("queued", 5, annotated(eightyOf))
	suite.Gated(&queued.Spec.Template.Spec)
	queued.Spec.Template.Spec.SchedulingGates = append(queued.Spec.Template.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
	must(t, n.Create(t.Context(), queued))
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db", Annotations: annotated(eightyOf)},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(5)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: podTemplate("db")},
	}
	suite.Gated(&set.Spec.Template.Spec)
	must(t, n.Create(t.Context(), set))
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "batch"},
		Spec:       batchv1.JobSpec{Completions: new(int32(5)), Parallelism: new(int32(5)), Template: podTemplate("batch")},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	suite.Gated(&job.Spec.Template.Spec)
	n.Distributor(t, "batch", "batch", func(s *versprei.PodDistributorSpec) {
		s.Target = versprei.Target{APIVersion: "batch/v1", Kind: "Job", Name: "batch"}
	})
	must(t, n.Create(t.Context(), job))
	n.Distributor(t, "soft", "soft", func(s *versprei.PodDistributorSpec) {
		s.Enforcement = versprei.EnforcementPreferred
		s.Distribution[0].Tolerations = []versprei.Toleration{{Key: "spot", Operator: "Exists"}}
	})
	soft := n.Deployment("soft", 4, nil)
	suite.Gated(&soft.Spec.Template.Spec)
	must(t, n.Create(t.Context(), soft))
	for _, zone := range suite.Zones {
		n.ZoneNode(t, "od", zone, 20)
		n.ZoneNode(t, "spot", zone, 20)
	}
	zones := n.OverZones(t, "zones", 15, nil)
	suite.Gated(&zones.Spec.Template.Spec)
	must(t, n.Create(t.Context(), zones))

	data := n.Deployment("data", 1, annotated(eightyOf)) // the leader asks where its volume can be
	n.WithClaim(t, &data.Spec.Template, "data", suite.ClaimSpec(n.Provisioner(t, corev1.LabelTopologyZone), corev1.ReadWriteOnce))
	suite.Gated(&data.Spec.Template.Spec)
	must(t, n.Create(t.Context(), data))

	// 2. Pods about which there is nothing to decide.
	off := labelled.Deployment("off", 2, annotated(eightyOf))
	suite.Gated(&off.Spec.Template.Spec)
	must(t, labelled.Create(t.Context(), off))
	lone := testkit.Pod("lone").Namespace(n.Namespace).Container("c", "", "").Obj()
	suite.Gated(&lone.Spec)
	must(t, n.Create(t.Context(), lone))
	ds := n.DaemonSet("agent", "")
	suite.Gated(&ds.Spec.Template.Spec)
	must(t, n.Create(t.Context(), ds))

	// 3. All are seated though nobody reaches the webhook.
	n.Spreads(t, "web", 20, strategyOf(t, eightyOf))
	n.Spreads(t, "db", 5, strategyOf(t, eightyOf))
	n.Spreads(t, "data", 1, strategyOf(t, eightyOf))
	n.InCells(t, "zones", 15, n.Distribution(t, "zones"), 0.67, 0.67)
	eventually(t, "the pods with another gate have seats and wait there", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "queued")
		for i := range pods {
			if suite.Gates(&pods[i]) != "kueue.x-k8s.io/admission" || pods[i].Labels[stowage.SeatLabel] == "" {
				return false, err
			}
		}
		return len(pods) == 5, err
	})
	for app, count := range map[string]int{"batch": 5, "soft": 4} {
		eventually(t, app+" has seats", func() (bool, error) {
			var pods corev1.PodList // those of a Job end at once
			err := n.List(t.Context(), &pods, client.InNamespace(n.Namespace), client.MatchingLabels{"app": app})
			for i := range pods.Items {
				p := &pods.Items[i]
				if suite.Gates(p) != "" || p.Labels[stowage.SeatLabel] == "" || app == "soft" && (p.Spec.Affinity == nil || p.Labels[stowage.MutatedByKey] == "") {
					return false, err
				}
			}
			return len(pods.Items) == count, err
		})
	}
	eventually(t, "the others run", func() (bool, error) {
		pods, err := labelled.Pods(t.Context(), "off")
		if err != nil || len(pods) != 2 {
			return false, err
		}
		for i := range pods {
			if suite.Gates(&pods[i]) != "" || pods[i].Labels[stowage.SeatLabel] != "" {
				return false, nil
			}
		}
		if err := n.Get(t.Context(), n.Key("lone"), lone); err != nil || suite.Gates(lone) != "" {
			return false, err
		}
		err = n.Get(t.Context(), n.Key("agent"), ds)
		return err == nil && ds.Status.DesiredNumberScheduled > 0 && ds.Status.NumberReady == ds.Status.DesiredNumberScheduled, err
	})
	if opened(t, "nothing") == nothing {
		t.Error("no gate was removed from a pod without a strategy")
	}
	if opened(t, "unseated") != unseated {
		t.Error("a pod waited for a minute, and got no seat")
	}
	restore()
	must(t, n.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)))

	// 4. Whoever scales down and up again finds everything exact.
	n.Scale(t, d, 5)
	n.Spreads(t, "web", 5, strategyOf(t, eightyOf))
	n.Scale(t, d, 25)
	n.Spreads(t, "web", 25, strategyOf(t, eightyOf))
}

// While nobody runs at all, explain says why a pod waits.
func TestExplainGated(t *testing.T) {
	n := newTenant(t)
	unreached(t)
	restoreFleet(t)
	for _, r := range cluster.Controllers() {
		r.Kill()
	}
	d := n.Deployment("web", 1, annotated(eightyOf))
	suite.Gated(&d.Spec.Template.Spec)
	must(t, n.Create(t.Context(), d))
	var pods []corev1.Pod
	eventually(t, "the pod waits", func() (_ bool, err error) {
		pods, err = n.Pods(t.Context(), "web")
		return len(pods) == 1 && suite.Gates(&pods[0]) == stowage.SeatGate, err
	})
	out, _, _ := suite.CLI(t, cluster, append([]string{"explain", "pod", pods[0].Name, "-n", n.Namespace}, suite.SpreadOnly...)...)
	if !strings.Contains(out, "waits at the gate stowage.dev/seat until the leader has one") {
		t.Errorf("explain says:\n%s", out)
	}
}

// The MutatingAdmissionPolicy gives the gate to the pods that ask for it, and to no others.
func TestGateByPolicy(t *testing.T) {
	suite.NeedsVersion(t, "1.36", "MutatingAdmissionPolicy v1")
	suite.Applied(t, "config/gate/policy.yaml")
	asks, plain := newTenant(t, stowage.GateLabel+"="+stowage.GateOn), newTenant(t)
	restore := unreached(t)

	// 1. Who gets the gate?
	replicaSets := map[*tenant]*appsv1.ReplicaSet{asks: asks.BareReplicaSet(t, "bare", 0, nil), plain: plain.BareReplicaSet(t, "bare", 0, nil)}
	// The policy is in force some time after it was written.
	eventually(t, "the policy is in force", func() (bool, error) {
		return suite.Gates(asks.TryPod(t, replicaSets[asks], suite.ReplicaSetKind, nil, client.DryRunAll)) == stowage.SeatGate, nil
	})
	label := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels[stowage.GateLabel] = value }
	}
	owner := func(apiVersion, kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
	}
	for name, tc := range map[string]struct {
		in     *tenant
		change func(*corev1.Pod)
		gate   bool
	}{
		"a namespace that asks":           {asks, nil, true},
		"a pod that refuses":              {asks, label("false"), false},
		"a pod that asks":                 {plain, label(stowage.GateOn), true},
		"nobody asks":                     {plain, nil, false},
		"a StatefulSet's":                 {asks, owner("apps/v1", "StatefulSet"), true},
		"a Job's":                         {asks, owner("batch/v1", "Job"), true},
		"a DaemonSet's":                   {asks, owner("apps/v1", "DaemonSet"), false},
		"one with a node":                 {asks, func(p *corev1.Pod) { p.Spec.NodeName = "od4-1" }, false},
		"a peer pod":                      {asks, func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata-remote") }, false},
		"a pod without an owner":          {asks, func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"one that has the gate, and more": {asks, func(p *corev1.Pod) { suite.Gated(&p.Spec) }, true},
	} {
		pod := tc.in.TryPod(t, replicaSets[tc.in], suite.ReplicaSetKind, tc.change, client.DryRunAll)
		if (suite.Gates(pod) == stowage.SeatGate) != tc.gate || !tc.gate && suite.Gates(pod) != "" {
			t.Errorf("%s: the gates are %q", name, suite.Gates(pod))
		}
	}

	// 2. The pods of a workload that does not name the gate wait and get seats, before and after the webhook is back.
	must(t, asks.Create(t.Context(), asks.Deployment("web", 10, annotated(eightyOf))))
	asks.Spreads(t, "web", 10, strategyOf(t, eightyOf))
	restore()
	seats := opened(t, "seated")
	must(t, asks.Create(t.Context(), asks.Deployment("later", 10, annotated(eightyOf))))
	asks.Spreads(t, "later", 10, strategyOf(t, eightyOf))
	if got := opened(t, "seated"); got != seats {
		t.Errorf("the leader seated %v pods though the webhook answered", got-seats)
	}
}

// What Stowage may write into a pod that waits at the gate, in the write that removes the gate, and nothing else.
func TestGateRights(t *testing.T) {
	t.Parallel()
	n, own := newTenant(t), asStowage(t, "stowage-controllers")
	pod := &n.Undecidable(t, 1, func(spec *corev1.PodSpec) {
		spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/first"}, {Name: stowage.SeatGate}, {Name: "example.com/last"}}
		spec.NodeSelector = map[string]string{"disk": "ssd"}
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpExists}}}},
		}}}
	})[0]
	const ungate = `"schedulingGates":[{"$patch":"delete","name":"stowage.dev/seat"}]`
	required := func(terms string) string {
		return `{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + terms + `]}}},` + ungate + `}}`
	}
	for name, tc := range map[string]struct {
		patch   string
		allowed bool
	}{
		"the gate alone": {`{"spec":{` + ungate + `}}`, true},
		"a seat": {`{"metadata":{"labels":{"stowage.dev/pool":"a","stowage.dev/seat":"1","mutated-by":"spread-webhook-service"},
			"annotations":{"stowage.dev/claim":"x","controller.kubernetes.io/pod-deletion-cost":"9","mutated-by":"spread-webhook-service"}},
			"spec":{"nodeSelector":{"type":"spot"},"tolerations":[{"key":"spot","operator":"Exists"}],` + ungate + `}}`, true},
		"a preference":                {`{"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"type","operator":"Exists"}]}}]}},` + ungate + `}}`, true},
		"a seat that leaves the gate": {`{"spec":{"nodeSelector":{"type":"spot"}}}`, false},
		"another gate":                {`{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/first"}]}}`, false},
		"all gates":                   {`{"spec":{"schedulingGates":null}}`, false},
		"a pool of expressions":       {required(`{"matchExpressions":[{"key":"disk","operator":"Exists"},{"key":"type","operator":"DoesNotExist"}]}`), true},
		"one without the gate":        {strings.ReplaceAll(required(`{"matchExpressions":[{"key":"disk","operator":"Exists"},{"key":"type","operator":"DoesNotExist"}]}`), ","+ungate, ""), false},
		"a requirement replaced":      {required(`{"matchExpressions":[{"key":"type","operator":"DoesNotExist"}]}`), false},
		"an alternative":              {required(`{"matchExpressions":[{"key":"disk","operator":"Exists"}]},{"matchExpressions":[{"key":"type","operator":"DoesNotExist"}]}`), false},
		"a node":                      {required(`{"matchExpressions":[{"key":"disk","operator":"Exists"}],"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}`), false},
		"another image":               {`{"spec":{"containers":[{"name":"c","image":"other"}],` + ungate + `}}`, false},
		"a deadline":                  {`{"spec":{"activeDeadlineSeconds":1,` + ungate + `}}`, false},
		"another label":               {`{"metadata":{"labels":{"app":"other"}},"spec":{` + ungate + `}}`, false},
		"the mark without the gate":   {`{"metadata":{"labels":{"mutated-by":"x"}}}`, false},
		"a finalizer":                 {`{"metadata":{"finalizers":["example.com/x"]},"spec":{` + ungate + `}}`, false},
	} {
		err := own.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(tc.patch)), client.DryRunAll)
		if refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err); tc.allowed && err != nil || !tc.allowed && !refused {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Terms are alternatives: each gets the pool's requirements, and no others. An empty one matches nothing, and stays so.
	const name, disk, pool, other = `"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]`, `{"key":"disk","operator":"Exists"}`, `{"key":"type","operator":"DoesNotExist"}`, `{"key":"gpu","operator":"Exists"}`
	for was, cases := range map[string]map[string]bool{
		"": {
			`{"matchExpressions":[` + pool + `]}`:                                      true,
			`{"matchExpressions":[` + pool + `]},{"matchExpressions":[` + other + `]}`: false,
			`{"matchExpressions":[` + pool + `],` + name + `}`:                         false,
		},
		`{"matchExpressions":[` + disk + `]},{},{` + name + `}`: {
			`{"matchExpressions":[` + disk + `,` + pool + `]},{},{"matchExpressions":[` + pool + `],` + name + `}`:                                  true,
			`{"matchExpressions":[` + disk + `,` + pool + `,` + other + `]},{},{"matchExpressions":[` + pool + `,` + other + `],` + name + `}`:      true,
			`{"matchExpressions":[` + disk + `,` + pool + `]},{},{` + name + `}`:                                                                    false,
			`{"matchExpressions":[` + disk + `]},{},{"matchExpressions":[` + pool + `],` + name + `}`:                                               false,
			`{"matchExpressions":[` + disk + `,` + pool + `]},{"matchExpressions":[` + pool + `]},{"matchExpressions":[` + pool + `],` + name + `}`: false,
			`{"matchExpressions":[` + disk + `,` + pool + `]},{},{"matchExpressions":[` + other + `],` + name + `}`:                                 false,
			`{"matchExpressions":[` + disk + `,` + pool + `]},{"matchExpressions":[` + pool + `],` + name + `}`:                                     false,
		},
	} {
		pod := &newTenant(t).Undecidable(t, 1, func(spec *corev1.PodSpec) {
			suite.Gated(spec)
			if was != "" {
				spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
				must(t, json.Unmarshal([]byte("["+was+"]"), &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms))
			}
		})[0]
		for terms, allowed := range cases {
			err := own.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(required(terms))), client.DryRunAll)
			if refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err); allowed && err != nil || !allowed && !refused {
				t.Errorf("%s in place of %q: %v", terms, was, err)
			}
		}
	}
	judged(t, own.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"schedulingGates":null}}`)), client.DryRunAll), false)
	judged(t, own.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"nodeSelector":{"type":"spot"}}}`)), client.DryRunAll), false)
}
