package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// How many connections a port has at once. An API server opens one for each request that it has under way; an idle one takes some
// 30 KiB. Nobody needs many for health checks and metrics.
const (
	mostConnections      = 2048
	mostPlainConnections = 256
)

// How many bytes the header of a request has at most, beside the 4 KiB that net/http reads at once. Short lines take some 15 times as much
// memory as they have bytes, until the header ends. An API server sends some 300 bytes, and Prometheus a token, too.
const (
	maxHeader      = 4 << 10
	maxTokenHeader = 16 << 10
)

// The times that a client gets. The API server waits 30 s for a webhook at most, and keeps an idle connection for 90 s, as
// Go's default transport does. An idle connection must live longer here. With equal times, a request can arrive at the moment at
// which the connection is closed. It then fails, the API server does not send a POST again, and a pod bypasses the webhook.
//
// The same holds before the first request. Go's transport opens a connection when it has no idle one. If another connection becomes
// idle meanwhile, the request goes there, and the new connection stays for a later request. So a client of the webhook has idleTimeout for
// a header, too. What a stranger keeps with half a header, maxHeader bounds, and [connections] closes first what sends nothing.
const (
	writeTimeout = 35 * time.Second // and the most for the TLS handshake
	idleTimeout  = 3 * time.Minute
	// plainHeaderTimeout and plainWriteTimeout are for health checks and metrics. An answer that its client reads slowly stays in memory for that long.
	plainHeaderTimeout = 5 * time.Second
	plainWriteTimeout  = 10 * time.Second
)

// port is controller-runtime's webhook server with limits, which that one does not offer.
type port struct {
	webhook.Server // its paths
	address        string
	serveTLS       func(*tls.Config)
	callers        *clientAuthorities // whose certificates callers must show, or nil
	names          []string           // a caller's certificate must have one of them; empty accepts any name
	dropped        prometheus.Counter
	serving        atomic.Bool
}

// newPort makes the server of the webhook's paths.
func newPort(host string, number int, serveTLS func(*tls.Config), callers *clientAuthorities, names []string, dropped prometheus.Counter) *port {
	return &port{
		Server:  webhook.NewServer(webhook.Options{}),
		address: net.JoinHostPort(host, strconv.Itoa(number)), serveTLS: serveTLS, callers: callers, names: names, dropped: dropped,
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
		"Connections to a port of the process that were closed because there were too many: first those that send nothing, then idle ones.")
}

// Start implements manager.Runnable.
func (p *port) Start(ctx context.Context) error {
	listener, err := tls.Listen("tcp", p.address, p.tlsConfig())
	if err != nil {
		return fmt.Errorf("open the webhook's port: %w", err)
	}
	shutdown := time.Minute
	s := p.httpServer()
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	p.serving.Store(true)
	return (&manager.Server{Name: "webhook", Listener: listener, ShutdownTimeout: &shutdown, Server: s}).Start(ctx)
}

// httpServer serves the port's paths, with limits.
func (p *port) httpServer() *http.Server {
	s := &http.Server{
		Handler: p.WebhookMux(), MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: idleTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
	}
	newConnections(mostConnections, p.dropped, p.knows).serve(s)
	return s
}

// knows reports whether a connection is of a client that may call the webhook, as its certificate proves.
func (p *port) knows(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	if !ok || p.callers == nil {
		return false
	}
	state := t.ConnectionState()
	return len(state.VerifiedChains) > 0 && hasName(state.PeerCertificates[0], p.names)
}

// plainPort is the port of the health checks, of the metrics or of the profiles. It has [mostPlainConnections].
type plainPort struct {
	name, address string // "0" or no address switches it off
	paths         map[string]http.Handler
	secure        func(*tls.Config) // nil without TLS
	header        int               // bytes of a request's header
	writes        time.Duration     // how long an answer may take; 0 is plainWriteTimeout
}

// addPlainPort has the manager serve a port.
func (p *process) addPlainPort(of plainPort) error {
	if of.address == "" || of.address == "0" {
		return nil
	}
	listener, err := net.Listen("tcp", of.address)
	if err != nil {
		return fmt.Errorf("open the port for %s: %w", of.name, err)
	}
	if of.secure != nil {
		c := &tls.Config{}
		of.secure(c)
		listener = tls.NewListener(listener, c)
	}
	mux := http.NewServeMux()
	for path, h := range of.paths {
		mux.Handle(path, h)
		p.served(of.name, path, h)
	}
	s := &http.Server{
		Handler: mux, MaxHeaderBytes: of.header,
		ReadHeaderTimeout: plainHeaderTimeout, WriteTimeout: cmp.Or(of.writes, plainWriteTimeout), IdleTimeout: idleTimeout,
	}
	newConnections(mostPlainConnections, p.dropped, nil).serve(s)
	return p.mgr.Add(&manager.Server{Name: of.name, Listener: listener, Server: s})
}

// StartedChecker implements webhook.Server: the port answers a TLS handshake.
func (p *port) StartedChecker() healthz.Checker {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it asks whether we answer, not who does
	return func(r *http.Request) error {
		if !p.serving.Load() {
			return errors.New("the webhook's port is not open yet")
		}
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		conn, err := dialer.DialContext(ctx, "tcp", p.address)
		if err != nil {
			return fmt.Errorf("reach the webhook's port: %w", err)
		}
		return conn.Close()
	}
}
