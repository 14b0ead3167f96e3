package config

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
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
	logger := logr.FromSlogHandler(handler)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}
