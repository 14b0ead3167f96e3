package seats

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// BenchmarkTracked measures the heap and the time of each pod that a replica tracks: 400 owners of 50 pods.
func BenchmarkTracked(b *testing.B) {
	const owners, podsEach = 400, 50
	key := make(ledger.Key, ledger.KeySize)
	var texts [][]byte // as the API server sends pods
	for o := range owners {
		owner := uuid.NewUUID()
		name := fmt.Sprintf("workload-%d-6d5f8b7c9d", o)
		for p := range podsEach {
			text, err := benchPod(key, fmt.Sprintf("scale-%d", o/20), name, owner, p).Marshal()
			if err != nil {
				b.Fatal(err)
			}
			texts = append(texts, text)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s := New(Options{
			Key: key, Writer: "a", Clock: clock.RealClock{}, Log: logr.Discard(),
			Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
		})
		before := heap()
		for _, text := range texts {
			var pod corev1.Pod
			if err := pod.Unmarshal(text); err != nil {
				b.Fatal(err)
			}
			if err := s.Pods().Update(&pod); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/float64(len(texts)), "heap-B/pod")
		if n := len(s.Pods().Owners()); n != owners {
			b.Fatalf("%d owners are known, want %d", n, owners)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N*len(texts)), "ns/pod")
}

func benchPod(key ledger.Key, namespace, workload string, owner types.UID, n int) *corev1.Pod {
	seat := ledger.Seat{Pool: []string{"od4vcpu16gb", "spot4vcpu16gb", "spot8vcpu32gb"}[n%3], Ordinal: int64(n/3 + 1)}
	id := ledger.WithCostRank(ledger.NewID(), int64(n+1))
	uid := uuid.NewUUID()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: workload + "-" + string(uid[:5]), UID: uid, ResourceVersion: strconv.Itoa(1_000_000 + n),
			Labels: map[string]string{stowage.PoolLabel: seat.Pool, stowage.SeatLabel: strconv.FormatInt(seat.Ordinal, 10)},
			Annotations: map[string]string{
				stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, id, ledger.Holder{Namespace: namespace, Owner: string(owner)}, seat),
				corev1.PodDeletionCost:  strconv.Itoa(10_000_000 - n),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: workload, UID: owner, Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("scale-%d", n%400)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
