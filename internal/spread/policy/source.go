package policy

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// CompileSpec returns what the spec of a PodDistributor, a SpreadPolicy or a ClusterSpreadPolicy says, as somebody writes it. It returns false for
// another kind, and for a spec that is none.
//
// It bounds the spec before it decodes it: anyone on the pod network can send one to the webhook.
func CompileSpec(group, kind string, spec []byte) (c Compiled, known bool) {
	var tooLarge error
	decode := func(into any) error {
		if tooLarge = checkText(spec); tooLarge != nil {
			return tooLarge
		}
		return json.Unmarshal(spec, into, jsontext.AllowInvalidUTF8(true))
	}
	var err error
	switch {
	case group == versprei.GroupVersion.Group && kind == "PodDistributor":
		d := &versprei.PodDistributor{}
		err = decode(&d.Spec)
		c = Compile(d)
	case group == stowage.GroupVersion.Group && kind == "SpreadPolicy":
		p := &stowage.SpreadPolicy{}
		err = decode(&p.Spec)
		c = CompilePolicy(FromSpreadPolicy(p))
	case group == stowage.GroupVersion.Group && kind == "ClusterSpreadPolicy":
		p := &stowage.ClusterSpreadPolicy{}
		err = decode(&p.Spec)
		c = CompilePolicy(FromClusterSpreadPolicy(p))
	default:
		return c, false
	}
	if tooLarge != nil {
		return Compiled{Err: tooLarge}, true
	}
	return c, err == nil
}

// The limits of a spec as JSON. A stored spec has at most [world.MostSpec] of text, and no list or map of its schema has more than
// [nodeset.MostValues] entries.
const (
	mostText    = 4 * world.MostSpec
	mostValues  = 20_000
	mostEntries = nodeset.MostValues
)

// checkText reports a spec that is too large to be decoded: an empty pool is three bytes of text, and some hundred once it is decoded. What is no JSON
// is found when it is decoded. So is a name that is there twice, as an API server writes none: with it, lists could come again and again.
func checkText(spec []byte) error {
	if len(spec) > mostText {
		return fmt.Errorf("spec has more than %d KiB of text", mostText>>10)
	}
	values, n := jsontext.NewDecoder(bytes.NewReader(spec), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)), 0
	for _, err := values.ReadToken(); err == nil && n <= mostValues; _, err = values.ReadToken() {
		n++
		if kind, entries := values.StackIndex(values.StackDepth()); kind == '[' && entries > mostEntries || kind == '{' && entries > 2*mostEntries { // names and values
			return fmt.Errorf("%s of the spec has more than %d entries; no list or map may have more", values.StackPointer().Parent(), mostEntries)
		}
	}
	if n > mostValues {
		return fmt.Errorf("spec has more than %d values", mostValues)
	}
	return nil
}

// Overlap returns the name of a node that is one of several pools, and what that means, to follow the name. Both are empty if no node is. See
// [sequence.Strategy.PoolOfNode].
func Overlap(s *sequence.Strategy, nodes []corev1.Node) (node, text string) {
	var in []string // of the first by name, so that it is the same each time
	for i := range nodes {
		if node != "" && nodes[i].Name > node {
			continue
		}
		var of []string
		for pool := range s.Len() {
			if s.HasNode(pool, nodes[i].Labels) {
				of = append(of, s.Pool(pool).Name)
			}
		}
		if len(of) > 1 {
			node, in = nodes[i].Name, of
		}
	}
	if node == "" {
		return "", ""
	}
	more := ""
	if len(in) > 2 {
		more = fmt.Sprintf(" (and of %d more)", len(in)-2)
	}
	return node, fmt.Sprintf("has the labels of the pools %s and %s%s, and belongs to %s, which comes first; give the pools labels, or expressions, that no node has of both", in[0], in[1], more, in[0])
}
