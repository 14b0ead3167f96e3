// Package logging makes the logger of a process.
package logging

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"reflect"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/certs"
	"github.com/stowage-dev/stowage/internal/platform/fair"
)

// New makes the process's logger and gives it to the libraries that keep one
// in a global variable.
func New(w io.Writer, level slog.Leveler, format string) logr.Logger {
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	handler = newQuiet(handler)
	logger := logr.FromSlogHandler(handler)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	log.SetFlags(0)
	log.SetOutput(standardLog{slog.New(handler).With("logger", "http"), flowcontrol.NewTokenBucketPassiveRateLimiter(1, 20)})
	return logger
}

// quiet is a handler for which it is no error that a namespace is being deleted, or that the context of some work has ended. It drops lines
// of controller-runtime about reconciliations that failed, beyond a rate that namespaces share: tenants decide how many objects there are. The metrics of
// controller-runtime count all.
type quiet struct {
	slog.Handler
	namespace string // of the logger
	failures  *fair.Limiter[string]
}

func newQuiet(h slog.Handler) quiet {
	return quiet{Handler: h, failures: fair.NewLimiter[string](1, 50)}
}

// reconcilerError is the message of controller-runtime about a reconciliation that failed.
const reconcilerError = "Reconciler error"

// Handle implements [slog.Handler].
func (h quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		gone, canceled, admission := false, false, false
		r.Attrs(func(a slog.Attr) bool {
			if err, ok := a.Value.Any().(error); ok {
				gone, canceled = gone || namespaceTerminating(err), canceled || errors.Is(err, context.Canceled)
			}
			admission = admission || a.Key == "logger" && a.Value.String() == "admission"
			return true
		})
		if gone || canceled && !admission { // a client of admission that does not wait any more is worth a line
			r.Level = slog.LevelDebug
		}
		if !h.Enabled(ctx, r.Level) {
			return nil
		}
		if r.Message == reconcilerError && !h.failures.Allow(h.namespace, r.Time) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, short(r))
}

// maxValue is how many bytes of a value the log shows. Strangers choose names, and the API server checks them after admission.
const maxValue = 4 << 10

// short returns a record whose message and values are not longer than that.
func short(r slog.Record) slog.Record {
	long := len(r.Message) > maxValue
	r.Attrs(func(a slog.Attr) bool {
		text, ok := textOf(a.Value)
		long = long || ok && len(text) > maxValue
		return !long
	})
	if !long {
		return r
	}
	cut := slog.NewRecord(r.Time, r.Level, bounded.Text(r.Message, maxValue), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if text, ok := textOf(a.Value); ok && len(text) > maxValue {
			a.Value = slog.StringValue(bounded.Text(text, maxValue))
		}
		cut.AddAttrs(a)
		return true
	})
	return cut
}

// textOf returns a value that is a text, of whatever type, or an error.
func textOf(v slog.Value) (string, bool) {
	if v.Kind() == slog.KindString {
		return v.String(), true
	}
	if v.Kind() != slog.KindAny {
		return "", false
	}
	if err, ok := v.Any().(error); ok {
		return err.Error(), true
	}
	s := reflect.ValueOf(v.Any())
	return s.String(), s.Kind() == reflect.String
}

// WithAttrs implements [slog.Handler].
func (h quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "namespace" {
			h.namespace = a.Value.String()
		}
	}
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements [slog.Handler].
func (h quiet) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

// namespaceTerminating reports whether an error says that a namespace is being deleted, or is gone.
func namespaceTerminating(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsNotFound(err) && errors.As(err, &status) {
		if details := status.Status().Details; details != nil && details.Kind == "namespaces" {
			return true
		}
	}
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// standardLog takes what net/http writes to the standard log: failed TLS handshakes and panics of connections. Whoever reaches a
// port can cause the first, so they are limited.
type standardLog struct {
	*slog.Logger
	limit flowcontrol.PassiveRateLimiter // nil is none
}

// Write implements [io.Writer].
func (l standardLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.Contains(line, []byte(certs.ErrNotLoaded.Error())) {
		level = slog.LevelDebug // clients come before the certificate is there, and come again
	}
	if bytes.Contains(line, []byte("panic")) {
		level = slog.LevelError
	}
	if level < slog.LevelError && l.limit != nil && !l.limit.TryAccept() {
		return len(line), nil
	}
	l.Log(context.Background(), level, strings.TrimSpace(string(line))) //nolint:forbidigo // a writer has no context
	return len(line), nil
}
