package repair

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Pods that choose their nodes themselves are told at the first look: that does not pass, as other hindrances do.
func TestPinnedIsToldAtOnce(t *testing.T) {
	chooses := func(name string) *corev1.Pod {
		p := pod(name, "node-b", "", 0, ledger.Origin(0))
		p.Spec.NodeSelector = map[string]string{"p": "b"}
		return p
	}
	objects := workload(2)
	objects = append(objects, chooses("x"), chooses("y"))
	b := newBench(t, objects...)
	b.clock.Step(DefaultTiming().Quiet)
	if _, err := b.reconcile(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	got := b.Hindrances(owner.Key())
	if len(got) != 1 || got[0].Reason != stowage.HindrancePinned || got[0].Count != 2 || got[0].Pod != "x" {
		t.Errorf("the hindrances are %+v", got)
	}
}
