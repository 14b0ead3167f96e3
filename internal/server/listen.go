package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// mostConnections is how many connections the webhook's port has at once. An API server opens one for each request that it has
// under way; an idle one takes some 30 KiB.
const mostConnections = 2048

// The times that a client gets. The API server waits 30 s for a webhook at most, and keeps an idle connection for 90 s, as
// Go's default transport does. An idle connection must live longer here. With equal times, a request can arrive at the moment at
// which the connection is closed. It then fails, the API server does not send a POST again, and a pod bypasses the webhook.
const (
	headerTimeout = 5 * time.Second // for the TLS handshake, and for the header of a request
	writeTimeout  = 35 * time.Second
	idleTimeout   = 3 * time.Minute
)

// port is controller-runtime's webhook server with limits, which that one does not offer.
type port struct {
	webhook.Server // its paths
	address        string
	serveTLS       func(*tls.Config)
	callers        *clientAuthorities // whose certificates callers must show, or nil
	dropped        prometheus.Counter
	serving        atomic.Bool
}

// newPort makes the server of the webhook's paths.
func newPort(host string, number int, serveTLS func(*tls.Config), callers *clientAuthorities, set *metrics.Set) *port {
	return &port{
		Server:  webhook.NewServer(webhook.Options{}),
		address: net.JoinHostPort(host, strconv.Itoa(number)), serveTLS: serveTLS, callers: callers, dropped: NewDropped(set),
	}
}

// tlsConfig returns how the port is served.
func (p *port) tlsConfig() *tls.Config {
	c := &tls.Config{}
	p.serveTLS(c)
	if p.callers != nil {
		// Whether there is one at all, the handlers ask: our own readiness check has none.
		c.ClientAuth = tls.VerifyClientCertIfGiven
		c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			current := c.Clone()
			current.ClientCAs = p.callers.current()
			return current, nil
		}
	}
	return c
}

// NewDropped registers the metric that counts connections that were closed because there were too many.
func NewDropped(set *metrics.Set) prometheus.Counter {
	return set.Counter("stowage_connections_dropped_total",
		"Connections to the webhook that were closed because there were too many. The client with the most of them loses one.")
}

// Start implements manager.Runnable.
func (p *port) Start(ctx context.Context) error {
	listener, err := tls.Listen("tcp", p.address, p.tlsConfig())
	if err != nil {
		return fmt.Errorf("open the webhook's port: %w", err)
	}
	open := &connections{most: mostConnections, dropped: p.dropped, clients: map[string]map[net.Conn]http.ConnState{}}
	shutdown := time.Minute
	p.serving.Store(true)
	return (&manager.Server{
		Name: "webhook", Listener: listener, ShutdownTimeout: &shutdown,
		Server: &http.Server{
			Handler: p.WebhookMux(), ConnState: open.changed, MaxHeaderBytes: 64 << 10,
			ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
			BaseContext: func(net.Listener) context.Context { return ctx },
		},
	}).Start(ctx)
}

// StartedChecker implements webhook.Server: the port answers a TLS handshake.
func (p *port) StartedChecker() healthz.Checker {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it asks whether we answer, not who does
	return func(r *http.Request) error {
		if !p.serving.Load() {
			return errors.New("the webhook's port is not open yet")
		}
		ctx, cancel := context.WithTimeout(r.Context(), headerTimeout)
		defer cancel()
		conn, err := dialer.DialContext(ctx, "tcp", p.address)
		if err != nil {
			return fmt.Errorf("reach the webhook's port: %w", err)
		}
		return conn.Close()
	}
}

// connections are those that a server has open, by client address. Beyond the most that may be open, the client with the most
// of them loses one, so that nobody can keep an API server out.
type connections struct {
	most    int
	dropped prometheus.Counter

	mu      sync.Mutex
	open    int
	clients map[string]map[net.Conn]http.ConnState
}

// changed is for http.Server.ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	client, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		client = conn.RemoteAddr().String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.clients[client]
	if _, known := own[conn]; !known {
		if state != http.StateNew {
			return // it was dropped
		}
		if own == nil {
			own = map[net.Conn]http.ConnState{}
			c.clients[client] = own
		}
		c.open++
	}
	own[conn] = state
	if state == http.StateClosed || state == http.StateHijacked {
		c.forget(client, conn)
	}
	if c.open > c.most {
		c.drop()
	}
}

func (c *connections) forget(client string, conn net.Conn) {
	delete(c.clients[client], conn)
	if len(c.clients[client]) == 0 {
		delete(c.clients, client)
	}
	c.open--
}

// drop closes a connection of the client that has the most: one that has no request under way, if there is one.
func (c *connections) drop() {
	var client string
	for one, conns := range c.clients {
		if len(conns) > len(c.clients[client]) {
			client = one
		}
	}
	var victim net.Conn
	for conn, state := range c.clients[client] {
		if victim = conn; state != http.StateActive {
			break
		}
	}
	c.forget(client, victim)
	c.dropped.Inc()
	// Not the TLS connection's own Close, which may wait for the client.
	if t, ok := victim.(*tls.Conn); ok {
		victim = t.NetConn()
	}
	_ = victim.Close()
}
