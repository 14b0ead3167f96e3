package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// A client that opens all connections that it can loses its own, and never those of another one.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 8
	open := &connections{most: most, dropped: NewDropped(metrics.NewSet(prometheus.NewRegistry())), clients: map[string]map[net.Conn]http.ConnState{}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	server.Config.ConnState = open.changed
	server.Start()
	defer server.Close()
	dial := func(from string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(clock.RealClock{}.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	answered := func(conn net.Conn) error {
		if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 12))
		return err
	}

	mine := []net.Conn{dial("127.0.0.2"), dial("127.0.0.2")}
	for _, conn := range mine {
		if err := answered(conn); err != nil {
			t.Fatal(err)
		}
	}
	const strangers = 5 * most
	var theirs []net.Conn
	for range strangers {
		theirs = append(theirs, dial("127.0.0.3"))
	}
	// The server has taken the last connection once it answers a later one.
	mine = append(mine, dial("127.0.0.2"))
	for i, conn := range mine {
		if err := answered(conn); err != nil {
			t.Errorf("connection %d of another client: %v", i, err)
		}
	}
	if got, want := testutil.ToFloat64(open.dropped), float64(strangers+len(mine)-most); got != want {
		t.Errorf("%v connections were dropped, want %v", got, want)
	}
	alive := 0
	for _, conn := range theirs {
		if answered(conn) == nil {
			alive++
		}
	}
	if want := most - len(mine); alive != want {
		t.Errorf("the client with the most connections has %d left, want %d", alive, want)
	}

	// What was closed is forgotten.
	for _, conn := range append(mine, theirs...) {
		_ = conn.Close()
	}
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		open.mu.Lock()
		defer open.mu.Unlock()
		return open.open == 0 && len(open.clients) == 0, nil
	})
	if err != nil {
		t.Errorf("%d connections of %d clients are remembered", open.open, len(open.clients))
	}
}

// An idle connection outlives the API server's, so that no request meets a connection that is being closed. The API server takes the
// default of Go's transport (k8s.io/apimachinery/pkg/util/net, SetTransportDefaults).
func TestIdleConnectionsOutliveTheClients(t *testing.T) {
	client := utilnet.SetTransportDefaults(&http.Transport{}).IdleConnTimeout
	if client <= 0 || idleTimeout < client+time.Minute {
		t.Errorf("idle connections are closed after %v, and the API server's after %v; ours should live a minute longer", idleTimeout, client)
	}
}
