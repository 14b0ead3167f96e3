package gate

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		b.waiting.put(waiting{namespace: "ns", name: pod.Name, uid: pod.UID, version: pod.ResourceVersion, owner: metav1.GetControllerOfNoCopy(pod).UID, created: start.Unix()}, nil)
	}
}

// 4,000 pods of one owner about which nobody can decide cost the reads of one turn and of one pod each time, and are let through after a
// minute. When somebody corrects the cause, all of them get their seats.
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
	b.pass(t, 7)
	if n, _ := b.waiting.state(); n != 0 || len(b.api.patches) != 4000 {
		t.Errorf("%d pods wait after a minute, and %d patches were sent", n, len(b.api.patches))
	}
	if most := 2*perTurn + 20; b.api.reads > most {
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

// 4,000 pods of as many owners are read at a rate, and let through nevertheless.
func TestManyOwners(t *testing.T) {
	b := newBench()
	b.many(4000, true, "p")
	for second := range 200 {
		b.pass(t, 0)
		if most := readBurst/2 + readRate*second; b.api.reads > most {
			t.Fatalf("%d reads in %d s, want at most %d", b.api.reads, second, most)
		}
		b.clock.Step(time.Second)
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
	b.waiting.put(waiting{namespace: "ns", name: pod.Name, uid: pod.UID, version: "8", owner: "rs"}, b.api.pod)
	b.pass(t, 10)
	if b.became() != openedSeated || len(b.api.kept) != 0 {
		t.Errorf("it became %s, and %v is kept", b.became(), b.api.kept)
	}
}

// What is kept for the next leader is bounded, and what is not understood is left out.
func TestKeptVerdictsAreBounded(t *testing.T) {
	b := newBench()
	b.many(3000, true, "p")
	b.pass(t, 20)
	if n := len(b.api.kept); n != mostVerdicts {
		t.Errorf("%d owners are kept", n)
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
