package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// seatless is a feature whose pods wait for their seats, after sizing and the feature itself have copied them.
type seatless struct{ answer <-chan struct{} }

func (seatless) Name() string { return "seatless" }

func (f seatless) Decide(_ context.Context, req feature.Request) (feature.Decision, error) {
	sized := req.Pod.Clone()
	d := feature.Decision{Pod: sized.Clone()}
	<-f.answer
	runtime.KeepAlive(sized)
	return d, nil
}

// podOf returns a review of a pod with so many labels and annotations and so many containers of so many requests and limits.
func podOf(t *testing.T, entries, containers, resources, length int) []byte {
	t.Helper()
	pod := &corev1.Pod{}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "nope", UID: "u", Controller: new(true)}}
	pod.Labels, pod.Annotations = map[string]string{}, map[string]string{}
	for i := range entries {
		pod.Labels[fmt.Sprintf("l%d", i)], pod.Annotations[fmt.Sprintf("a%d", i)] = "", ""
	}
	for c := range containers {
		list := corev1.ResourceList{}
		for i := range resources {
			list[corev1.ResourceName(fmt.Sprintf("r%d", i))] = resource.MustParse("1")
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint(c), Resources: corev1.ResourceRequirements{Requests: list, Limits: list}})
	}
	body := reviewOf(t, pod, nil)
	if len(body) > length {
		t.Fatalf("the review has %d bytes, over %d", len(body), length)
	}
	return append(body, bytes.Repeat([]byte(" "), length-len(body))...)
}

// waiting has many clients send the same review, each as often as it can, and returns how many of the reviews wait for their seats after all others were
// refused or answered, and how many bytes of memory these take.
func waiting(t *testing.T, body []byte, clients, each int) (waits int, live int64) {
	t.Helper()
	used := func() int64 {
		runtime.GC()
		runtime.GC() // what a sync.Pool has goes at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		h := newTestHandler(t, manifests.New(world.Objects{}), seatless{answer})
		before := used()
		var under, answered atomic.Int64
		var all sync.WaitGroup
		for client := range clients {
			for range each {
				under.Add(1)
				all.Go(func() {
					defer under.Add(-1)
					r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=30s", bytes.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					r.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", client)
					w := &discard{header: http.Header{}}
					h.ServeHTTP(w, r)
					if w.status == 0 {
						answered.Add(1)
					}
				})
			}
		}
		synctest.Wait()
		<-time.After(3 * time.Second) // by the bubble's clock: the wait of who got no room is over
		synctest.Wait()
		waits, live = int(under.Load()), used()-before
		close(answer)
		all.Wait()
		if int(answered.Load()) < waits {
			t.Errorf("%d of %d that waited were answered", answered.Load(), waits)
		}
		if !h.Intake.small.TryAcquire("another", smallReviews) || !h.Intake.large.TryAcquire("another", largeReviews) {
			t.Error("room is held after all reviews")
		}
	})
	return waits, live
}

// Reviews that wait for their seats take no more memory than the room that they hold, whatever their pods are made of.
func TestMemoryOfWaitingReviews(t *testing.T) {
	const overhead = 8 << 10 // of a request and its goroutine
	for name, body := range map[string][]byte{
		"most entries of maps":            podOf(t, 1900, 20, 50, smallReview),
		"as many entries as are let in":   podOf(t, 980, 1, 2, smallReview),
		"as many resources as are let in": podOf(t, 2, 9, 100, smallReview),
		"many small maps":                 podOf(t, 2, 198, 1, smallReview),
		"many small maps, large":          podOf(t, 2, 198, 1, 2*smallReview),
		"long":                            podOf(t, 2, 2, 2, smallReview),
	} {
		t.Run(name, func(t *testing.T) {
			most := int64(smallReviews)
			if len(body) > smallReview {
				most = largeReviews
			}
			waits, live := waiting(t, body, 20, 100)
			t.Logf("%d reviews wait, and take %d KiB, %d KiB each", waits, live>>10, live>>10/int64(max(waits, 1)))
			if live > most+int64(waits*overhead) {
				t.Errorf("they take %d MiB, over the room of %d MiB", live>>20, most>>20)
			}
		})
	}
}

// The API server sends the reviews of all tenants from one address. So many ordinary ones may wait for their seats at once.
func TestOrdinaryReviewsFit(t *testing.T) {
	for size, want := range map[int]int{3 << 10: 500, 10 << 10: 500, 20 << 10: 500} {
		waits, live := waiting(t, podOf(t, 5+size>>10, 2+size>>12, 2, size), 1, 6000)
		t.Logf("%d reviews of %d KiB wait, and take %d KiB each", waits, size>>10, live>>10/int64(waits))
		if waits < want {
			t.Errorf("only %d reviews of %d KiB are let in, want %d", waits, size>>10, want)
		}
	}
}
