package seats

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// Dump is one owner's book as this replica has it, for support. It holds no claim's id.
type Dump struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
	ledger.Summary
}

// Dump returns all books, by namespace and name.
func (l *Service) Dump() []Dump {
	entries := l.entries()
	out := make([]Dump, 0, len(entries))
	for _, e := range entries {
		e.mu.Lock()
		if !e.dead {
			out = append(out, Dump{e.owner.Namespace, e.owner.Kind, e.owner.Name, string(e.owner.UID), e.book.Summary()})
		}
		e.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Dump) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// ServeHTTP writes the books as JSON, and how far the watch of pods is.
func (l *Service) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(map[string]any{"writer": l.writer, "podVersion": l.pods.Version(), "books": l.Dump()}) // the client is gone
}
