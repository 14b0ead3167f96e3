package preview

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// seats gives out the seats of a preview. A book looks at all claims whose pods were not seen to say whether one of them counts. Offline no
// pod is ever seen, and each pod asks once, so that the time would grow with the square of the pods. Here the claims that count are known by
// their ids.
type seats struct {
	*ledger.Memory
	counting map[claimOf]bool
}

// claimOf is a claim of an owner.
type claimOf struct {
	owner types.UID
	id    string
}

var _ spreadadmit.Seats = seats{}

func newSeats() seats { return seats{ledger.NewMemory(), map[claimOf]bool{}} }

// Claim implements [spreadadmit.Seats].
func (s seats) Claim(ctx context.Context, owner ledger.Owner, of *sequence.Strategy, writeCost bool) (ledger.Result, error) {
	res, err := s.Memory.Claim(ctx, owner, of, writeCost)
	if err == nil {
		s.counting[claimOf{owner.UID, res.ID}] = true
	}
	return res, err
}

// Claimed implements [spreadadmit.Seats].
func (s seats) Claimed(_ context.Context, owner ledger.Owner, id string) (bool, error) {
	return s.counting[claimOf{owner.UID, id}], nil
}

// GiveBack implements [spreadadmit.Seats].
func (s seats) GiveBack(owner ledger.Owner, id string) {
	s.Memory.GiveBack(owner, id)
	delete(s.counting, claimOf{owner.UID, id})
}
