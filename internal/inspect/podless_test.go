package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// What asks for pods and has none is shown, with the reason that its controller tells in an event.
func TestPodlessWorkloads(t *testing.T) {
	event := func(n int, uid types.UID, reason, message string, ago time.Duration) client.Object {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("e", n)}, Reason: reason, Message: message, Type: corev1.EventTypeNormal}
		e.InvolvedObject.UID, e.LastTimestamp = uid, metav1.NewTime(now.Add(-ago))
		if reason == "FailedCreate" {
			e.Type = corev1.EventTypeWarning
		}
		return e
	}
	of := func(apiVersion, kind string) *versprei.PodDistributor {
		return &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "pd"}, Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: apiVersion, Kind: kind, Name: "web"},
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}, {NodeLabel: map[string]versprei.LabelValue{"p": "b"}, Weight: 1}},
		}}
	}
	job := func(edit func(*batchv1.Job)) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "j"}}
		j.Spec.Parallelism, j.Spec.Completions = new(int32(4)), new(int32(9))
		edit(j)
		return j
	}
	plain := func(*batchv1.Job) {}
	db := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "sts"}}
	db.Spec.Replicas = new(int32(3))
	db.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: halves}
	refused := event(1, "j", "FailedCreate", "Error creating: exceeded quota: none", time.Minute)
	// The store has a scale of ReplicaSets alone, which stands for that of the other kind.
	scaled := []client.Object{web(2, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations = nil }),
		&corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}}, of("v1", "ReplicationController")}
	for name, tc := range map[string]struct {
		objects []client.Object
		want    string // the only workload with its note; empty if there is no workload
	}{
		"a Job that a quota refuses all pods of":   {[]client.Object{job(plain), of("batch/v1", "Job"), refused}, "Job/web: 0 of 4 pods exist, because the API server refuses to create more: Error creating: exceeded quota: none"},
		"one that has just been created":           {[]client.Object{job(plain), of("batch/v1", "Job")}, "Job/web: 0 pods exist, and 4 are asked for"},
		"one that could create its pods since":     {[]client.Object{job(plain), of("batch/v1", "Job"), refused, event(2, "j", "SuccessfulCreate", "", time.Second)}, "Job/web: 0 pods exist, and 4 are asked for"},
		"the refusal of another object":            {[]client.Object{job(plain), of("batch/v1", "Job"), event(1, "k", "FailedCreate", "no", 0)}, "Job/web: 0 pods exist, and 4 are asked for"},
		"a suspended Job":                          {[]client.Object{job(func(j *batchv1.Job) { j.Spec.Suspend = new(true) }), of("batch/v1", "Job"), refused}, ""},
		"a Job that is nearly done":                {[]client.Object{job(func(j *batchv1.Job) { j.Status.Succeeded = 8 }), of("batch/v1", "Job")}, "Job/web: 0 pods exist, and 1 are asked for"},
		"a Job that has ended":                     {[]client.Object{job(func(j *batchv1.Job) { j.Status.CompletionTime = &metav1.Time{Time: now} }), of("batch/v1", "Job"), refused}, ""},
		"a StatefulSet":                            {[]client.Object{db, event(1, "sts", "FailedCreate", "create Pod web-0 in StatefulSet web failed", 0)}, "StatefulSet/web: 0 of 3 pods exist, because the API server refuses to create more: create Pod web-0"},
		"a target of a kind that is not listed":    {append(scaled, event(1, "rs", "FailedCreate", "exceeded quota", 0)), "ReplicationController/web: 0 of 2 pods exist, because the API server refuses to create more: exceeded quota"},
		"a target of a kind that makes other ones": {[]client.Object{of("v1", "ReplicationController"), &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "other"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tc.objects...)
			r, err := i.Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, w := range r.Workloads {
				text := w.Note
				for _, p := range r.Problems {
					text = p.Problem
				}
				got += w.Kind + "/" + w.Name + ": " + text
			}
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" || r.OK() != (tc.want == "") {
				t.Errorf("it is as it should be: %t, %v: %q", r.OK(), r.Problems, got)
			}
			if kind, _, found := strings.Cut(tc.want, "/"); found {
				if _, err := i.ExplainWorkload(t.Context(), "ns", kind, "web"); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A workload with a strategy whose pods wait without a seat has a problem that says why. It has none while they run.
func TestWaitsWithoutSeat(t *testing.T) {
	waits := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available"}}
	}
	full := func(p *corev1.Pod) {
		p.Annotations[stowage.ClaimAnnotation] = make(ledger.Key, ledger.KeySize).Sign(ledger.OriginFull, "", ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{})
	}
	chooses := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "a"} }
	claims := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}
	of := func(edits ...func(*corev1.Pod)) *corev1.Pod {
		return pod("z", "", 0, func(p *corev1.Pod) {
			for _, edit := range edits {
				edit(p)
			}
		})
	}
	node := func(name, pool string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"p": pool}}}
	}
	with := func(objects ...client.Object) []client.Object {
		return append(objects, node("node-a", "a"), node("node-b", "b"), node("node-c", "c"))
	}

	// A ReplicaSet whose pools have one seat each.
	one := intstr.FromInt32(1)
	d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
	for _, pool := range []string{"a", "b"} {
		d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1, MaxReplicas: &one})
	}
	limited := func(third *corev1.Pod) []client.Object {
		rs := web(3, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations, rs.Status.Replicas = nil, 3 })
		return with(d, rs, pod("x", "0", 1, nil), pod("y", "1", 1, nil), third)
	}
	choosing := func(mode string, only *corev1.Pod) []client.Object {
		return with(only, web(1, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template.Spec.NodeSelector, rs.Status.Replicas = map[string]string{"p": "a"}, 1
			if mode != "" {
				rs.Spec.Template.Labels = map[string]string{stowage.ModeKey: mode}
			}
		}))
	}
	volume := func(zone string) []client.Object {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}}
		rs := web(3, func(rs *appsv1.ReplicaSet) { rs.Status.Replicas = 3 })
		return with(v, c, rs, pod("x", "0", 1, nil), pod("y", "1", 1, nil), of(waits, claims))
	}

	// A CloneSet, which is not listed, and whose pods fit no pool.
	policyOf := func(namespace string, edit func(*stowage.SpreadPolicySpec)) client.Object {
		spec := stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Kinds: []stowage.OwnerKind{{Group: "apps.kruise.io", Kind: "CloneSet"}}}
		for _, pool := range []string{"a", "b"} {
			spec.Pools = append(spec.Pools, stowage.PolicyPool{Name: pool, NodeSelector: map[string]versprei.LabelValue{"p": versprei.LabelValue(pool)}, Weight: 1})
		}
		if edit != nil {
			edit(&spec)
		}
		if namespace == "" {
			return &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: spec}}
		}
		return &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: "p"}, Spec: spec}
	}
	cloned := metav1.OwnerReference{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: "web", UID: "clones", Controller: new(true)}
	state := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "clones", OwnerReferences: []metav1.OwnerReference{cloned}}}
	for _, pool := range []string{"a", "b"} {
		state.Unsuitable = append(state.Unsuitable, stowage.UnsuitablePool{Name: pool, NodeLabel: map[string]string{"p": pool}, Filter: "NodeResourcesFit", Why: "the pods are too large"})
	}
	clones := func(p client.Object, edits ...func(*corev1.Pod)) []client.Object {
		set := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": cloned.APIVersion, "kind": cloned.Kind, "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "clones"},
			"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}}},
		}}
		bare := func(p *corev1.Pod) { p.Annotations, p.OwnerReferences = nil, []metav1.OwnerReference{cloned} }
		return with(p, set, state, of(append(edits, bare)...))
	}
	const mayBeElsewhere = "or have a volume that may be out of reach of the pools"
	const noPool, chosen = "can run in none of the pools of ", "the pod template chooses its nodes itself, by node label p, so the strategy does not divide these pods, and none of those nodes takes them: 0/2"

	for name, tc := range map[string]struct {
		objects []client.Object
		want    string // the only problem, with what to do
	}{
		"beyond the maxima":                            {limited(of(waits, full)), "every pool has its maximum, so these pods have no seat, and no node takes them: 0/2 nodes are available (pod z) → raise maxReplicas"},
		"beyond the maxima, and older than the policy": {limited(of(waits)), "every pool has its maximum, so these pods have no seat, and no node takes them: 0/2 nodes are available (pod z) → raise maxReplicas"},
		"beyond the maxima, and runs":                  {limited(of(full)), ""},
		"its template chooses nodes":                   {choosing("", of(waits, chooses)), chosen},
		"its template chooses nodes, and it runs":      {choosing("", of(chooses)), ""},
		"it is left alone on purpose":                  {choosing("Off", of(waits, chooses)), ""},
		"its volume is outside of the pools":           {volume("c"), "no node of a pool reaches the volumes of these pods, so they have no seat, and no node that does takes them: 0/2 nodes are available (pod z) → make room on the nodes that reach the volumes"},
		"its volume may not be read":                   {volume("c"), mayBeElsewhere},
		"its volume is in a pool":                      {volume("a"), "or bypassed the webhook → "},
		"a CloneSet of a ClusterSpreadPolicy":          {clones(policyOf("", nil), waits), noPool},
		"a CloneSet of a SpreadPolicy":                 {clones(policyOf("ns", nil), waits), noPool},
		"a CloneSet that chooses nodes":                {clones(policyOf("", nil), waits, chooses), chosen},
		"a CloneSet that runs":                         {clones(policyOf("", nil)), ""},
		"a CloneSet that no policy selects": {clones(policyOf("", func(spec *stowage.SpreadPolicySpec) {
			spec.Selector.MatchLabels = map[string]versprei.LabelValue{"app": "db"}
		}), waits), ""},
		"a CloneSet whose kind no policy names": {clones(policyOf("", func(spec *stowage.SpreadPolicySpec) { spec.Kinds[0].Group = "example.com" }), waits), ""},
		"a CloneSet, and a policy elsewhere":    {clones(policyOf("other", nil), waits), ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tc.objects...)
			if tc.want == mayBeElsewhere {
				i.Client = refusing(i.Client, &corev1.PersistentVolume{}, &corev1.PersistentVolumeList{})
			}
			r, err := i.Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range r.Problems {
				got += p.Problem + " → " + p.Action
			}
			if !strings.Contains(got, tc.want) || r.OK() != (tc.want == "") || len(r.Problems) > 1 {
				t.Errorf("it is as it should be: %t, %q, want %q", r.OK(), got, tc.want)
			}
			if unknown := r.Only([]string{"cloneset/web"}); len(unknown) > 0 && strings.Contains(tc.want, noPool) {
				t.Errorf("it does not know %v", unknown)
			}
		})
	}
}
