package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// verdict is what is to become of a pod at the gate.
type verdict int

const (
	undecided   verdict = iota // nobody can decide now
	undecidable                // nobody can decide as things are
	free                       // there is nothing to decide
	seated                     // it gets a seat
)

// decision is what was decided about a pod.
type decision struct {
	*waiting
	pod     *corev1.Pod // as it was read
	verdict verdict
	why     error         // of undecided and undecidable
	after   *podpatch.Pod // of free and seated: what the pod becomes
	events  []feature.Event

	// The claim of the seat, if it has one: its owner, its id, and until when the patch may be sent.
	claimed ledger.Owner
	id      string
	until   time.Time

	once    sync.Once     // closes asked
	asked   chan struct{} // closed once it has its place in the queue of seats, or needs none
	outcome outcome
}

// readTimeout bounds the read of one pod, and decideTimeout a decision.
const (
	readTimeout   = 5 * time.Second
	decideTimeout = 5 * time.Second
)

// read returns a pod as the watch has shown it, or else as it is now. It returns nil if the pod waits no more.
func (r *run) read(ctx context.Context, w *waiting) (*corev1.Pod, error) {
	if pod := r.waiting.known(w); pod != nil {
		return pod, nil
	}
	if !r.reads.Allow(w.namespace, r.Clock.Now()) {
		return nil, errLater
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pod, err := r.API.Get(ctx, w.namespace, w.name)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if pod.UID != w.uid || !gated(pod) || !podstatus.Active(pod) {
		return nil, nil
	}
	return pod, nil
}

// decide fills in what is to become of a pod. It asks what an admission asks, in the same order.
func (r *run) decide(ctx context.Context, d *decision) {
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	defer d.isAsked()
	defer utilruntime.HandleCrashWithContext(ctx, func(_ context.Context, cause any) {
		d.verdict, d.why = undecided, fmt.Errorf("internal error (panic): %v", cause)
	})
	view := podpatch.FromPod(d.pod)
	d.verdict, d.after = free, view
	if !r.Scope.Waits(view) {
		return
	}
	if err := view.CheckItems(); err != nil {
		d.verdict, d.why = undecidable, err
		return
	}
	scope, err := r.Scope.Of(ctx, d.namespace, view)
	if err != nil {
		d.verdict, d.why = undecided, err
		return
	}
	if scope.Mode != stowage.ModeEnforce {
		return
	}
	sent, err := r.sent(ctx, d.pod)
	if err != nil {
		d.verdict, d.why = undecided, err
		return
	}
	if !sent || r.hasSeat(d.pod) {
		return
	}
	f := *r.Feature
	f.Seats = &holding{r.Seats, d, r.Clock}
	decided, err := f.Decide(ctx, feature.Request{Namespace: d.namespace, Pod: view, Exists: true})
	d.events = decided.Events
	switch {
	case err != nil:
		d.verdict, d.why = undecided, err
	case errors.Is(decided.Wait, feature.ErrUndecidable):
		d.verdict, d.why = undecidable, decided.Wait
	case decided.Wait != nil:
		d.verdict, d.why = undecided, decided.Wait
	case decided.Pod == nil:
	case podpatch.FreeAnnotations(decided.Pod.Metadata.Annotations) < 0:
		d.verdict, d.why = undecidable, errors.New("with a seat, its annotations would be too large")
	default:
		d.after = decided.Pod
		if decided.Pool != nil {
			d.verdict = seated
		}
	}
}

// holding is the seats of one decision, whose claim is kept until the patch is sent.
type holding struct {
	Seats
	*decision
	clock clock.PassiveClock
}

// beyondFor is how long a pod waits whose owner asks for no more pods than have seats. Another replica may have given it one, and the
// watch be behind. Later it is taken to be one more pod, as a surge or a scale-down makes it.
const beyondFor = 15 * time.Second

// Claim implements [admit.Seats].
func (h *holding) Claim(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (ledger.Result, error) {
	answer := h.Hold(ctx, owner, s, writeCost, h.beyond.IsZero() || h.clock.Since(h.beyond) < beyondFor)
	h.isAsked()
	res, until, err := answer()
	switch beyond := errors.Is(err, ledger.ErrBeyond); {
	case !beyond:
		h.beyond = time.Time{}
	case h.beyond.IsZero():
		h.beyond = h.clock.Now()
	}
	if err == nil {
		h.claimed, h.id, h.until = owner, res.ID, until
	}
	return res, err
}

// isAsked lets the next pod ask for its seat.
func (d *decision) isAsked() { d.once.Do(func() { close(d.asked) }) }

// giveBack gives the claim back, because no pod has it.
func (r *run) giveBack(d *decision) {
	if d.id != "" {
		r.Seats.GiveBack(d.claimed, d.id)
		d.id = ""
	}
}

// hasSeat reports whether a pod has a seat that the webhook gave it, and no other pod has it. Then another webhook has put the gate
// back.
func (r *run) hasSeat(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	carried, ok := ledger.SeatOf(r.Seats.Pods().Key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations)
	if !ok || !carried.Origin.Admitted() {
		return false
	}
	records := r.Seats.Pods().Of(ledger.OwnerKey{Namespace: pod.Namespace, UID: owner.UID})
	return !slices.ContainsFunc(records, func(o observed.Pod) bool { return o.Active && o.UID != pod.UID && o.Seat == carried.Seat })
}

// readRegistration is how often the registration is read while pods wait.
const readRegistration = 2 * time.Second

// registration is what the webhook's registration selects.
type registration struct {
	mu      sync.Mutex
	read    time.Time
	selects *selection.Registration
}

// sent reports whether the API server sends such a pod to the webhook. Where that is not known, it is taken to be so.
func (r *run) sent(ctx context.Context, pod *corev1.Pod) (bool, error) {
	selects, err := r.registered(ctx)
	if err != nil {
		return false, err
	}
	ns, err := r.Feature.Policies.World.Namespace(ctx, pod.Namespace)
	if err != nil || ns == nil {
		return false, err
	}
	sent, _ := selects.Sent(ns.Labels, pod)
	return sent != selection.No, nil
}

func (r *run) registered(ctx context.Context) (*selection.Registration, error) {
	g := &r.registration
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := r.Clock.Now(); g.read.IsZero() || now.Sub(g.read) >= readRegistration {
		selects, err := r.API.Registration(ctx)
		if err != nil {
			return nil, err
		}
		g.selects, g.read = selects, now
	}
	return g.selects, nil
}

// about is the object that events about a pod are about: its owner, or the pod itself.
func (d *decision) about() *corev1.ObjectReference {
	if o := metav1.GetControllerOfNoCopy(d.pod); o != nil {
		return &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: d.namespace, Name: o.Name, UID: o.UID}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: d.namespace, Name: d.name, UID: d.uid}
}
