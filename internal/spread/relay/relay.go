// Package relay carries requests for seats from one replica of the webhook to another, over the webhook's port. Package seats says
// when a replica asks, and what it is told.
//
// It promises that only a replica is answered: a request carries a token that follows from the key that signs seats, which nobody else
// may read. What cannot be answered costs one look at a header.
package relay

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
)

// Path is where a replica answers others.
const Path = "/seats"

// tokenHeader carries the token.
const tokenHeader = "Stowage-Token"

// The most that a request and an answer have, in bytes.
const (
	maxRequest = 1 << 10
	maxAnswer  = 64 << 10
)

// A replica that did not answer is not asked for a time, which doubles.
const (
	firstPause   = time.Second
	longestPause = 5 * time.Minute
)

// token returns what proves that a request is of a replica.
func token(key ledger.Key) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("stowage: requests for seats of other replicas")) //nolint:gosec // it never fails (hash.Hash)
	return hex.EncodeToString(mac.Sum(nil))
}

// Siblings are the other replicas: see capability.Siblings.
type Siblings interface {
	Knows(replica string) bool
	Send(ctx context.Context, replica, path string, header http.Header, body []byte, most int64) ([]byte, error)
}

// Client implements [seats.Relay]. Its method may be called at once.
type Client struct {
	siblings Siblings
	token    string
	clock    clock.PassiveClock

	mu     sync.Mutex
	silent map[string]pause // by replica
}

// pause is from when and until when a replica is not asked.
type pause struct {
	since, until time.Time
	long         time.Duration
}

// NewClient returns a client.
func NewClient(siblings Siblings, key ledger.Key, c clock.PassiveClock) *Client {
	return &Client{siblings: siblings, token: token(key), clock: c, silent: map[string]pause{}}
}

// Ask implements [seats.Relay].
func (c *Client) Ask(ctx context.Context, replica string, a seats.Ask) ([]seats.Grant, error) {
	if !c.siblings.Knows(replica) || !c.mayAsk(replica) {
		return nil, seats.ErrNotAsked
	}
	begun := c.clock.Now()
	grants, err := c.ask(ctx, replica, a)
	c.noted(replica, begun, err)
	if err != nil {
		return nil, fmt.Errorf("ask replica %s for seats: %w", replica, err)
	}
	return grants, nil
}

func (c *Client) ask(ctx context.Context, replica string, a seats.Ask) (grants []seats.Grant, err error) {
	body, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	answer, err := c.siblings.Send(ctx, replica, Path, http.Header{tokenHeader: {c.token}}, body, maxAnswer)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer, &grants); err != nil {
		return nil, err
	}
	if len(grants) > a.Pods {
		return nil, fmt.Errorf("%d seats for %d pods", len(grants), a.Pods)
	}
	if slices.ContainsFunc(grants, func(g seats.Grant) bool { return g.ID == "" || g.Pool == "" || g.Ordinal < 1 }) {
		return nil, errors.New("a seat without an id, a pool or a number")
	}
	return grants, nil
}

// mayAsk reports whether a replica is asked now. After a pause, one request finds out whether it answers.
func (c *Client) mayAsk(replica string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, was := c.silent[replica]
	if !was {
		return true
	}
	if c.clock.Now().Before(p.until) {
		return false
	}
	p.until = c.clock.Now().Add(p.long)
	c.silent[replica] = p
	return true
}

// noted notes what became of a request. Those that were under way together fail together, and count as one.
func (c *Client) noted(replica string, begun time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.silent, replica)
		return
	}
	p, was := c.silent[replica]
	if was && begun.Before(p.since) {
		return
	}
	p.since, p.long = c.clock.Now(), min(max(firstPause, 2*p.long), longestPause)
	p.until = p.since.Add(p.long)
	for other, o := range c.silent { // replicas that are gone leave nothing behind
		if c.clock.Since(o.until) > longestPause {
			delete(c.silent, other)
		}
	}
	c.silent[replica] = p
}

// Handler answers other replicas.
func Handler(key ledger.Key, service *seats.Service) http.Handler {
	expected := []byte(token(key))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hmac.Equal([]byte(r.Header.Get(tokenHeader)), expected) {
			http.Error(w, "only other replicas are answered here", http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodPost {
			http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
			return
		}
		var a seats.Ask
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&a); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := json.Marshal(service.Grant(r.Context(), a))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // nobody is left to tell
	})
}
