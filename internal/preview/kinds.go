package preview

import (
	_ "embed"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kindsText has the kinds of Kubernetes, as group/version and kind, in lines. A test compares it with client-go's scheme, which has the types,
// too: most of what a program would be that only names them.
//
//go:embed kinds.txt
var kindsText string

// kinds are those kinds, and the groups that have some.
type kinds struct {
	all    map[schema.GroupVersionKind]bool
	groups map[string]bool
}

var kubernetes = sync.OnceValue(func() kinds {
	k := kinds{map[schema.GroupVersionKind]bool{}, map[string]bool{}}
	for line := range strings.Lines(kindsText) {
		version, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		gvk := schema.FromAPIVersionAndKind(version, kind)
		k.all[gvk], k.groups[gvk.Group] = true, true
	}
	for gvk := range scheme.AllKnownTypes() {
		k.all[gvk], k.groups[gvk.Group] = true, true
	}
	return k
})
