package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// What is for support is answered to the pod itself alone.
func TestDebugIsLocal(t *testing.T) {
	h := onlyLoopback(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for from, want := range map[string]int{
		"127.0.0.1:1": http.StatusOK, "[::1]:1": http.StatusOK, "[::ffff:127.0.0.1]:1": http.StatusOK,
		"10.0.0.7:1": http.StatusForbidden, "[fd00::7]:1": http.StatusForbidden, "@": http.StatusForbidden, "": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/seats", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("a client at %q got %d, want %d", from, w.Code, want)
		}
	}
}
