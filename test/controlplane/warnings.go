package controlplane

import (
	"strings"
	"sync"
)

// warnings collects the API server's warnings to one client.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) has(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.texts {
		if strings.Contains(t, part) {
			return true
		}
	}
	return false
}
