package preview

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The seats of a preview are those of the memory, and whether a claim counts is known without a look at all others.
func TestSeats(t *testing.T) {
	strategy, err := sequence.Parse("p=a,base=1,weight=1:p=b,weight=3")
	if err != nil {
		t.Fatal(err)
	}
	s, plain, owner, ctx := newSeats(), ledger.NewMemory(), ledger.Owner{UID: "owner"}, t.Context()
	var last ledger.Result
	for n := range 100 {
		got, err1 := s.Claim(ctx, owner, strategy, true)
		want, err2 := plain.Claim(ctx, owner, strategy, true)
		if diff := cmp.Diff(want, got); diff != "" || err1 != nil || err2 != nil {
			t.Fatalf("claim %d: %v, %v (-want +got):\n%s", n, err1, err2, diff)
		}
		last = got
	}
	s.GiveBack(owner, "1")
	s.Memory = nil
	for id, want := range map[string]bool{last.ID: true, "unknown": false, "1": false} {
		if got, err := s.Claimed(ctx, owner, id); got != want || err != nil {
			t.Errorf("claim %s counts: %t, %v", id, got, err)
		}
	}
	if other, _ := s.Claimed(ctx, ledger.Owner{UID: "other"}, last.ID); other {
		t.Error("the claim counts for another owner")
	}
}

// A pod is the same whichever of the two libraries reads it.
func TestReadsTheSame(t *testing.T) {
	data := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"a":"b"},"finalizers":[]},` +
		`"spec":{"tolerationSeconds":1,"containers":[{"name":"c","resources":{"limits":{"cpu":"1500m","memory":1073741824},"requests":{"cpu":1}},` +
		`"livenessProbe":{"httpGet":{"port":80}},"readinessProbe":{"httpGet":{"port":"http"}},"securityContext":null}],` +
		`"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi"}}],"nodeSelector":{"x":"ü\ufffd"}},"status":{}}`
	var want, got corev1.Pod
	if err := json.Unmarshal([]byte(data), &want); err != nil {
		t.Fatal(err)
	}
	if err := jsonv1.Unmarshal([]byte(data), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("it is\n%+v, want\n%+v", got, want)
	}
}

// A workload of many pods takes as long for each of them as a workload of few.
func BenchmarkReplicas(b *testing.B) {
	for _, replicas := range []int32{1000, 10000} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			in := &Inputs{}
			w := Workload{Namespace: "default", Name: "web"}
			w.Kind, w.Group, w.Version = "Deployment", "apps", "v1"
			w.template.Annotations = map[string]string{"custom-pod-schedule-strategy": "type=od,base=1,weight=20:type=spot,weight=80"}
			w.template.Spec.Containers = []corev1.Container{{Name: "c"}}
			in.Workloads = []Workload{w}
			for b.Loop() {
				summary := NewSummary("kata.peerpods.io/vm")
				if _, err := New(in, Settings{Spread: true}).AdmitAll(b.Context(), replicas, summary.Add); err != nil {
					b.Fatal(err)
				}
				if summary.changed != int(replicas) {
					b.Fatalf("%d pods are changed", summary.changed)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*int(replicas)), "ns/pod")
		})
	}
}
