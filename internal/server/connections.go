package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// justNow is how long a newcomer may take to send its request before its connection may be closed for another one. For as long, a
// client's own idle connections stay while it opens others. An API server sends a request at once, and uses idle ones first.
const justNow = time.Second

// keptIdle is how many idle connections to a host client-go keeps, and so an API server. Who has no more has not too many.
const keptIdle = 25

// connections are those that a server has open. When there are more than may be open, one is closed for the newcomer, so that nobody
// can keep an API server out:
//
//  1. the one that has been sending a request for longest, and for over justNow: it may have sent none at all;
//  2. of the client that has the most idle ones, the one that was used least recently. Go's transport, and so an API server, uses the
//     most recently used one for its next request, so it does not meet the end of the one that is closed. Those of the newcomer's
//     client come last: a client that opens connections may be using all others at this moment;
//  3. the one that has been sending for longest. It takes thousands of newcomers a second until that is an honest one.
//
// A connection whose request has arrived is never closed, and neither is one of a trusted client after its first request. Before it
// comes to that, from three quarters on, each answer asks its client not to use the connection again, so that few are idle.
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

// A connection begins to send, and is sending again when the first byte of a further request has arrived.
const (
	sending phase = iota
	answering
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
		if r.ContentLength == 0 {
			c.arrived(conn)
		} else {
			r.Body = &body{ReadCloser: r.Body, whole: sync.OnceFunc(func() { c.arrived(conn) })}
		}
		next.ServeHTTP(w, r)
	})
}

// body tells when all of it has been read.
type body struct {
	io.ReadCloser
	whole func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.whole()
	}
	return n, err
}

// crowded reports whether a connection is better closed after its next answer.
func (c *connections) crowded(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	return len(c.open) > c.most*3/4 && (known == nil || !known.trusted)
}

// arrived notes that a request is there.
func (c *connections) arrived(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.open[conn]; known != nil {
		known.phase, known.since = answering, c.clock.Now()
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
		client := addressOf(conn)
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

// addressOf is the address of a client, without its port.
func addressOf(conn net.Conn) string {
	client, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return client
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

// victim is the connection to close for one of a client.
func (c *connections) victim(newcomer string) (victim net.Conn) {
	now := c.clock.Now()
	idles := map[string]int64{}
	for _, one := range c.open {
		if one.phase == idle {
			idles[one.client]++
		}
	}
	var highest [3]int64
	for conn, one := range c.open {
		age, own := now.Sub(one.since), one.client == newcomer
		var rank [3]int64
		switch {
		case one.trusted, one.phase == answering, one.phase == idle && own && age < justNow:
			continue
		case one.phase == sending && age > justNow:
			rank[0] = 4
		case one.phase == sending:
			rank[0] = 1
		case own:
			rank[0] = 2
		default:
			rank[0], rank[1] = 3, max(idles[one.client], keptIdle)
		}
		rank[2] = int64(age)
		if victim == nil || slices.Compare(rank[:], highest[:]) > 0 {
			victim, highest = conn, rank
		}
	}
	return victim
}
