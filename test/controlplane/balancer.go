package controlplane

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// balancer spreads connections over backends in turn, as a Service does: only
// over those that say that they are ready, and never over one that refuses.
//
// It balances connections. Stowage speaks HTTP/1.1, on which the API server opens
// a connection for each request in flight, so that a burst reaches every replica.
type balancer struct {
	listener net.Listener
	next     atomic.Uint64

	mu       sync.Mutex
	backends []*backend
	conns    map[net.Conn]struct{}
	closed   bool
}

type backend struct {
	addr      string
	healthURL string // answers 200 while the backend wants requests; "" is always
	ready     atomic.Bool
}

// defaultHealthInterval is how often a backend is asked whether it is ready, so that tests soon see what changed.
const defaultHealthInterval = 200 * time.Millisecond

// newBalancer listens on a free loopback port.
func newBalancer() (*balancer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: l, conns: map[net.Conn]struct{}{}}
	go b.serve()
	return b, nil
}

func (b *balancer) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// setBackends replaces the backends. Connections to the old ones go on.
func (b *balancer) setBackends(ctx context.Context, backends []*backend) {
	for _, be := range backends {
		be.check(ctx)
	}
	b.mu.Lock()
	b.backends = backends
	b.mu.Unlock()
}

// watch asks the backends at each interval whether they are ready, until ctx ends.
func (b *balancer) watch(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.mu.Lock()
		backends := b.backends
		b.mu.Unlock()
		for _, be := range backends {
			be.check(ctx)
		}
	}
}

func (be *backend) check(ctx context.Context) {
	be.ready.Store(be.healthURL == "" || httpReady(ctx, be.healthURL))
}

func (b *balancer) serve() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		go b.forward(conn)
	}
}

func (b *balancer) forward(client net.Conn) {
	defer b.forget(client)
	if !b.remember(client) {
		return
	}
	server := b.dial()
	if server == nil {
		return
	}
	defer b.forget(server)
	if !b.remember(server) {
		return
	}
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done // one side is gone; closing both ends the other copy
}

// dial connects to the next backend that is ready and accepts.
func (b *balancer) dial() net.Conn {
	b.mu.Lock()
	backends := b.backends
	b.mu.Unlock()
	first := b.next.Add(1)
	for i := range backends {
		be := backends[(int(first)+i)%len(backends)]
		if !be.ready.Load() {
			continue
		}
		if conn, err := net.DialTimeout("tcp", be.addr, time.Second); err == nil {
			return conn
		}
	}
	return nil
}

func (b *balancer) remember(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.conns[c] = struct{}{}
	return true
}

func (b *balancer) forget(c net.Conn) {
	_ = c.Close()
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
}

func (b *balancer) close() {
	_ = b.listener.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.conns {
		_ = c.Close()
	}
}
