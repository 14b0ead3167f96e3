package seats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// maxBudget bounds the time of a claim. It lies well inside a webhook's timeout.
const maxBudget = 4 * time.Second

// Claim gives a seat to one more pod of an owner. It returns in time for a webhook's answer, with a seat that is not
// in the ledger if need be (see Result.Written). It returns sequence.ErrFull if the strategy has no seat. See
// [ledger.Request] for writeCost.
func (l *Service) Claim(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (ledger.Result, error) {
	// The replica that writes the ledger is asked before this one claims a seat, or once the book learns who that is.
	most := maxBudget
	if l.askers.relay != nil {
		most += relayTimeout // a pod that asks in vain has as much time as one that does not ask
	}
	deadline := l.deadline(ctx, most)
	res, asked := l.fromWriter(ctx, owner, s, writeCost)
	if res != nil {
		return *res, nil
	}
	refer := !asked && l.patience(ctx) > 0
	answer, err := l.ask(ctx, owner, &ledger.Request{Strategy: s, WriteCost: writeCost, Refer: refer, Deadline: deadline})()
	if !errors.Is(err, ledger.ErrElsewhere) {
		return answer, err
	}
	if res, _ = l.fromWriter(ctx, owner, s, writeCost); res != nil {
		return *res, nil
	}
	return l.ask(ctx, owner, &ledger.Request{Strategy: s, WriteCost: writeCost, Deadline: deadline})()
}

// deadline returns when an answer is due, as a request has it: after most at the latest.
func (l *Service) deadline(ctx context.Context, most time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		// Some of the time is for the answer's way back.
		most = min(most, deadline.Sub(l.clock.Now())*9/10)
	}
	return l.now() + most
}

// Hold is Claim for a pod that exists and waits for its seat. It returns once the pod is in the queue. The function that it returns
// waits for the seat. The claim may be used until the time that this function returns, and is given back by [Service.GiveBack] if it is
// not used. See [ledger.Request] for within.
func (l *Service) Hold(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost, within bool) func() (ledger.Result, time.Time, error) {
	answer := l.ask(ctx, owner, &ledger.Request{Strategy: s, WriteCost: writeCost, Held: true, Within: within, Deadline: l.deadline(ctx, maxBudget)})
	return func() (ledger.Result, time.Time, error) {
		res, err := answer()
		return res, l.start.Add(res.Until), err
	}
}

// GiveBack ends a claim that no pod will have.
func (l *Service) GiveBack(owner ledger.Owner, id string) {
	if l.knows(owner.Key()) {
		l.with(owner.Key(), func(_ time.Duration, e *entry) { e.book.GiveBack(id) })
	}
}

// ask puts a request into the queue of an owner, and returns what waits for its answer.
func (l *Service) ask(ctx context.Context, owner ledger.Owner, r *ledger.Request) func() (ledger.Result, error) {
	if !l.mayHaveBook(ctx, owner) {
		res, err := ledger.Unshared(r.Strategy, r.WriteCost)
		l.metrics.claim(res)
		return func() (ledger.Result, error) { return res, err }
	}
	var answer <-chan ledger.Result
	l.with(owner.Key(), func(now time.Duration, e *entry) {
		e.identify(owner)
		answer = e.enqueue(now, r)
	})
	return func() (ledger.Result, error) {
		select {
		case res := <-answer:
			given := !r.Held || res.Written && !res.Unverified // others are given back
			if given && !errors.Is(res.Err, ledger.ErrElsewhere) {
				l.metrics.claim(res)
			}
			return res, res.Err
		case <-ctx.Done():
			// Only if this process does not get to run.
			return ledger.Result{}, fmt.Errorf("claim a seat: %w", ctx.Err())
		}
	}
}

// Claimed reports whether a claim counts: its pod was not seen yet, and may still come.
// Where this replica does not know the claim, another one may have made it a moment ago,
// and the ledger is read.
func (l *Service) Claimed(ctx context.Context, owner ledger.Owner, id string) (bool, error) {
	var claimed, known bool
	if l.knows(owner.Key()) {
		l.with(owner.Key(), func(now time.Duration, e *entry) {
			e.identify(owner)
			claimed, known = e.book.Claimed(now, id), e.book.Knows(id)
		})
	}
	if claimed || known {
		return claimed, nil
	}
	if !l.mayRead(owner) {
		return false, nil // its pod gets another seat
	}
	o, err := l.api.ReadLedger(ctx, owner)
	if err != nil {
		return false, fmt.Errorf("look up the claim of an earlier pass: %w", err)
	}
	if o.Version != 0 {
		l.LedgerSeen(owner, *o, false)
	}
	return slices.ContainsFunc(o.Claims, func(c ledger.Claim) bool { return c.ID == id && c.Settled == 0 }), nil
}
