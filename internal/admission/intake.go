package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// Reviews of up to smallReview bytes share smallReviews bytes of room, and larger ones largeReviews. Whoever creates pods, or
// reaches the port, chooses how many come at once. Room is about the memory that a review takes, so all reviews that are let in take no more than
// their room, and as much again for garbage: a replica has a gibibyte.
const (
	smallReview  = 64 << 10
	smallReviews = 96 << 20
	largeReviews = 20 << 20
)

// itemRoom is the room that a review takes for each item in it while it is decoded, beside twice its length for the body and the texts: what [podpatch.Pod.Size] may
// find, and garbage. Items are not known before the review is decoded, so commas and brackets are counted: each item has one.
const itemRoom = 400

// mostRoom is how much room the items of a review take at most: Stowage looks at no pod that has more (package podpatch), and answers
// it at once.
const mostRoom = 576 << 10

// waitForRoom is how long a review waits for room at most. Whoever waits has a connection.
const waitForRoom = 2 * time.Second

// RoomOf returns the room that a review takes while it is decoded, and how much room all reviews of its size share. Commas and brackets within texts
// count, too. The items of a large review are not there yet when it takes its room, so it takes the most.
func RoomOf(body []byte) (room, most int64) {
	if len(body) > smallReview {
		return int64(len(body)) + mostRoom, largeReviews
	}
	items := 0
	for _, mark := range []byte{',', '{', '['} {
		items += bytes.Count(body, []byte{mark})
	}
	return 2*int64(len(body)) + min(itemRoom*int64(items), mostRoom), smallReviews
}

// maxBodyBytes is the largest request body that is read. The API server takes objects of up to 3 MiB and sends at
// most two of them in a review. The rest of a review is smaller than 1 MiB.
const maxBodyBytes = 7 << 20

// largeBodyTimeout is how long the rest of a large body may take once room is held for it. An API server sends it at once.
const largeBodyTimeout = time.Second

// Intake bounds what reviews cost together. It promises that
//   - a review holds room only once its body, or the first 64 KiB of it, has arrived. Until then it has a buffer of that size: 130 MiB of all
//     connections that the port takes;
//   - no client address can take so much room that another one gets none;
//   - large reviews never delay small ones;
//   - reading a review and waiting for room take at most half the time that the API server waits.
type Intake struct {
	clock        clock.PassiveClock
	small, large *fair.Pool[string] // room for reviews, by client address
}

// NewIntake returns an intake for all handlers of a process.
func NewIntake(clock clock.PassiveClock) *Intake {
	return &Intake{clock: clock, small: fair.NewPool[string](smallReviews), large: fair.NewPool[string](largeReviews)}
}

// held is the room that a review holds.
type held struct {
	room   *fair.Pool[string] // nil of a review that holds none
	client string
	n      int64
}

func (h held) release() {
	if h.room != nil {
		h.room.Release(h.client, h.n)
	}
}

// decoded gives back the room that only decoding needs. What was decoded keeps its room until the answer: its texts, which are no longer than the
// body, and the memory of its items. A review may wait for its seat for seconds.
func (h *held) decoded(body int, items int64) {
	if spare := h.n - int64(body) - items; h.room != nil && spare > 0 {
		h.room.Release(h.client, spare)
		h.n -= spare
	}
}

// read reads a body and takes room for what it becomes when it is decoded. The caller releases the room when the review is
// answered, also after an error. The context is that of [arrive].
func (in *Intake) read(ctx context.Context, w http.ResponseWriter, r *http.Request, body *bytes.Buffer) (held, error) {
	if r.ContentLength > maxBodyBytes {
		return held{}, unreadable(&http.MaxBytesError{Limit: maxBodyBytes})
	}
	now := in.clock.Now()
	end := now
	if late, ok := ctx.Deadline(); ok {
		end = now.Add(late.Sub(clock.RealClock{}.Now()) / 2) // contexts go by the real clock
	}
	deadlines := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines (a test's recorder has none); the server's does. One that passed stays: the server
	// would wait for the rest of the body otherwise.
	_ = deadlines.SetReadDeadline(end)

	from := http.MaxBytesReader(w, r.Body, maxBodyBytes)
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, smallReview+1)) + bytes.MinRead) // once: a buffer that doubles takes up to three times as much
	}
	if _, err := body.ReadFrom(io.LimitReader(from, smallReview+1)); err != nil {
		return held{}, unreadable(err)
	}
	if body.Len() <= smallReview {
		_ = deadlines.SetReadDeadline(time.Time{})
		room, _ := RoomOf(body.Bytes())
		return in.take(ctx, end, in.small, r, room)
	}
	n := r.ContentLength
	if n < 0 {
		n = maxBodyBytes
	}
	room, err := in.take(ctx, end, in.large, r, n+mostRoom)
	if err != nil {
		return room, err
	}
	_ = deadlines.SetReadDeadline(in.clock.Now().Add(largeBodyTimeout))
	body.Grow(int(n) + bytes.MinRead - body.Len()) // once: growing by steps takes three times as much
	if _, err := body.ReadFrom(from); err != nil {
		return room, unreadable(err)
	}
	_ = deadlines.SetReadDeadline(time.Time{})
	return room, nil
}

// RoomWaiter is a body that is told when its review begins and ends to wait for room.
type RoomWaiter interface{ WaitsForRoom(waits bool) }

// take takes room for n bytes of a client, and waits for it until end.
func (in *Intake) take(ctx context.Context, end time.Time, room *fair.Pool[string], r *http.Request, n int64) (held, error) {
	client := ClientOf(r.RemoteAddr)
	if room.TryAcquire(client, n) { // almost always, without a timer
		return held{room, client, n}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(end.Sub(in.clock.Now()), waitForRoom))
	defer cancel()
	if body, ok := r.Body.(RoomWaiter); ok {
		body.WaitsForRoom(true)
		defer body.WaitsForRoom(false)
	}
	if room.Acquire(ctx, client, n) != nil {
		return held{}, &httpError{http.StatusServiceUnavailable, fmt.Errorf("this review of %d bytes waited for room in vain, because others have taken it", n)}
	}
	return held{room, client, n}, nil
}

// unreadable is the answer to a body that could not be read.
func unreadable(err error) error {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than the limit of %d bytes", tooLarge.Limit)}
	}
	return badRequest("read the body: %w", err)
}
