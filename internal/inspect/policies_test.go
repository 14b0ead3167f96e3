package inspect

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// The note of a policy does not promise pods that choose their nodes themselves a seat at the next rollout.
func TestPolicyNoteOfPodsWithoutSeat(t *testing.T) {
	for name, tc := range map[string]struct {
		without, choose int32
		want            string
	}{
		"all have a seat":                 {0, 0, ""},
		"some have none":                  {2, 0, "2 pod(s) have no seat until the next rollout"},
		"some choose their nodes":         {0, 5, "5 pod(s) have no seat, because they choose their nodes themselves"},
		"some have none, and some choose": {1, 2, "1 pod(s) have no seat until the next rollout; 2 pod(s) have no seat, because they choose their nodes themselves"},
	} {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Pools: []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
		}}
		p.Status = stowage.SpreadPolicyStatus{Workloads: 1, Pods: 5, WithoutSeat: tc.without, ChooseNodes: tc.choose}
		s, r := &snapshot{}, &Report{}
		s.policyReport(policy.FromSpreadPolicy(p), &p.Status, r)
		if got := r.Policies[0].Note; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// unreadablePolicy is a SpreadPolicy for a kind that Stowage may not read, and for one that the API server does not have.
func unreadablePolicy() *stowage.SpreadPolicy {
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p", Generation: 1}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Kinds: []stowage.OwnerKind{{Group: "example.net", Kind: "PipelineSet"}, {Group: "other.net", Kind: "Gang"}},
		Pools: []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}, {Name: "b", NodeSelector: map[string]versprei.LabelValue{"p": "b"}, Weight: 1}},
	}}
	p.Status = stowage.SpreadPolicyStatus{ObservedGeneration: 1, Unreadable: []stowage.UnreadableKind{
		{OwnerKind: p.Spec.Kinds[0], Lacks: []string{"pipelinesets.example.net"}}, {OwnerKind: p.Spec.Kinds[1]},
	}}
	return p
}

// What status, explain and check print of a policy with a kind that Stowage may not read stands in the golden file.
func TestUnreadableKinds(t *testing.T) {
	node := func(name, pool string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"p": pool}}}
	}
	owner := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.net/v1", "kind": "PipelineSet", "metadata": map[string]any{"namespace": "ns", "name": "w", "uid": "w"},
		"spec": map[string]any{"replicas": int64(1), "template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "w"}}}},
	}}
	x := pod("x", "", 0, func(p *corev1.Pod) {
		p.Annotations, p.Labels = nil, map[string]string{"app": "w"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.net/v1", Kind: "PipelineSet", Name: "w", UID: "w", Controller: new(true)}}
	})
	accounts := func(name, account string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: name}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
		d.Spec.Template.Spec.ServiceAccountName = account
		return d
	}
	texts := map[string]string{}
	for name, objects := range map[string][]client.Object{
		"the user may read the owner":     {unreadablePolicy(), owner, x, node("node-a", "a"), node("node-b", "b")},
		"the user may not read the owner": {unreadablePolicy(), x, node("node-a", "a"), node("node-b", "b")},
	} {
		e, err := newInspector(t, objects...).Explain(t.Context(), "ns", "x")
		if err != nil {
			t.Fatal(err)
		}
		texts["explain: "+name] = e.text()
	}
	i := newInspector(t, unreadablePolicy(), node("node-a", "a"), node("node-b", "b"))
	r, err := i.Status(t.Context(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() {
		t.Error("everything is as it should be")
	}
	var table strings.Builder
	if err := r.Print(&table, Layout{Format: "table"}); err != nil {
		t.Fatal(err)
	}
	texts["status"] = table.String()
	for name, tc := range map[string]struct {
		objects []client.Object
		heard   []string
	}{
		"the controllers lack it":        {objects: []client.Object{unreadablePolicy()}},
		"the webhook lacks it, and more": {objects: []client.Object{accounts("stowage", "hook"), accounts("stowage-controllers", "control"), unreadablePolicy()}, heard: []string{"pipelinesets.example.net", "pipelinesets/scale.example.net", "replicationcontrollers"}},
		"both are one account":           {objects: []client.Object{accounts("stowage", "one"), accounts("stowage-controllers", "one")}, heard: []string{"gangs.example.com"}},
		"nothing lacks":                  {},
	} {
		a := &Answer{OK: true, Replica: "stowage-1"}
		if err := newInspector(t, tc.objects...).kindsToGrant(t.Context(), "ns", tc.heard, a); err != nil {
			t.Fatal(err)
		}
		if lacks := len(a.Lacks) > 0; lacks != (a.Grant != "") {
			t.Errorf("%s: it lacks %v, and the manifest is %q", name, a.Lacks, a.Grant)
		}
		texts["check: "+name] = a.text()
	}
	golden(t, "unreadable.golden", texts)
}

// No right is proposed that only the policies of another namespace ask for, nor one of the core group.
func TestRightsOfOthers(t *testing.T) {
	naming := func(namespace, group, kind string, lacks ...string) client.Object {
		p := unreadablePolicy()
		p.Namespace, p.Spec.Kinds = namespace, []stowage.OwnerKind{{Group: group, Kind: kind}}
		p.Status.Unreadable = []stowage.UnreadableKind{{OwnerKind: p.Spec.Kinds[0], Lacks: lacks}}
		return p
	}
	for name, tc := range map[string]struct {
		policy client.Object
		heard  string
		want   string
	}{
		"the namespace's own policy":  {policy: naming("ns", "example.net", "PipelineSet", "pipelinesets.example.net"), want: "get-pipelinesets.example.net"},
		"that of another namespace":   {policy: naming("evil", "example.net", "PipelineSet", "pipelinesets.example.net")},
		"ReplicationControllers":      {policy: naming("ns", "", "ReplicationController", "replicationcontrollers"), want: "get-replicationcontrollers"},
		"Secrets":                     {policy: naming("ns", "", "Secret", "secrets", "secrets/scale")},
		"Secrets, with an odd name":   {policy: naming("ns", "", "Secret", "secrets.")},
		"Secrets, behind another":     {policy: naming("ns", "example.net", "PipelineSet", "pipelinesets.example.net", "secrets")},
		"Secrets, by a replica":       {policy: naming("ns", "", "Secret"), heard: "get-secrets get-secrets/scale"},
		"another kind, by a replica":  {policy: naming("ns", "example.net", "PipelineSet"), heard: "get-pipelinesets.example.net", want: "get-pipelinesets.example.net"},
		"another right, by a replica": {policy: naming("ns", "", "Secret"), heard: "list-nodes get-secrets", want: "list-nodes"},
	} {
		a := &Answer{OK: true, Replica: "stowage-0", Lacks: strings.Fields(tc.heard)}
		if err := newInspector(t, tc.policy).allLacks(t.Context(), "ns", a); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(a.Lacks, " "); got != tc.want || a.Sound() != (tc.want == "") || strings.Contains(a.text(), "secrets") {
			t.Errorf("%s: it lacks %q, want %q: %s", name, got, tc.want, a.text())
		}
	}
}
