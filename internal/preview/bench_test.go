package preview

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// A preview takes as long for each document whether there are 2,000 or 10,000.
func BenchmarkPreview(b *testing.B) {
	for _, documents := range []int{2000, 10000} {
		var input bytes.Buffer
		for i := range documents {
			fmt.Fprintf(&input, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web-%d","annotations":{"custom-pod-schedule-strategy":"p=a,base=1:p=b,weight=1"}},`+
				`"spec":{"replicas":1,"selector":{},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`+"\n", i)
		}
		b.Run(fmt.Sprintf("documents=%d", documents), func(b *testing.B) {
			for b.Loop() {
				in, err := Load(b.Context(), Source{Names: []string{"-"}, In: bytes.NewReader(input.Bytes()), Namespace: "default"})
				if err != nil {
					b.Fatal(err)
				}
				pods, _, err := New(in, Settings{Namespace: "stowage-system", Spread: true, Sizing: true, PeerPods: true, PeerPodConfig: peerpod.DefaultConfig()}).Admit(b.Context(), -1)
				if err != nil || len(pods) != documents {
					b.Fatalf("%d pods, %v", len(pods), err)
				}
				s := NewSummary("kata.peerpods.io/vm")
				for i := range pods {
					s.Add(&pods[i])
				}
				if err := s.Print(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*documents), "ns/document")
		})
	}
}
