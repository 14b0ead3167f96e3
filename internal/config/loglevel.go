package config

import (
	"fmt"
	"log/slog"
	"strings"
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
