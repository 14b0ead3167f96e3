package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/internal/certs"
)

// ParseLogLevel reads a level as LOG_LEVEL has it. Verbosity n of logr is level
// -n of slog, so DEBUG shows verbosities up to 4 and TRACE all in use.
func ParseLogLevel(s string) (slog.Level, error) {
	const trace = slog.Level(-10)
	switch strings.ToUpper(s) {
	case "ERROR":
		return slog.LevelError, nil
	case "", "WARN", "WARNING":
		return slog.LevelWarn, nil
	case "INFO":
		return slog.LevelInfo, nil
	case "DEBUG":
		return slog.LevelDebug, nil
	case "TRACE":
		return trace, nil
	}
	return 0, fmt.Errorf("%q must be ERROR, WARN, INFO, DEBUG, TRACE or empty", s)
}

// NewLogger makes the process's logger and gives it to the libraries that keep one
// in a global variable.
func NewLogger(w io.Writer, level slog.Leveler, format string) logr.Logger {
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	handler = quiet{handler}
	logger := logr.FromSlogHandler(handler)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	log.SetFlags(0)
	log.SetOutput(standardLog{slog.New(handler).With("logger", "http")})
	return logger
}

// quiet is a handler for which it is no error that a namespace is being deleted, or that the context of some work has ended.
type quiet struct{ slog.Handler }

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
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{h.Handler.WithAttrs(attrs)} }

// WithGroup implements [slog.Handler].
func (h quiet) WithGroup(name string) slog.Handler { return quiet{h.Handler.WithGroup(name)} }

func namespaceTerminating(err error) bool {
	var status apierrors.APIStatus
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
		apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// standardLog takes what net/http writes to the standard log: failed TLS handshakes and panics of connections.
type standardLog struct{ *slog.Logger }

// Write implements [io.Writer].
func (l standardLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.Contains(line, []byte(certs.ErrNotLoaded.Error())) {
		level = slog.LevelDebug // clients come before the certificate is there, and come again
	}
	if bytes.Contains(line, []byte("panic")) {
		level = slog.LevelError
	}
	l.Log(context.Background(), level, strings.TrimSpace(string(line))) //nolint:forbidigo // a writer has no context
	return len(line), nil
}
