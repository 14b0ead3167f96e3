package server

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// inspecting calls a function while something is read or written.
type inspecting struct {
	http.ResponseWriter
	look func()
}

func (i inspecting) Read([]byte) (int, error) { i.look(); return 0, io.EOF }
func (i inspecting) Close() error             { return nil }
func (i inspecting) Write(p []byte) (int, error) {
	i.look()
	return len(p), nil
}

// What a connection does is known at each moment of a request, and since when.
func TestPhases(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	c := newConnections(4, NewDropped(metrics.NewSet(prometheus.NewRegistry())), nil)
	c.clock = clock
	conn, _ := net.Pipe()
	at := func(moment string, want phase) {
		t.Helper()
		if known := c.open[conn]; known == nil || known.phase != want || !known.since.Equal(clock.Now()) {
			t.Errorf("%s, the connection is %+v; want phase %d since now", moment, known, want)
		}
		clock.SetTime(clock.Now().Add(time.Second)) // the next phase begins later
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at("as its handler begins", answering)
		_, _ = r.Body.Read(nil)
		at("after a part of the body", answering)
		_, _ = w.Write(nil)
		at("after a part of the answer", answering)
		if http.NewResponseController(w).Flush() != nil {
			t.Error("the writer below is not reached")
		}
	})}
	c.serve(server)

	server.ConnState(conn, http.StateNew)
	at("once it is accepted", sending)
	server.ConnState(conn, http.StateActive)
	at("with the first byte", sending)
	r := httptest.NewRequestWithContext(server.ConnContext(t.Context(), conn), http.MethodPost, "/", nil)
	r.Body = inspecting{look: func() { at("while the body is read", sending) }}
	server.Handler.ServeHTTP(flushing{inspecting{ResponseWriter: httptest.NewRecorder(), look: func() { at("while the answer is written", reading) }}}, r)
	at("after its handler", reading)
	server.ConnState(conn, http.StateIdle)
	at("once it is answered", idle)
	server.ConnState(conn, http.StateClosed)
	if len(c.open) > 0 {
		t.Error("a closed connection is known")
	}
	server.ConnState(conn, http.StateIdle) // of one that was dropped
	server.Handler = http.NotFoundHandler()
	c.serve(server)
	server.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)) // of no connection
	if len(c.open) > 0 {
		t.Error("a connection that was dropped is known again")
	}
}

// flushing is a writer that can flush.
type flushing struct{ inspecting }

func (flushing) Flush() {}

// From three quarters on, answers ask not to use the connection again, but for those of trusted clients. Beyond the most, one is closed.
func TestCrowded(t *testing.T) {
	const most = 8
	trusted, _ := net.Pipe()
	c := newConnections(most, NewDropped(metrics.NewSet(prometheus.NewRegistry())), func(conn net.Conn) bool { return conn == trusted })
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	c.clock = clock
	server := &http.Server{Handler: http.NotFoundHandler()}
	c.serve(server)
	closes := func(conn net.Conn) bool {
		w := httptest.NewRecorder()
		ctx := t.Context()
		if conn != nil {
			ctx = server.ConnContext(ctx, conn)
		}
		server.Handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
		return w.Header().Get("Connection") == "close"
	}
	server.ConnState(trusted, http.StateNew)
	server.ConnState(trusted, http.StateActive)
	var conns []net.Conn
	for n := 2; n <= most; n++ {
		conn, _ := net.Pipe()
		conns = append(conns, conn)
		server.ConnState(conn, http.StateNew)
		server.ConnState(conn, http.StateActive)
		if got := closes(conn); got != (n > most*3/4) {
			t.Errorf("with %d of %d, an answer asks to close: %t", n, most, got)
		}
	}
	if closes(trusted) {
		t.Error("a trusted client is asked to close")
	}
	if !closes(nil) {
		t.Error("a connection that is not known is not asked to close")
	}
	for _, conn := range conns[1:] {
		c.enters(conn, answering)
	}
	c.enters(conns[0], idle)
	clock.SetTime(clock.Now().Add(time.Minute))
	one, _ := net.Pipe()
	server.ConnState(one, http.StateNew)
	if testutil.ToFloat64(c.dropped) != 1 || len(c.open) != most {
		t.Errorf("%v were dropped, and %d are open", testutil.ToFloat64(c.dropped), len(c.open))
	}
	if c.open[conns[0]] != nil {
		t.Error("the idle one was not closed")
	}
}
