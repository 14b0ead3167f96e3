package admit

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Audits number the pods of workloads in mode Audit, which get no seat that could be counted. The number is of this process alone:
// beside other replicas it is too low during a burst, until the workload's controller has counted the pods.
type Audits struct {
	counts *bounded.Cache[types.UID, int64]
}

// What is remembered of owners, in bytes in all and for each, and for how long after the last pod.
const (
	auditBytes = 1 << 20
	auditEntry = 256
	auditTTL   = time.Minute
)

// NewAudits returns Audits that have seen no pod.
func NewAudits(clock bounded.Clock) *Audits {
	return &Audits{counts: bounded.New[types.UID, int64](auditBytes, clock)}
}

// next returns the seat that the next pod of an owner would have, if its siblings had seats. With keep, that pod is counted.
func (a *Audits) next(ctx context.Context, w world.Snapshot, namespace string, owner world.Ref, s *sequence.Strategy, keep bool) (sequence.Seat, error) {
	number := int64(0)
	if count, ok := a.counts.Get(owner.UID); ok {
		number = count
	}
	made, err := w.Workload(ctx, namespace, owner)
	if err != nil {
		return sequence.Seat{}, err
	}
	number++
	if made != nil && made.Replicas > 0 {
		number = min(max(number, made.Current+1), made.Replicas)
	}
	if keep {
		a.counts.Add(owner.UID, number, auditEntry, auditTTL)
	}
	return s.Nth(number)
}
