package costs

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// large is 60,000 written pods of 3,000 owners on 3,000 nodes in three zones.
func large(b *testing.B) *server {
	b.Helper()
	s := newServer(b, stowage.PolicyEnforce, "zone", "host")
	for i := range 3000 {
		name := fmt.Sprintf("node-%04d", i)
		s.nodes[name] = map[string]string{"zone": fmt.Sprint("zone-", i%3), "host": name}
		s.run.nodeSeen(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.nodes[name]}})
	}
	for i := range 60_000 {
		of := i / 20
		s.pod(fmt.Sprint("ns-", of%100), fmt.Sprintf("web-%04d-6d5f7c9b8", of), fmt.Sprintf("web-%04d-6d5f7c9b8-%05d", of, i), fmt.Sprintf("node-%04d", (i*7919)%3000), func(p *corev1.Pod) {
			cost := fmt.Sprint(-1 - i%20/3)
			p.Annotations = costs(cost, cost)
		})
	}
	return s
}

// looks plans for all owners that are marked, and returns how many times a beat has to do that.
func (s *server) looks() (beats int) {
	s.run.pods.mu.Lock()
	defer s.run.pods.mu.Unlock()
	for ; len(s.run.pods.changed)+len(s.run.unjudged)+len(s.run.stale) > 0; beats++ {
		s.run.lookAtMarked(s.Context(), s.clock.Now())
	}
	return beats
}

// BenchmarkFirstLook is what a new leader computes, but for reading the list of pods.
func BenchmarkFirstLook(b *testing.B) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc
	s := large(b)
	s.mu.Lock()
	s.pods = map[string]*corev1.Pod{} // those of the API server
	s.mu.Unlock()
	beats := s.looks()
	runtime.GC()
	runtime.ReadMemStats(&m)
	bytes := float64(m.HeapAlloc-before) / 60_000
	for b.Loop() {
		s.run.pods.mu.Lock()
		for _, o := range s.run.pods.owners {
			s.run.pods.changed[o] = true
		}
		s.run.pods.mu.Unlock()
		s.looks()
	}
	b.ReportMetric(bytes, "B/pod")
	b.ReportMetric(float64(beats), "beats")
}

// BenchmarkChange is what one pod costs that is replaced by another one.
func BenchmarkChange(b *testing.B) {
	s := large(b)
	s.looks()
	i := 0
	for b.Loop() {
		i++
		of := i % 3000
		namespace, owner := fmt.Sprint("ns-", of%100), fmt.Sprintf("web-%04d-6d5f7c9b8", of)
		s.pod(namespace, owner, fmt.Sprintf("%s-%05d", owner, of*20), "", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(time.Unix(1e9, 0))) })
		s.looks()
		s.pod(namespace, owner, fmt.Sprintf("%s-new-%d", owner, i), fmt.Sprintf("node-%04d", i%3000))
		s.looks()
	}
}
