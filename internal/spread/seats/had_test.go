package seats

import (
	"fmt"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Where pods of an owner have had nodes is remembered, also while the owner has no pods, and of a bounded number of owners.
func TestHad(t *testing.T) { synctest.Test(t, testHad) }

func testHad(t *testing.T) {
	p := newTestLedger(t, &sharedAPI{}, "a").Pods()
	at := func(n int) ledger.Cell { return ledger.Cell{Pool: []string{"od4vcpu16gb", "spot4vcpu16gb"}[n]} }
	key := func(owner types.UID) ledger.OwnerKey { return ledger.OwnerKey{Namespace: "ns", UID: owner} }
	comeAndGo := func(owner types.UID, n int, node string) {
		t.Helper()
		pod := benchPod(p.Key, "ns", "web", owner, n)
		pod.Spec.NodeName = node
		if err := p.Add(pod); err != nil {
			t.Fatal(err)
		}
		if got := p.Had(key(owner), at(n)); got != (node != "") {
			t.Errorf("while the pod of %s is there: %t", owner, got)
		}
		if err := p.Delete(pod); err != nil {
			t.Fatal(err)
		}
	}
	comeAndGo("a", 0, "n")
	comeAndGo("b", 0, "")
	if !p.Had(key("a"), at(0)) || p.Had(key("a"), at(1)) || p.Had(key("b"), at(0)) {
		t.Error("without pods it is forgotten, or another pool is remembered")
	}
	comeAndGo("a", 1, "n")
	if !p.Had(key("a"), at(0)) || !p.Had(key("a"), at(1)) {
		t.Error("a later pod has another pool forgotten")
	}
	for i := range mostFormer {
		p.keepFormer(&ownerPods{owner: ledger.Owner{Namespace: "ns", UID: types.UID(fmt.Sprint("c-", i))}, had: []ledger.Cell{at(0)}})
	}
	if p.Had(key("a"), at(0)) || len(p.formerly) != mostFormer || len(p.lastOwners) != mostFormer {
		t.Errorf("%d owners are remembered", len(p.formerly))
	}
}
