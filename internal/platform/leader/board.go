package leader

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// MostLag is how far a replica's watch of pods may be behind. Beyond it the replica leaves the lead to others, and the Service to
// a leader that is nearer.
const MostLag = 10 * time.Second

// freshStanding is how long what the leader has written holds.
const freshStanding = 10 * time.Second

// Standing is how a replica stands.
type Standing struct {
	Ready bool          // it answers reviews well, whatever its watch shows
	Lag   time.Duration // how far its watch of pods is behind
	Lacks string        // what it may not do and has to, as `stowage check` has it from a replica of the webhook
}

// String implements fmt.Stringer.
func (s Standing) String() string {
	text := "unready "
	if s.Ready {
		text = "ready "
	}
	text += s.Lag.Round(time.Millisecond).String()
	if s.Lacks != "" {
		text += stowage.CheckLacks + s.Lacks
	}
	return text
}

// parseStanding reads what a holder wrote, but for what it lacks. A leader of an older version keeps the text of the leader before it.
func parseStanding(text, holder string) (Standing, bool) {
	text, _, _ = strings.Cut(text, stowage.CheckLacks)
	text, ok := strings.CutPrefix(text, holder+" ")
	ready, lag, _ := strings.Cut(text, " ")
	d, err := time.ParseDuration(lag)
	return Standing{Ready: ready == "ready", Lag: d}, ok && err == nil
}

// Board is where the leader writes how it stands: the lease, which it renews and the other replicas read anyway. That costs
// no request. Its methods may be called at once.
//
// The leader stays in the Service, however far it is behind, and the others leave it for no one else. So not all of them
// leave. A leader that is behind hands over first.
type Board struct {
	Clock clock.PassiveClock
	// Own returns how this replica stands.
	Own func() Standing
	// Blocked returns the namespaces that are blocked, as this replica runs.
	Blocked func() []string

	mu      sync.Mutex
	leads   bool      // this replica holds the lease, as far as it knows
	holder  string    // who holds it
	renewed time.Time // when, by the holder's clock
	seen    time.Time // when renewed changed, by ours; zero until it does, because the holder may be gone
	leader  Standing
	known   bool // leader is what the holder wrote
}

// NearerLeader reports whether another replica leads, is ready, and is nearer than a lag. The leader's own may have grown since.
func (b *Board) NearerLeader(lag time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	age := b.Clock.Since(b.seen)
	if b.leads || b.holder == "" || b.seen.IsZero() || age > freshStanding {
		return false // no other replica is known to lead now
	}
	return b.known && b.leader.Ready && b.leader.Lag+age < lag
}

// read notes what a lease says.
func (b *Board) read(lease *coordinationv1.Lease, identity string) {
	holder, renewed := ptr.Deref(lease.Spec.HolderIdentity, ""), ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
	standing, known := parseStanding(lease.Annotations[stowage.StandingAnnotation], holder)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case holder != b.holder:
		b.seen = time.Time{}
	case !renewed.Equal(b.renewed):
		b.seen = b.Clock.Now()
	}
	b.leads, b.holder, b.renewed, b.leader, b.known = holder == identity, holder, renewed, standing, known
}

// behind reports whether this replica had better not lead.
func (b *Board) behind() bool { return b != nil && b.Own().Lag > MostLag }

// leases are the leases of a replica, with its board.
type leases struct {
	coordinationclient.LeasesGetter
	board    *Board
	identity string
}

// Leases implements coordinationclient.LeasesGetter.
func (l leases) Leases(namespace string) coordinationclient.LeaseInterface {
	return boardLease{l.LeasesGetter.Leases(namespace), l.board, l.identity}
}

type boardLease struct {
	coordinationclient.LeaseInterface
	board    *Board
	identity string
}

// Get implements coordinationclient.LeaseInterface.
func (l boardLease) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	return l.noted(l.LeaseInterface.Get(ctx, name, o))
}

// Create implements coordinationclient.LeaseInterface.
func (l boardLease) Create(ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	l.write(lease)
	return l.noted(l.LeaseInterface.Create(ctx, lease, o))
}

// Update implements coordinationclient.LeaseInterface.
func (l boardLease) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	l.write(lease)
	return l.noted(l.LeaseInterface.Update(ctx, lease, o))
}

func (l boardLease) write(lease *coordinationv1.Lease) {
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, stowage.StandingAnnotation, l.identity+" "+l.board.Own().String())
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, stowage.BlocklistAnnotation, strings.Join(l.board.Blocked(), ","))
}

func (l boardLease) noted(lease *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err == nil {
		l.board.read(lease, l.identity)
	}
	return lease, err
}
