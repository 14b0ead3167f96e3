package logging_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/logging"
)

func TestLogLevels(t *testing.T) {
	for text, want := range map[string]string{
		"ERROR": "error", "": "error warn", "warn": "error warn", "INFO": "error warn info", "DEBUG": "error warn info debug", "TRACE": "error warn info debug trace",
	} {
		level, err := config.ParseLogLevel(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"json", "text"} {
			var out bytes.Buffer
			log := logging.New(&out, level, format)
			log.Error(nil, "say-error")
			log.Info("say-info")
			log.V(1).Info("say-debug")
			log.V(6).Info("say-trace")
			for _, word := range []string{"error", "info", "debug", "trace"} {
				if got, want := strings.Contains(out.String(), "say-"+word), strings.Contains(want, word); got != want {
					t.Errorf("LOG_LEVEL=%q, %s: %s is logged: %t", text, format, word, got)
				}
			}
			if format == "json" {
				for line := range strings.Lines(out.String()) {
					if !json.Valid([]byte(line)) {
						t.Errorf("no JSON: %s", line)
					}
				}
			}
		}
	}
}
