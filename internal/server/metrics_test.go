package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// One client has at most half of the requests that are answered at once.
func TestScrapesInFlightAreLimited(t *testing.T) {
	t.Parallel()
	begun, end := make(chan string, 2*mostInFlight), make(chan struct{})
	h := limitInFlight(fair.NewPool[string](mostInFlight), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- r.RemoteAddr
		<-end
	}))
	scrape := func(client string) int {
		r := httptest.NewRequest(http.MethodGet, metricsPath, nil)
		r.RemoteAddr = client + ":1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	var answered sync.WaitGroup
	for range mostInFlight / 2 {
		answered.Go(func() { scrape("192.0.2.1") })
		<-begun
	}
	if got := scrape("192.0.2.1"); got != http.StatusServiceUnavailable {
		t.Errorf("a client that has half of the places is answered %d", got)
	}
	answered.Go(func() {
		if got := scrape("192.0.2.2"); got != http.StatusOK {
			t.Errorf("another client is answered %d", got)
		}
	})
	if from := <-begun; from != "192.0.2.2:1" {
		t.Errorf("%s is answered", from)
	}
	close(end)
	answered.Wait()
	if got := scrape("192.0.2.1"); got != http.StatusOK {
		t.Errorf("a client that asks again is answered %d", got)
	}
}

// stall asks for the metrics from an address, and never reads the answer.
func stall(t *testing.T, server *httptest.Server, from string) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// Clients that do not read the metrics keep no other one out, from however many addresses they ask, and few answers are in memory.
func TestSlowScrapesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("x"), 16<<20) // more than the buffers of a connection take
	u := &unread{}
	begun := make(chan struct{}, 100)
	scrapes := u.inMemory(limitInFlight(fair.NewPool[string](mostInFlight), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(text)
	})))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		scrapes.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { // the stalled ones have no deadline here
		server.CloseClientConnections()
		server.Close()
	})
	scrape := func() error {
		res, err := server.Client().Get(server.URL + metricsPath)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if n, err := io.Copy(io.Discard, res.Body); n != int64(len(text)) || err != nil {
			return fmt.Errorf("status %d, %d bytes: %w", res.StatusCode, n, err)
		}
		return nil
	}
	for round := range 5 {
		for i := range mostUnread {
			stall(t, server, fmt.Sprintf("127.0.%d.%d", 1+i%4, 1+round))
			<-begun
		}
		if err := scrape(); err != nil {
			t.Errorf("after %d stalled scrapes: %v", (round+1)*mostUnread, err)
		}
		<-begun
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := len(u.writing); n > mostUnread {
		t.Errorf("%d answers are in memory", n)
	}
}

// The answers of the client that has the most end first, the oldest of them before others.
func TestWhichAnswerEnds(t *testing.T) {
	t.Parallel()
	u := &unread{}
	add := func(client string) *unreadAnswer {
		a := &unreadAnswer{client: client, to: httptest.NewRecorder()}
		u.begin(a)
		return a
	}
	prometheus, oldest := add("prometheus"), add("stranger")
	for range 3 * mostUnread {
		add("stranger")
	}
	if len(u.writing) != mostUnread || !slices.Contains(u.writing, prometheus) || slices.Contains(u.writing, oldest) {
		t.Errorf("%d answers are written, the one of another client: %t, the oldest of the stranger: %t",
			len(u.writing), slices.Contains(u.writing, prometheus), slices.Contains(u.writing, oldest))
	}
	for _, a := range slices.Clone(u.writing) {
		u.end(a)
	}
	if len(u.writing) != 0 {
		t.Errorf("%d answers stay", len(u.writing))
	}
}
