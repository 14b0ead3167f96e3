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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
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
