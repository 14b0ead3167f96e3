package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/admission"
)

// justNow is how long a newcomer may take to send its request before its connection may be closed for another one. For as long, a
// client's own idle connections stay while it opens others. An API server sends a request at once, and uses idle ones first.
const justNow = time.Second

// keptIdle is how many idle connections to a host client-go keeps, and so an API server. Who has no more has not too many.
const keptIdle = 25

// connections are those that a server has open. When there are more than may be open, one is closed for the newcomer, so that nobody
// can keep an API server out:
//
//  1. the one that has made the server wait for longest, and for over justNow: it sends no request, or does not read its answer;
//  2. of the client that has the most which wait for room for their review, the one that has waited for longest. Room is divided fairly,
//     so such a client has asked for more than its share;
//  3. of another client that has the most in the server's hands, if these are over a quarter of all, the one that has been there for longest;
//     and if so many are of the newcomer's client, an idle one of that or the newcomer. No API server has so many reviews under way at once;
//  4. of the client that has the most idle ones, the one that was used least recently. Go's transport, and so an API server, uses the
//     most recently used one for its next request, so it does not meet the end of the one that is closed. Those of the newcomer's
//     client come last: a client that opens connections may be using all others at this moment;
//  5. the one that has been sending for longest. It takes a thousand newcomers a second until that is an honest one.
//
// So no connection is closed while its request is decided about, unless its client has over a quarter of all. A connection of a trusted
// client is never closed after its first request. Once three quarters of the connections that may be open are, each answer asks its
// client not to use the connection again, so that few are idle.
type connections struct {
	most    int
	dropped prometheus.Counter
	clock   clock.PassiveClock
	trusted func(net.Conn) bool // has a certificate that proves who it is; nil: none is

	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is what is known of an open one.
type connection struct {
	client  string
	phase   phase
	since   time.Time // when the phase began
	trusted bool
}

// phase is what a connection does.
type phase int

// A connection begins to send. It is sending while the server waits for a part of its request, and reading while its answer is written.
// In between, the server has it in its hands: it is answering, or waiting while its review has no room yet.
const (
	sending phase = iota
	answering
	waiting
	reading
	idle
)

func newConnections(most int, dropped prometheus.Counter, trusted func(net.Conn) bool) *connections {
	return &connections{most: most, dropped: dropped, clock: clock.RealClock{}, trusted: trusted, open: map[net.Conn]*connection{}}
}

// serve has a server tell its connections.
func (c *connections) serve(s *http.Server) {
	type key struct{}
	s.ConnState = c.changed
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context { return context.WithValue(ctx, key{}, conn) }
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(key{}).(net.Conn)
		if c.crowded(conn) {
			w.Header().Set("Connection", "close")
		}
		c.enters(conn, answering)
		sent := &body{ReadCloser: r.Body, c: c, conn: conn, ended: r.ContentLength == 0}
		r.Body = sent
		next.ServeHTTP(&writer{ResponseWriter: w, c: c, conn: conn}, r)
		if !sent.ended {
			// net/http reads on before it writes a short answer. Once a body has ended, it waits for the client to go, which a deadline
			// would take for that.
			_ = http.NewResponseController(w).SetReadDeadline(c.clock.Now().Add(unreadTimeout))
		}
		c.enters(conn, reading) // what is written last is flushed after this
	})
}

// unreadTimeout is how long a client may take for the rest of a body that nobody reads.
const unreadTimeout = time.Second

// body tells when the server waits for a part of it.
type body struct {
	io.ReadCloser
	c     *connections
	conn  net.Conn
	ended bool
}

func (b *body) Read(p []byte) (n int, err error) {
	b.c.enters(b.conn, sending)
	defer b.c.enters(b.conn, answering)
	n, err = b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// WaitsForRoom implements [admission.RoomWaiter].
func (b *body) WaitsForRoom(waits bool) {
	phase := answering
	if waits {
		phase = waiting
	}
	b.c.enters(b.conn, phase)
}

// writer tells when an answer is written.
type writer struct {
	http.ResponseWriter
	c    *connections
	conn net.Conn
}

func (w *writer) Write(p []byte) (int, error) {
	w.c.enters(w.conn, reading)
	defer w.c.enters(w.conn, answering)
	return w.ResponseWriter.Write(p)
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// crowded reports whether a connection is better closed after its next answer.
func (c *connections) crowded(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	return len(c.open) > c.most*3/4 && (known == nil || !known.trusted)
}

// enters notes that a connection begins a phase.
func (c *connections) enters(conn net.Conn, phase phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.open[conn]; known != nil {
		known.phase, known.since = phase, c.clock.Now()
	}
}

// changed is for http.Server.ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	trusted := state == http.StateActive && c.trusted != nil && c.trusted(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	switch {
	case state == http.StateNew:
		client := admission.ClientOf(conn.RemoteAddr().String())
		c.open[conn] = &connection{client: client, since: c.clock.Now()}
		if len(c.open) > c.most {
			c.drop(client)
		}
	case known == nil: // it was dropped
	case state == http.StateActive:
		known.phase, known.since, known.trusted = sending, c.clock.Now(), trusted
	case state == http.StateIdle:
		known.phase, known.since = idle, c.clock.Now()
	default:
		delete(c.open, conn)
	}
}

// drop closes one connection for one of a client.
func (c *connections) drop(newcomer string) {
	victim := c.victim(newcomer)
	if victim == nil {
		return // all are trusted, or are being answered
	}
	delete(c.open, victim)
	c.dropped.Inc()
	// Not the TLS connection's own Close, which may wait for the client.
	if t, ok := victim.(*tls.Conn); ok {
		victim = t.NetConn()
	}
	_ = victim.Close()
}

// rank says how soon a connection is closed: the highest first, then by count, then by age in nanoseconds.
type rank struct {
	class, count, age int64
}

// The classes of [rank].
const (
	classFresh int64 = iota + 1
	classOwnIdle
	classIdle
	classHeavy
	classWaiting
	classStalled
)

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.class, o.class), cmp.Compare(r.count, o.count), cmp.Compare(r.age, o.age))
}

// victim is the connection to close for one of a client.
func (c *connections) victim(newcomer string) (victim net.Conn) {
	now := c.clock.Now()
	counts := [...]map[string]int64{sending: {}, answering: {}, waiting: {}, reading: {}, idle: {}} // by phase and client
	for _, one := range c.open {
		counts[one.phase][one.client]++
	}
	var highest rank
	for conn, one := range c.open {
		heavy := counts[answering][one.client] > int64(c.most/4)
		r, closes := c.rankOf(one, now.Sub(one.since), one.client == newcomer, heavy, counts[one.phase][one.client])
		if closes && (victim == nil || r.compare(highest) > 0) {
			victim, highest = conn, r
		}
	}
	return victim
}

// rankOf says how soon a connection is closed that has been in its phase for some time, and whether it may be closed at all. Own says
// that the newcomer is of the same client, heavy that over a quarter of all are of that client and being answered, and count is how
// many connections of that client are in the same phase.
func (c *connections) rankOf(one *connection, age time.Duration, own, heavy bool, count int64) (r rank, closes bool) {
	r.age = int64(age)
	switch {
	case one.trusted:
		return r, false
	case one.phase == answering:
		r.class, r.count = classHeavy, count
		return r, !own && heavy
	case one.phase == waiting:
		r.class, r.count = classWaiting, count
	case one.phase == idle && own:
		if r.class = classOwnIdle; heavy {
			r.class, r.count = classHeavy, math.MaxInt64 // before the newcomer
		}
		return r, age >= justNow
	case one.phase == idle:
		r.class, r.count = classIdle, max(count, keptIdle)
	case age > justNow:
		r.class = classStalled
	case own && heavy:
		r.class = classHeavy
		return r, one.phase == sending
	default:
		r.class = classFresh
		return r, one.phase == sending
	}
	return r, true
}
