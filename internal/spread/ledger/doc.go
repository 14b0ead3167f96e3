// Package ledger hands out seats to the pods of one owner, among several replicas of the webhook at once. It hands
// out no seat twice and leaves none out.
//
// A replica knows the owner's pods from a watch, which lags. What it does not show
// yet are claims: seats that were given to pods which are on their way. All replicas
// share them in one API object per owner, a SeatLedger, written with optimistic
// concurrency:
//
//	         Claim (one write for many)       the pod is seen
//	(free) ─────────────────────────▶ claimed ───────────────▶ held by the pod
//	   ▲                                 │                          │
//	   └──── expired, or presumed dead ──┘        the pod ends ─────┘──▶ (free)
//
// A claimed seat counts exactly like a held one. A [Book] is the life cycle for one owner as one replica sees it.
// Plain events come in, plain actions come out, and time is an argument. So the simulation in this package's tests
// can run thousands of histories a second. Service, in package seats, runs the books of a process. It performs their
// actions on the API, from a watch of the pods that carry a seat.
//
// The package relies on
//   - a conditional write to the API: of two replicas that write the same version of a
//     ledger, one wins;
//   - resource versions of pods that grow (KEP-5504);
//   - a watch of SeatLedgers that lags by less than half of Expiry. The watch of pods may lag, see [Watch]. It costs
//     exactness only where pods go that it still shows.
//
// While the controller creates only what its owner's spec asks for, it promises two things. Counts per pool are those
// of the sequence once the owner's pods have settled, and ordinals have no gaps. A seat is given in bounded time even
// where the API is slow, marked as not claimed. Which pool is next is package sequence's answer.
package ledger
