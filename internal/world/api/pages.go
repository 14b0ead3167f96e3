package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxAnswer is how many bytes an answer to an uncached request has at most. Tenants decide how large their objects
// are, and a decoded object takes a multiple of its bytes.
const maxAnswer = 4 << 20

// pageSize is how many objects a page has, if they are not large.
const pageSize = 200

// errTooLarge means that an answer has more than [maxAnswer] bytes.
var errTooLarge = errors.New("the answer of the API server is too large")

// LimitAnswers returns a transport whose answers end with [errTooLarge] beyond [maxAnswer] bytes. It is not for
// watches, whose answers have no end.
func LimitAnswers(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &limitedTransport{next}
}

type limitedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *limitedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil {
		resp.Body = &limitedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

// WrappedRoundTripper is how client-go finds the connection below.
func (t *limitedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

type limitedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, errTooLarge
	}
	return n, err
}

// Each calls use with each object of a list from the API server, a page at a time. If an answer is too large, the
// pages become smaller. There may be many objects, so use keeps little of each.
func Each[T client.Object](ctx context.Context, uncached client.Reader, empty client.ObjectList, use func(T) error, opts ...client.ListOption) error {
	next := ""
	for size := int64(pageSize); ; {
		page := empty.DeepCopyObject().(client.ObjectList) // decoding leaves what an answer lacks as it was
		err := uncached.List(ctx, page, append(slices.Clone(opts), client.Limit(size), client.Continue(next))...)
		if errors.Is(err, errTooLarge) && size > 1 {
			size = max(1, size/8)
			continue
		}
		if err != nil {
			return err
		}
		if err := meta.EachListItem(page, func(obj runtime.Object) error { return use(obj.(T)) }); err != nil {
			return err
		}
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
