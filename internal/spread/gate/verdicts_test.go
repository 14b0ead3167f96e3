package gate

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// many has pods wait that are not kept, each of its own owner if so.
func (b *bench) many(pods int, ownOwner bool, strategy string) {
	b.api.stored = func(name string) *corev1.Pod {
		pod := gatedPod(name, strategy)
		if ownOwner {
			pod.OwnerReferences[0].UID = types.UID("rs-" + name)
		}
		return pod
	}
	for i := range pods {
		pod := b.api.stored(fmt.Sprintf("web-%04d", i))
		b.waiting.put(waiting{namespace: "ns", name: pod.Name, uid: pod.UID, owner: metav1.GetControllerOfNoCopy(pod).UID, created: start.Unix()}, nil)
	}
}

// 4,000 pods of one owner about which nobody can decide cost the reads of one turn, of one pod each time, and of each before it is let through
// after a minute. When somebody corrects the cause, all of them get their seats.
func TestManyPodsOfOneOwner(t *testing.T) {
	b := newBench()
	b.many(4000, false, "p")
	b.pass(t, 59)
	if most := perTurn + 59/int(retryEvery.Seconds()) + 1; b.api.reads > most {
		t.Errorf("%d reads in a minute, want at most %d", b.api.reads, most)
	}
	if n, _ := b.waiting.state(); n != 4000 {
		t.Errorf("%d pods wait after 59 s", n)
	}
	b.pass(t, 60)
	if n, _ := b.waiting.state(); n != 0 || len(b.api.patches) != 4000 {
		t.Errorf("%d pods wait after two minutes, and %d patches were sent", n, len(b.api.patches))
	}
	if most := 4000 + 2*perTurn + 40; b.api.reads > most {
		t.Errorf("%d reads in all, want at most %d", b.api.reads, most)
	}

	b = newBench()
	b.many(400, false, "p")
	b.pass(t, 30)
	b.api.stored = func(name string) *corev1.Pod { return gatedPod(name, halves) }
	b.pass(t, 10)
	if n, _ := b.waiting.state(); n != 0 || b.seats.given != 400 {
		t.Errorf("%d pods wait after the strategy was corrected, and %d got a seat", n, b.seats.given)
	}
}

// Pods of one owner may differ. One about which nobody can decide keeps no other one from its seat for longer than some tries take.
func TestOneBadPod(t *testing.T) {
	b := newBench()
	b.many(200, false, halves)
	good := b.api.stored
	b.api.stored = func(name string) *corev1.Pod {
		pod := good(name)
		if name == "web-0000" { // the oldest
			pod.Annotations = gatedPod(name, "p").Annotations
		}
		return pod
	}
	b.pass(t, 40)
	if n, _ := b.waiting.state(); n != 1 || b.seats.given != 199 {
		t.Errorf("%d pods wait after 40 s, and %d have a seat", n, b.seats.given)
	}
	b.pass(t, 30)
	if n, _ := b.waiting.state(); n != 0 || b.seats.given != 199 {
		t.Errorf("%d pods wait after 70 s, and %d have a seat", n, b.seats.given)
	}
}

// While nobody can say, no minute passes: an outage does not open gates.
func TestAnOutageOpensNoGate(t *testing.T) {
	b := newBench()
	pod := gatedPod("web-0", "p")
	b.comes(pod)
	b.pass(t, 5)
	b.waiting.forget(b.waiting.pods[pod.UID])
	b.api.failing = errNoAnswer
	b.pass(t, 300)
	b.api.failing = nil
	if b.pass(t, 50); b.became() != "waits" {
		t.Errorf("50 s after an outage it became %s", b.became())
	}
	if b.pass(t, 30); b.became() != openedUnseated {
		t.Errorf("80 s after an outage it became %s", b.became())
	}
}

// 4,000 pods of as many owners are read at a rate, and let through nevertheless.
func TestManyOwners(t *testing.T) {
	b := newBench()
	b.many(4000, true, "p")
	for second := range 330 {
		b.pass(t, 0)
		if most := readBurst/2 + readRate*second; b.api.reads > most {
			t.Fatalf("%d reads in %d s, want at most %d", b.api.reads, second, most)
		}
		b.clock.Step(time.Second)
		b.noticed() // or the recorder is full
	}
	if n, _ := b.waiting.state(); n != 0 {
		t.Errorf("%d pods wait still", n)
	}
}

// The minute counts from the first verdict, which outlives leaders. It does not count from the creation of a pod, so that an outage does not
// open all gates; and no leader lets a pod through in its first seconds.
func TestTheMinuteOutlivesLeaders(t *testing.T) {
	b := newBench()
	pod := gatedPod("web-0", "p")
	b.comes(pod)
	b.pass(t, 40)
	b.leads()
	b.comes(pod)
	b.pass(t, 19)
	if got := b.became(); got != "waits" {
		t.Errorf("after 59 s it became %s", got)
	}
	b.pass(t, 6)
	if got := b.became(); got != openedUnseated {
		t.Errorf("after 65 s under two leaders it became %s", got)
	}

	b = newBench() // the first leader ends after the minute would have passed, and the next one begins
	b.comes(pod)
	b.pass(t, 10)
	b.clock.Step(10 * time.Minute)
	b.leads()
	b.comes(pod)
	if b.pass(t, 14); b.became() != "waits" {
		t.Error("a leader let a pod through in its first seconds")
	}
	if b.pass(t, 6); b.became() != openedUnseated {
		t.Error("a leader lets a pod wait whose minute is over")
	}

	b = newBench() // nobody has seen the pod before
	b.clock.Step(10 * time.Minute)
	b.leads()
	b.comes(pod)
	if b.pass(t, 59); b.became() != "waits" {
		t.Error("a pod that nobody saw for long was let through at once")
	}

	b = newBench() // somebody has decided meanwhile
	b.comes(pod)
	b.pass(t, 10)
	b.api.pod = gatedPod("web-0", halves)
	b.waiting.put(waiting{namespace: "ns", name: pod.Name, uid: pod.UID, owner: "rs"}, b.api.pod)
	b.pass(t, 10)
	if b.became() != openedSeated || len(b.api.kept) != 0 {
		t.Errorf("it became %s, and %v is kept", b.became(), b.api.kept)
	}
}

// What is kept is read once, and written at most every two seconds and only after a change. While that fails, it is tried twice a minute.
func TestKeepingVerdicts(t *testing.T) {
	b := newBench()
	pod := gatedPod("web-0", "p")
	b.comes(pod)
	b.pass(t, 10)
	if b.api.looks != 1 || b.api.keeps != 1 || len(b.api.kept) != 1 {
		t.Errorf("%d reads and %d writes of what is kept: %v", b.api.looks, b.api.keeps, b.api.kept)
	}
	for i := range 5 { // one change a second
		b.verdicts.note(ledger.OwnerKey{Namespace: "other", UID: types.UID(fmt.Sprint(i))}, b.clock.Now())
		b.pass(t, 1)
	}
	b.pass(t, 3)
	if b.api.keeps < 3 || b.api.keeps > 5 || len(b.api.kept) != 6 {
		t.Errorf("%d writes of five seconds of changes: %v", b.api.keeps-1, b.api.kept)
	}
	before := b.api.keeps
	b.verdicts.clear(ledger.OwnerKey{Namespace: "nobody", UID: "knows"})
	if b.pass(t, 4); b.api.keeps != before {
		t.Errorf("%d writes though nothing has changed", b.api.keeps-before)
	}

	// 1. It cannot be written.
	b.api.keeping = errNoAnswer
	b.verdicts.note(ledger.OwnerKey{Namespace: "other", UID: "new"}, b.clock.Now())
	if b.pass(t, 29); b.api.keeps != before+1 {
		t.Errorf("%d writes in half a minute without an answer", b.api.keeps-before)
	}
	b.api.keeping = nil
	if b.pass(t, 3); b.api.kept["other/new"] == (metav1.Time{}) {
		t.Errorf("it was not written later: %v", b.api.kept)
	}

	// 2. The next leader cannot read it, and writes nothing before. Then the minute that the pod has waited counts.
	b.leads()
	b.comes(pod)
	b.api.keeping, before = errNoAnswer, b.api.keeps
	looks := b.api.looks
	if b.pass(t, 28); b.api.looks != looks+1 || b.api.keeps != before || b.became() != "waits" {
		t.Errorf("%d reads and %d writes without an answer, and the pod became %s", b.api.looks-looks, b.api.keeps-before, b.became())
	}
	b.api.keeping = nil
	if b.pass(t, 10); b.api.looks != looks+2 || b.became() != openedUnseated {
		t.Errorf("%d reads, and the pod became %s", b.api.looks-looks, b.became())
	}

	// 3. What is older than an hour says nothing.
	b = newBench()
	b.api.kept = Verdicts{"ns/rs": metav1.NewTime(start.Add(-verdictsFor - time.Second)), "ns/other": metav1.NewTime(start.Add(-verdictsFor))}
	b.leads()
	b.pass(t, 0)
	if _, old := b.verdicts.since[ledger.OwnerKey{Namespace: "ns", UID: "rs"}]; old || len(b.verdicts.since) != 1 {
		t.Errorf("after an hour, %v is taken over", b.verdicts.since)
	}
}

// What is kept for the next leader is bounded, and what is not understood is left out.
func TestKeptVerdictsAreBounded(t *testing.T) {
	b := newBench()
	b.many(3000, true, "p")
	b.pass(t, 20)
	if n := len(b.api.kept); n != mostVerdictsOfNamespace {
		t.Errorf("%d owners are kept", n)
	}
	for i := range 3000 {
		b.verdicts.note(ledger.OwnerKey{Namespace: fmt.Sprint("ns-", i%100), UID: types.UID(fmt.Sprint(i))}, b.clock.Now())
	}
	if n := len(b.verdicts.since); n != mostVerdicts {
		t.Errorf("%d owners are remembered", n)
	}
	b.waiting.keep(nil) // all pods are gone
	if b.pass(t, 65); len(b.api.kept)+len(b.verdicts.since)+len(b.verdicts.last) != 0 {
		t.Errorf("%d owners without pods are kept", len(b.api.kept))
	}
	b.leads()
	b.api.kept = Verdicts{"ns/rs": metav1.NewTime(start.Add(time.Hour)), "": {}, "what/ever/it/is": metav1.NewTime(start)}
	pod := gatedPod("web-0", "p")
	b.comes(pod)
	if b.pass(t, 59); b.became() != "waits" {
		t.Error("a verdict of the future opened the gate")
	}
	if b.pass(t, 7); b.became() != openedUnseated {
		t.Error("a verdict of the future keeps the gate shut")
	}
}
