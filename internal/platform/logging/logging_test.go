package logging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/platform/certs"
)

// What is expected while a namespace is deleted, or while the process starts, is no error in the log.
func TestExpectedErrorsAreQuiet(t *testing.T) {
	events := corev1.Resource("events")
	terminating := apierrors.NewForbidden(events, "e", nil)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	handshake := func(err error) string { return fmt.Sprintf("http: TLS handshake error from 1.2.3.4:5: %v\n", err) }
	var out bytes.Buffer
	handler := newQuiet(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	log := logr.FromSlogHandler(handler).WithName("events").WithValues("k", "v")
	for name, tc := range map[string]struct {
		write func()
		shown bool
	}{
		"the namespace is being deleted":     {func() { log.Error(terminating, "m") }, false},
		"the namespace is gone":              {func() { log.Error(apierrors.NewNotFound(corev1.Resource("namespaces"), "n"), "m") }, false},
		"of another logger":                  {func() { logr.FromSlogHandler(handler).WithName("seats").Error(terminating, "m") }, false},
		"the context has ended":              {func() { log.Error(fmt.Errorf("list: %w", context.Canceled), "m") }, false},
		"the client of an admission is gone": {func() { logr.FromSlogHandler(handler).WithName("admission").Error(context.Canceled, "m") }, true},
		"a request took too long":            {func() { log.Error(context.DeadlineExceeded, "m") }, true},
		"forbidden":                          {func() { log.Error(apierrors.NewForbidden(events, "e", nil), "m") }, true},
		"another object is gone":             {func() { log.Error(apierrors.NewNotFound(events, "e"), "m") }, true},
		"the certificate is not loaded":      {func() { _, _ = standardLog{slog.New(handler), nil}.Write([]byte(handshake(certs.ErrNotLoaded))) }, false},
		"another failed handshake":           {func() { _, _ = standardLog{slog.New(handler), nil}.Write([]byte(handshake(fmt.Errorf("EOF")))) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			out.Reset()
			tc.write()
			if shown := out.Len() > 0; shown != tc.shown {
				t.Errorf("the log has %q", out.String())
			}
			if tc.shown && !strings.HasPrefix(out.String(), `{"time"`) {
				t.Errorf("not structured: %q", out.String())
			}
		})
	}
}

// Whoever chooses names cannot fill the log with them.
func TestLongValuesAreCut(t *testing.T) {
	var out bytes.Buffer
	log := logr.FromSlogHandler(newQuiet(slog.NewJSONHandler(&out, nil)))
	long := strings.Repeat("x", 1<<20)
	log.Error(errors.New(long), "m", "uid", types.UID(long), "name", long, "count", 3)
	if n := out.Len(); n < 3*maxValue || n > 4*maxValue || !strings.Contains(out.String(), `"count":3`) {
		t.Errorf("the line has %d bytes", n)
	}
}

// Reconciliations that fail have few lines, however many objects a tenant has, and another namespace has its own.
func TestFailedReconciliationsAreLimited(t *testing.T) {
	var out bytes.Buffer
	log := logr.FromSlogHandler(newQuiet(slog.NewJSONHandler(&out, nil))).WithName("spread").WithValues("controller", "repair")
	for i := range 3000 {
		log.WithValues("namespace", "tenant", "name", fmt.Sprint(i)).Error(errors.New("no such kind"), reconcilerError)
	}
	log.WithValues("namespace", "other", "name", "web").Error(errors.New("conflict"), reconcilerError)
	if lines := strings.Count(out.String(), "\n"); lines > 60 || lines < 20 || !strings.Contains(out.String(), `"namespace":"other"`) {
		t.Errorf("%d lines, of another namespace: %t", lines, strings.Contains(out.String(), `"namespace":"other"`))
	}
	out.Reset()
	for range 100 {
		log.WithValues("namespace", "tenant").Error(errors.New("e"), "another message")
	}
	if lines := strings.Count(out.String(), "\n"); lines != 100 {
		t.Errorf("%d lines of another message", lines)
	}
}
