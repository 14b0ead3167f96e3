package admission

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// intakeHandler reads a body as the handlers do, and holds it until it may answer.
func intakeHandler(in *Intake, answer <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := arrive(r, 0)
		defer cancel()
		var body bytes.Buffer
		room, err := in.read(ctx, w, r, &body)
		defer room.release()
		if err != nil {
			refuse(strangerLog{}, w, r, err)
			return
		}
		<-answer
	})
}

// Reviews of one client wait for each other, for less time than the API server waits. Neither other clients nor small reviews
// wait for them, whatever a client takes.
func TestIntakeIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		h := intakeHandler(NewIntake(clock.RealClock{}), answer)
		ask := func(client string, size int) <-chan int {
			status := make(chan int, 1)
			go func() {
				r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", bytes.NewReader(make([]byte, size)))
				r.RemoteAddr = client + ":1"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				status <- w.Code
			}()
			synctest.Wait()
			return status
		}
		begin := clock.RealClock{}.Now()
		var asked []<-chan int
		const large = 4 << 20
		for range 2 * largeReviews / large {
			asked = append(asked, ask("10.0.0.1", large))
		}
		other, small, smallOther := ask("10.0.0.2", large), ask("10.0.0.1", smallReview), ask("10.0.0.2", smallReview)
		<-time.After(3 * time.Second) // by the bubble's clock: the wait of who got no room is over
		synctest.Wait()
		refused := 0
		for _, status := range asked {
			select {
			case code := <-status:
				if code != http.StatusServiceUnavailable {
					t.Errorf("a large review was answered with %d before it could be", code)
				}
				refused++
			default:
			}
		}
		if want := 2*largeReviews/large - 3; refused != want {
			t.Errorf("%d large reviews of one client were refused, want %d", refused, want)
		}
		close(answer)
		for name, status := range map[string]<-chan int{"a large one of another client": other, "a small one": small, "a small one of another client": smallOther} {
			if code := <-status; code != http.StatusOK {
				t.Errorf("%s got %d", name, code)
			}
		}
		synctest.Wait()
		if code := <-ask("10.0.0.1", large); code != http.StatusOK {
			t.Errorf("the next large review got %d", code)
		}
		if took := (clock.RealClock{}).Since(begin); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// dial opens a connection to a server from a local address, and sends a part of a large review.
func dial(t *testing.T, server *httptest.Server, from string, sent int) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST /mutate?timeout=5s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", maxBodyBytes, strings.Repeat(" ", sent)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Whoever announces large reviews and does not send them keeps no room from others.
func TestSilentConnections(t *testing.T) {
	h := newTestHandler(t, manifests.New(world.Objects{}))
	server := httptest.NewServer(h)
	defer server.Close()
	for range 20 {
		dial(t, server, "127.0.0.2", 0)
	}
	for range 20 {
		dial(t, server, "127.0.0.3", smallReview+1)
	}
	// Both the silent and the stalled ones are being read.
	body := append(reviewOf(t, peerPod(), nil), bytes.Repeat([]byte(" "), 4*smallReview)...)
	res, err := http.Post(server.URL+"/mutate?timeout=5s", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		t.Errorf("a large review got %d: %s", res.StatusCode, text)
	}
}

// A client that stalls amid a large review is answered, and gives its room back.
func TestStalledConnection(t *testing.T) {
	h := newTestHandler(t, manifests.New(world.Objects{}))
	server := httptest.NewServer(h)
	defer server.Close()
	conn := dial(t, server, "127.0.0.1", 2*smallReview)
	if err := conn.SetReadDeadline(clock.RealClock{}.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
		t.Errorf("got %q, %v", answer, err)
	}
	if !h.Intake.large.TryAcquire("another", largeReviews) {
		t.Error("the room is still held")
	}
}

// A pod of any number of parts is left as it is.
func TestManyItems(t *testing.T) {
	cases := map[string]*podpatch.Pod{
		"tolerations": {Spec: podpatch.Spec{Tolerations: make([]corev1.Toleration, 2001)}},
		"owners":      {Metadata: podpatch.Metadata{OwnerReferences: make([]podpatch.Owner, 2001)}},
	}
	for name, pod := range cases {
		t.Run(name, func(t *testing.T) {
			res := pipeline.New(nil).Run(t.Context(), feature.Request{Namespace: "ns", Pod: pod})
			if len(res.Patch) > 0 || len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "over 2000") {
				t.Errorf("the result is %+v", res)
			}
		})
	}
}

// A review of unknown length takes room as the largest does, and one that waits gets the room that another gives back.
func TestIntakeOfUnknownLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		in := NewIntake(clock.RealClock{})
		h := intakeHandler(in, answer)
		status := make(chan int, 3)
		for range 3 {
			go func() {
				body := struct{ io.Reader }{bytes.NewReader(make([]byte, 2*smallReview))} // says no length
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", body))
				status <- w.Code
			}()
			synctest.Wait()
		}
		if in.large.TryAcquire("another", largeReviews-2*maxBodyBytes+1) {
			t.Error("two reviews of unknown length take less room than the largest would")
		}
		for range 3 { // the third gets its room from the first
			answer <- struct{}{}
			synctest.Wait()
		}
		for range 3 {
			if code := <-status; code != http.StatusOK {
				t.Errorf("a review got %d", code)
			}
		}
	})
}

// Reviews that wait for their seats hold no room for what decoding needed, so that a tenant whose pods have many small entries, and wait, leaves
// the API server room for the pods of others.
func TestDecodedReviewsHoldLittle(t *testing.T) {
	in := NewIntake(clock.RealClock{})
	pod := peerPod()
	pod.Annotations = map[string]string{"a": strings.Repeat(":", smallReview-8192)}
	colons := reviewOf(t, pod, nil)
	var all []held
	for range 100 {
		r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", bytes.NewReader(colons))
		r.Header.Set("Content-Type", "application/json")
		var body bytes.Buffer
		ctx, cancel := arrive(r, 0)
		defer cancel()
		_, room, err := readReview[*podpatch.Pod](ctx, in, httptest.NewRecorder(), r, &body)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, room)
	}
	if one, _ := RoomOf(bytes.Repeat([]byte("{:"), smallReview/2)); one > mostRoom {
		t.Errorf("a review takes room of %d bytes", one)
	}
	for _, room := range all {
		room.release()
	}
	if !in.small.TryAcquire("another", smallReviews/2) {
		t.Error("room is held after all reviews")
	}
}
