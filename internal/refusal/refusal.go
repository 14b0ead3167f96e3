// Package refusal answers whether the API server refuses pods because of what Stowage adds to them.
//
// All that is known is a text, which the author of an admission policy may have written. So [Judge] compares it with what Stowage adds to the pods of
// this workload: a key that it names is proof, and so is the name of a field that Stowage writes. A text about something else, such as a quota of CPU or
// the source of an image, is not Stowage's. Of any other denial the answer is [Unknown], and a dry run tells; so it is of a quota where pods get a
// PriorityClass, for which the quota may be. The package is pure.
package refusal

import (
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// Field is what of a pod Stowage changes, as people call it.
type Field string

// The fields.
const (
	NodeSelector  Field = "node selector"
	NodeAffinity  Field = "node affinity"
	Toleration    Field = "toleration"
	Label         Field = "label"
	Annotation    Field = "annotation"
	PriorityClass Field = "PriorityClass"
	GracePeriod   Field = "grace period"
	// Requests are taken out of a peer pod, which asks for a VM instead.
	Requests Field = "requests and limits"
	VM       Field = "resource"
)

// Part is one thing that Stowage writes into pods, or takes out.
type Part struct {
	Field Field
	// Key and Values are those of an entry. An expression has several values or none.
	Key    string
	Values []string
	// Text is what people read in place of the entry, such as all requirements of a pool.
	Text string
	// Own says that the key is one of Stowage's, whatever its value.
	Own bool
	// By names what asks for it, such as "SpreadPolicy web".
	By string
}

// Added is what Stowage adds to the pods of a workload.
type Added []Part

// Add adds a part, once.
func (a *Added) Add(p Part) {
	if !slices.ContainsFunc(*a, func(have Part) bool {
		return have.Field == p.Field && have.Key == p.Key && have.Text == p.Text && slices.Equal(have.Values, p.Values)
	}) {
		*a = append(*a, p)
	}
}

// of returns the parts that meet a condition.
func (a Added) of(meets func(*Part) bool) (out Added) {
	for i := range a {
		if meets(&a[i]) {
			out = append(out, a[i])
		}
	}
	return out
}

// mostNamed is how many entries of a field a text names, and mostNamedBytes how many bytes of each. Tenants write them.
const (
	mostNamed      = 4
	mostNamedBytes = 80
)

// String lists the parts by what asks for them and by field: "the node selector type=spot or type=od, the label stowage.dev/pool (SpreadPolicy web)".
func (a Added) String() string {
	type group struct {
		by    string
		field Field
	}
	var groups []group
	entries := map[group][]string{}
	for i := range a {
		p := &a[i]
		g := group{p.By, p.Field}
		if entries[g] == nil {
			groups = append(groups, g)
		}
		if entry := bounded.Text(p.entry(), mostNamedBytes); !slices.Contains(entries[g], entry) {
			entries[g] = append(entries[g], entry)
		}
	}
	slices.SortStableFunc(groups, func(x, y group) int { return strings.Compare(x.by, y.by) })
	var out []string
	for i, g := range groups {
		text := g.field.text(entries[g])
		if last := i == len(groups)-1 || groups[i+1].by != g.by; last {
			text += " (" + g.by + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// entry is the part without its field.
func (p *Part) entry() string {
	switch {
	case p.Text != "":
		return p.Text
	case p.Own || len(p.Values) == 0:
		return p.Key
	}
	return p.Key + "=" + strings.Join(p.Values, "|")
}

// text names a field with its entries.
func (f Field) text(entries []string) string {
	joint := " and "
	switch f {
	case Requests:
		return "a VM in place of requests and limits"
	case GracePeriod:
		return "a shorter grace period"
	case NodeSelector, NodeAffinity, PriorityClass:
		joint = " or " // a pod has those of one pool
	}
	name := string(f)
	if len(entries) > 1 && joint == " and " {
		name += "s"
	}
	if len(entries) > mostNamed {
		entries = append(entries[:mostNamed:mostNamed], "others")
	}
	last := len(entries) - 1
	if last == 0 {
		return "the " + name + " " + entries[0]
	}
	return "the " + name + " " + strings.Join(entries[:last], ", ") + joint + entries[last]
}

// Ways returns what to do, beside changing what refuses the pods, so that they have no such part.
func (a Added) Ways() (ways []string) {
	has := func(f Field) bool { return slices.ContainsFunc(a, func(p Part) bool { return p.Field == f && !p.Own }) }
	for _, w := range []struct {
		of   Field
		text string
	}{
		{NodeSelector, "set enforcement: Preferred, with which pods prefer their pool by node affinity"},
		{NodeSelector, "give each pool matchExpressions that are no equality, such as {key: kubernetes.io/os, operator: Exists}, with which pods require it by node affinity"},
		{NodeAffinity, "write the pools by nodeSelector alone with enforcement: Required, with which pods have a node selector"},
		{Toleration, "write the tolerations in the pod template and not in the pools"},
		{Label, "remove podLabels from the pools"},
		{Annotation, "remove podAnnotations from the pools"},
		{PriorityClass, "remove priorityClassName from the pools"},
		{GracePeriod, "remove terminationGracePeriodSeconds from the pools"},
		{Requests, "remove minimum, maximum and ratio of CPU and memory from the LimitRange, and have the ResourceQuota count VMs in place of CPU and memory"},
		{VM, "raise the ResourceQuota, or ask for fewer pods"},
	} {
		if has(w.of) {
			ways = append(ways, w.text)
		}
	}
	return ways
}
