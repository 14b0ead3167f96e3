package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
)

// endpointsOf are the endpoints of a Service with one pod, "b".
func endpointsOf(t *testing.T, addr string, change func(*discoveryv1.Endpoint)) toolscache.Store {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	e := discoveryv1.Endpoint{Addresses: []string{host}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "b"}}
	if change != nil {
		change(&e)
	}
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	if err := store.Add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "slice"}, Endpoints: []discoveryv1.Endpoint{e},
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(port))}},
	}); err != nil {
		t.Fatal(err)
	}
	return store
}

func TestSiblings(t *testing.T) {
	pair := func() *tls.Certificate {
		crt, key, err := cert.GenerateSelfSignedCertKey("stowage-webhook.ns.svc", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(crt, key)
		if err != nil {
			t.Fatal(err)
		}
		return &c
	}
	shared := pair()
	got := ""
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Token") + " " + string(body)
		switch r.URL.Path {
		case "/refused":
			http.Error(w, "no", http.StatusUnauthorized)
		case "/elsewhere":
			http.Redirect(w, r, "/seats", http.StatusTemporaryRedirect)
		default:
			_, _ = io.WriteString(w, strings.Repeat("x", 100))
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*shared}}
	s.StartTLS()
	t.Cleanup(s.Close)
	addr := s.Listener.Addr().String()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })

	for name, tc := range map[string]struct {
		replica, path, addr string
		own                 *tls.Certificate
		change              func(*discoveryv1.Endpoint)
		fails               string
	}{
		"a replica with the same certificate": {},
		"one that has another certificate":    {own: pair(), fails: "another serving certificate"},
		"one that refuses":                    {path: "/refused", fails: "HTTP 401"},
		"one that names another place":        {path: "/elsewhere", fails: "HTTP 307"},
		"one that accepts and says nothing":   {addr: silent.Addr().String(), fails: "TLS handshake timeout"},
		"one that is no endpoint":             {replica: "pod/c_1", fails: errNoSibling.Error()},
		"this replica, before it restarted":   {replica: "pod/a_0", change: func(e *discoveryv1.Endpoint) { e.TargetRef.Name = "a" }, fails: errNoSibling.Error()},
		"one without a pod":                   {replica: "b_1", fails: errNoSibling.Error()},
		"an endpoint that does not serve":     {change: func(e *discoveryv1.Endpoint) { e.Conditions.Serving = new(false) }, fails: errNoSibling.Error()},
		"an endpoint that is no pod":          {change: func(e *discoveryv1.Endpoint) { e.TargetRef = nil }, fails: errNoSibling.Error()},
		"an endpoint without an address":      {change: func(e *discoveryv1.Endpoint) { e.Addresses = nil }, fails: errNoSibling.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			own := shared
			if tc.own != nil {
				own = tc.own
			}
			replica, path, at := "pod/b_1", "/seats", addr
			if tc.replica != "" {
				replica = tc.replica
			}
			if tc.path != "" {
				path = tc.path
			}
			if tc.addr != "" {
				at = tc.addr
			}
			got = ""
			others := newSiblings("pod/a_1", endpointsOf(t, at, tc.change), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answer, err := others.Send(ctx, replica, path, http.Header{"Token": {"t"}}, []byte("body"), 10)
			switch {
			case tc.fails == "" && (err != nil || string(answer) != "xxxxxxxxxx" || got != "POST /seats t body"):
				t.Errorf("%q, %v, got %q", answer, err, got)
			case tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)):
				t.Errorf("%q, %v; want %q", answer, err, tc.fails)
			case tc.path == "" && tc.fails != "" && got != "":
				t.Errorf("it was told %q", got)
			}
			if known := others.Knows(replica); known != (tc.fails != errNoSibling.Error()) {
				t.Errorf("known: %t", known)
			}
		})
	}
}
