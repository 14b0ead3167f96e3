package seats

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// A replica that may not make the key waits for it, and no longer than it runs. A Secret without a key is an error at once.
func TestAwaitKey(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	name := client.ObjectKey{Namespace: "ns", Name: "key"}
	type result struct {
		key ledger.Key
		err error
	}
	await := func(ctx context.Context) <-chan result {
		out := make(chan result, 1)
		go func() {
			key, err := AwaitKey(ctx, c, name, logr.Discard())
			out <- result{key, err}
		}()
		return out
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := await(ctx)
	cancel()
	if r := <-ended; r.err == nil {
		t.Error("there is a key before anybody made one")
	}

	waiting := await(t.Context())
	made, err := SharedKey(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-waiting:
		if r.err != nil || !bytes.Equal(r.key, made) {
			t.Errorf("it waited for another key, or %v", r.err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it waits though there is a key")
	}

	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := c.Update(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-await(t.Context()):
		if r.err == nil {
			t.Error("an empty Secret has a key")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for a Secret without a key")
	}
}
