package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// A server that reads requests, and what a test does with its connections.
type bounded struct {
	t      *testing.T
	open   *connections
	server *httptest.Server
}

func newBounded(t *testing.T, most int) *bounded {
	b := &bounded{t: t, open: newConnections(most, NewDropped(metrics.NewSet(prometheus.NewRegistry())), nil)}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
	}))
	b.open.serve(b.server.Config)
	b.server.Start()
	t.Cleanup(b.server.Close)
	return b
}

func (b *bounded) dial(from string) net.Conn {
	b.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(b.t.Context(), "tcp", b.server.Listener.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(clock.RealClock{}.Now().Add(30 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// asks reports whether a request of a connection is answered.
func asks(conn net.Conn) bool {
	if _, err := fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err == nil && answer.StatusCode == http.StatusOK
}

// A client that opens all connections that it can loses its own, and never those of another one.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 8
	b := newBounded(t, most)
	mine := []net.Conn{b.dial("127.0.0.2"), b.dial("127.0.0.2")}
	for _, conn := range mine {
		if !asks(conn) {
			t.Fatal("a request was not answered")
		}
	}
	const strangers = 5 * most
	var theirs []net.Conn
	for range strangers {
		theirs = append(theirs, b.dial("127.0.0.3"))
	}
	mine = append(mine, b.dial("127.0.0.2"))
	for i, conn := range mine {
		// The first two are the only idle ones, and the client may have to open them again.
		if !asks(conn) && i == len(mine)-1 {
			t.Error("a new connection of another client was not answered")
		}
	}
	// Mine may be closed after an answer before the last one comes.
	if got, want := testutil.ToFloat64(b.open.dropped), float64(strangers+len(mine)-most); got > want || got < want-2 {
		t.Errorf("%v connections were dropped, want %v", got, want)
	}
	alive := 0
	for _, conn := range theirs {
		if asks(conn) {
			alive++
		}
	}
	if alive >= most {
		t.Errorf("the client with the most connections has %d left", alive)
	}

	// What was closed is forgotten.
	for _, conn := range append(mine, theirs...) {
		_ = conn.Close()
	}
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		b.open.mu.Lock()
		defer b.open.mu.Unlock()
		return len(b.open.open) == 0, nil
	})
	if err != nil {
		t.Errorf("%d connections are remembered", len(b.open.open))
	}
}

// 120 clients hold 17 connections each, and have sent a review on every one. All requests of an API server are answered all the same: those
// of a burst, and those on connections that it kept. The API server has a transport as client-go makes it.
func TestManyClientsKeepNobodyOut(t *testing.T) {
	const most, strangers, each, calls = mostConnections, 120, 17, 300
	b := newBounded(t, most)
	var theirs []net.Conn
	var silent []net.Conn
	fill := func() {
		for i := range most / 2 {
			silent = append(silent, b.dial(fmt.Sprintf("127.2.0.%d", i%strangers+1)))
		}
		for i := range strangers {
			for range each {
				conn := b.dial(fmt.Sprintf("127.1.0.%d", i+1))
				theirs = append(theirs, conn)
				if !asks(conn) {
					t.Fatal("a review of a stranger was not answered")
				}
			}
		}
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	apiServer := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 25}}
	defer apiServer.CloseIdleConnections()
	var failed atomic.Int64
	burst := func(n int) {
		var group sync.WaitGroup
		for range n {
			group.Go(func() {
				// Without GetBody, the transport cannot send it again.
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.server.URL, io.NopCloser(strings.NewReader("{}")))
				if err == nil {
					var res *http.Response
					if res, err = apiServer.Do(req); err == nil {
						_, err = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
				}
				if err != nil {
					t.Logf("in a burst of %d: %v", n, err)
					failed.Add(1)
				}
			})
		}
		group.Wait()
	}
	burst(calls)
	fill()
	burst(calls)
	for range 50 {
		burst(1)
	}
	fill()
	burst(calls)
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d calls of the API server failed", n, 3*calls+50)
	}
	if testutil.ToFloat64(b.open.dropped) == 0 {
		t.Error("no connection was dropped, so nothing was tried")
	}
}

// Which connection is closed for a new one.
func TestVictim(t *testing.T) {
	type open struct {
		client  string
		phase   phase
		age     time.Duration
		trusted bool
	}
	cases := map[string]struct {
		open []open
		want int // its place, or -1
	}{
		"the one that has been sending for longest": {[]open{{"a", sending, 2 * time.Second, false}, {"b", sending, 3 * time.Second, false}, {"c", idle, time.Hour, false}}, 1},
		"not one that began to send just now":       {[]open{{"a", sending, justNow, false}, {"b", idle, justNow, false}}, 1},
		"the idle one that was used least recently": {[]open{{"a", idle, time.Minute, false}, {"b", idle, time.Hour, false}, {"b", idle, time.Second, false}}, 1},
		"an idle one of who has many":               {append(slices.Repeat([]open{{"a", idle, time.Minute, false}}, keptIdle), append(slices.Repeat([]open{{"b", idle, 2 * time.Second, false}}, keptIdle), open{"b", idle, 3 * time.Second, false})...), 2 * keptIdle},
		"one of another client than the newcomer's": {[]open{{"new", idle, time.Hour, false}, {"new", idle, time.Hour, false}, {"b", idle, 2 * time.Second, false}}, 2},
		"the newcomer's, where nobody else has any": {[]open{{"b", sending, 0, false}, {"new", idle, time.Hour, false}}, 1},
		"not one that the newcomer has just used":   {[]open{{"new", idle, justNow - 1, false}, {"b", sending, 0, false}}, 1},
		"else the oldest of those that send":        {[]open{{"a", sending, 3, false}, {"b", sending, 4, false}, {"b", sending, 2, false}, {"new", idle, 5, false}}, 1},
		"never one with a certificate":              {[]open{{"a", idle, time.Hour, true}, {"b", sending, 0, false}}, 1},
		"never one whose request has arrived":       {[]open{{"a", answering, time.Hour, false}, {"b", sending, 0, false}}, 1},
		"one that does not read its answer":         {[]open{{"a", reading, 2 * time.Second, false}, {"b", sending, 0, false}, {"c", idle, time.Hour, false}}, 0},
		"not one that begins to read":               {[]open{{"a", reading, justNow, false}, {"b", sending, 0, false}}, 1},
		"one of a client that has most in hand":     {append(slices.Repeat([]open{{"a", answering, time.Second, false}, {"b", answering, time.Hour, false}}, 3), open{"a", answering, time.Minute, false}, open{"new", sending, 0, false}), 6},
		"not one of who has few in hand":            {append(slices.Repeat([]open{{"a", answering, time.Hour, false}}, 2), open{"new", sending, 0, false}), 2},
		"not the newcomer's, of that":               {append(slices.Repeat([]open{{"new", answering, time.Second, false}}, 6), open{"new", sending, 0, false}), 6},
		"of who has most in hand, before idle ones": {append(slices.Repeat([]open{{"x", answering, time.Second, false}}, 6), open{"x", answering, time.Minute, false}, open{"b", idle, time.Hour, false}, open{"new", sending, 0, false}), 6},
		"the newcomer, if its client has most":      {append(slices.Repeat([]open{{"new", answering, time.Second, false}}, 6), open{"b", idle, time.Hour, false}, open{"new", sending, 0, false}), 7},
		"of who waits for most room":                {append(slices.Repeat([]open{{"x", waiting, time.Second, false}, {"new", waiting, time.Hour, false}}, 2), open{"x", waiting, time.Minute, false}, open{"b", idle, time.Hour, false}, open{"new", sending, 0, false}), 4},
		"none, if all are being answered":           {[]open{{"a", answering, time.Hour, false}, {"b", idle, 0, true}}, -1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakePassiveClock(time.Unix(1000000, 0))
			c := &connections{clock: now, most: 10, open: map[net.Conn]*connection{}}
			conns := make([]net.Conn, len(tc.open))
			for i, o := range tc.open {
				conns[i], _ = net.Pipe()
				c.open[conns[i]] = &connection{client: o.client, phase: o.phase, since: now.Now().Add(-o.age), trusted: o.trusted}
			}
			if got := slices.Index(conns, c.victim("new")); got != tc.want {
				t.Errorf("connection %d is closed, want %d", got, tc.want)
			}
		})
	}
}

// A client that has all connections answered, and reads no answer, or has requests decided about on over half of them, keeps nobody out.
func TestSlowReadersKeepNobodyOut(t *testing.T) {
	const most = 64
	hold := make(chan struct{})
	b := &bounded{t: t, open: newConnections(most, NewDropped(metrics.NewSet(prometheus.NewRegistry())), nil)}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/large":
			_, _ = w.Write(make([]byte, 16<<20)) // more than the kernel takes
		case "/slow":
			<-hold
		}
		_, _ = io.WriteString(w, "ok")
	}))
	b.open.serve(b.server.Config)
	b.server.Start()
	t.Cleanup(b.server.Close)
	t.Cleanup(func() { close(hold) })
	answered := func() bool {
		for range 5 {
			if !asks(b.dial("127.0.0.2")) {
				return false
			}
		}
		return true
	}
	for _, path := range []string{"/large", "/slow"} {
		for range 2 * most {
			if _, err := fmt.Fprintf(b.dial("127.0.0.3"), "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path); err != nil {
				t.Fatal(err)
			}
		}
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return answered(), nil })
		if err != nil {
			t.Errorf("a client that asks for %s keeps others out", path)
		}
	}
}

// A connection of a client whose certificate is verified stays, whatever others do, once it has sent a request.
func TestTrustedConnectionStays(t *testing.T) {
	b := newBounded(t, 20)
	b.open.trusted = func(conn net.Conn) bool { return admission.ClientOf(conn.RemoteAddr().String()) == "127.0.0.2" }
	mine := b.dial("127.0.0.2")
	if !asks(mine) {
		t.Fatal("a request was not answered")
	}
	for i := range 200 {
		if conn := b.dial(fmt.Sprintf("127.1.0.%d", i%7+1)); !asks(conn) {
			t.Error("a stranger's first request was not answered")
		}
	}
	if !asks(mine) {
		t.Error("the trusted connection was closed")
	}
}

// An idle connection outlives the API server's, so that no request meets a connection that is being closed. The API server takes the
// default of Go's transport (k8s.io/apimachinery/pkg/util/net, SetTransportDefaults).
func TestIdleConnectionsOutliveTheClients(t *testing.T) {
	client := utilnet.SetTransportDefaults(&http.Transport{}).IdleConnTimeout
	if client <= 0 {
		t.Fatalf("the API server closes idle connections after %v", client)
	}
	s := newPort("127.0.0.1", 0, nil, nil, nil, NewDropped(metrics.NewSet(prometheus.NewRegistry()))).httpServer()
	for name, ours := range map[string]time.Duration{"before its first request": s.ReadHeaderTimeout, "between two requests": s.IdleTimeout} {
		if ours < client+time.Minute {
			t.Errorf("%s a connection is closed after %v, and the API server's after %v; ours should live a minute longer", name, ours, client)
		}
	}
}

// A body that nobody reads, and that never comes, keeps no answer back and no connection open.
func TestUnreadBody(t *testing.T) {
	open := newConnections(10, NewDropped(metrics.NewSet(prometheus.NewRegistry())), nil)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/read" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		http.Error(w, "no", http.StatusRequestEntityTooLarge)
	}))
	open.serve(server.Config)
	server.Start()
	t.Cleanup(server.Close)
	for name, tc := range map[string]struct {
		path, body string
		length     int
		again      bool // the connection is used again
	}{
		"no body comes":        {path: "/", length: 7 << 20},
		"a part of it":         {path: "/", length: 100, body: "part"},
		"all of it":            {path: "/", length: 4, body: "body", again: true},
		"all of it, and read":  {path: "/read", length: 4, body: "body", again: true},
		"there is none":        {path: "/", again: true},
		"there is none, again": {path: "/read", again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(clock.RealClock{}.Now().Add(20 * time.Second))
			from := bufio.NewReader(conn)
			rounds := 1
			if tc.again {
				rounds = 3
			}
			for range rounds {
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", tc.path, tc.length, tc.body)
				answer, err := http.ReadResponse(from, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusRequestEntityTooLarge || answer.Close == tc.again {
					t.Errorf("the status is %s, and the connection ends: %t", answer.Status, answer.Close)
				}
				if tc.again {
					<-time.After(unreadTimeout + 100*time.Millisecond) // the deadline concerns this request alone
				}
			}
		})
	}
}

// The header of a request is bounded, and with it what a stranger can keep in memory who never ends one.
func TestLongHeader(t *testing.T) {
	s := newPort("localhost", 0, nil, nil, nil, NewDropped(metrics.NewSet(prometheus.NewRegistry()))).httpServer()
	s.Handler = http.NotFoundHandler()
	server := &httptest.Server{Config: s}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	for lines, want := range map[int]int{100: http.StatusNotFound, 2000: http.StatusRequestHeaderFieldsTooLarge} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		header := "GET /none HTTP/1.1\r\nHost: x\r\n"
		for i := range lines {
			header += fmt.Sprintf("%x:\r\n", i+4096)
		}
		_, _ = io.WriteString(conn, header+"\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%d lines: %s, want %d", lines, answer.Status, want)
		}
	}
}
