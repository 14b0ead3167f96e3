package server

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stowage-dev/stowage/internal/admission"
)

// The most answers in memory while their clients read them, and how large an answer is that fits into the buffer of a connection and does not count.
const (
	mostUnread  = 16
	smallAnswer = 64 << 10
)

// unread are the answers that are being written. A client that does not read keeps one in memory until its write ends. When there are more than may
// be, one ends for the newcomer: the oldest of the client that has the most. So a client that stalls loses its own answers first, and
// a client that reads has its answer before 16 others have come.
type unread struct {
	mu      sync.Mutex
	writing []*unreadAnswer // the oldest first
}

// unreadAnswer is an answer that is being written.
type unreadAnswer struct {
	client string
	to     http.ResponseWriter
}

// begin adds an answer, and ends another one if there are too many.
func (u *unread) begin(a *unreadAnswer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.writing) >= mostUnread {
		count, most := map[string]int{}, 0
		for _, w := range u.writing {
			count[w.client]++
			most = max(most, count[w.client])
		}
		i := slices.IndexFunc(u.writing, func(w *unreadAnswer) bool { return count[w.client] == most })
		// Its handler removes it under the lock before the connection serves another request, so this deadline is for this answer alone.
		_ = http.NewResponseController(u.writing[i].to).SetWriteDeadline(time.Unix(1, 0))
		u.writing = slices.Delete(u.writing, i, i+1)
	}
	u.writing = append(u.writing, a)
}

// end removes an answer that has been written.
func (u *unread) end(a *unreadAnswer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.writing = slices.DeleteFunc(u.writing, func(w *unreadAnswer) bool { return w == a })
}

// inMemory has a handler make its answer in memory, and writes the answer after the handler has ended. So the handler holds nothing while a client reads.
func (u *unread) inMemory(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made := &madeAnswer{header: w.Header(), status: http.StatusOK}
		next.ServeHTTP(made, r)
		if made.body.Len() > smallAnswer {
			a := &unreadAnswer{client: admission.ClientOf(r.RemoteAddr), to: w}
			u.begin(a)
			defer u.end(a)
		}
		w.WriteHeader(made.status)
		_, _ = w.Write(made.body.Bytes()) // a client that is gone needs no answer
	})
}

// madeAnswer is an answer in memory.
type madeAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *madeAnswer) Header() http.Header         { return a.header }
func (a *madeAnswer) WriteHeader(status int)      { a.status = status }
func (a *madeAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
