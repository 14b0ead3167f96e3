package world

import (
	"context"
	"slices"
)

// MaxDepth is how many objects are looked at from a pod upwards.
const MaxDepth = 4

// Chain is an object that makes pods, its controller, and so on upwards.
type Chain struct {
	// Refs are their references, from the bottom. There is at least one.
	Refs []Ref
	// Workloads are those of them that exist and may be read, from the bottom without a gap.
	Workloads []*Workload
	// Unverified says that the bottom may exist or not: Stowage may not read its kind.
	Unverified bool
}

// Owners walks up from the object that makes some pods.
func Owners(ctx context.Context, s Snapshot, namespace string, bottom Ref) (Chain, error) {
	c := Chain{Refs: []Ref{bottom}}
	for i := 0; i < len(c.Refs) && i < MaxDepth; i++ {
		w, err := s.Workload(ctx, namespace, c.Refs[i])
		if err != nil {
			return c, err
		}
		if w == nil {
			c.Unverified = i == 0 && !s.MayRead(namespace, bottom)
			break
		}
		c.Workloads = append(c.Workloads, w)
		if w.Controller != nil {
			c.Refs = append(c.Refs, *w.Controller)
		}
	}
	return c, nil
}

// Bottom is the workload that makes the pods, or nil if it is not known.
func (c Chain) Bottom() *Workload {
	if len(c.Workloads) == 0 {
		return nil
	}
	return c.Workloads[0]
}

// Top is the workload of the pods as far as it is known, or nil: the lowest object that keeps their pod template, such as a Deployment. An operator's object
// above it may have several such workloads, so it is not theirs.
func (c Chain) Top() *Workload {
	if i := c.template(); i < len(c.Workloads) {
		return c.Workloads[i]
	}
	return c.Highest()
}

// Root is the reference to the workload of the pods, known or not.
func (c Chain) Root() Ref { return c.Refs[min(c.template(), len(c.Refs)-1)] }

// template returns the index of the lowest reference to a kind that keeps one pod template. Without one, it is the number of references.
func (c Chain) template() int {
	if i := slices.IndexFunc(c.Refs, Ref.KeepsTemplate); i >= 0 {
		return i
	}
	return len(c.Refs)
}

// Highest is the uppermost object that is known, or nil.
func (c Chain) Highest() *Workload {
	if len(c.Workloads) == 0 {
		return nil
	}
	return c.Workloads[len(c.Workloads)-1]
}

// includes reports whether an object is one of them.
func (c Chain) includes(ref Ref) bool { return slices.ContainsFunc(c.Refs, ref.SameObject) }

// Under returns those of some workloads that stand below another one, or are it.
func Under(ctx context.Context, s Snapshot, top Object, among []*Workload) ([]*Workload, error) {
	var out []*Workload
	var unread error
	for _, w := range among {
		chain, err := Owners(ctx, s, top.Namespace, w.Ref)
		switch {
		case chain.includes(top.Ref):
			out = append(out, w)
		case err != nil:
			unread = err // it may be of another workload
		}
	}
	if len(out) == 0 {
		return nil, unread // else a workload would look as if it had no pods
	}
	return out, nil
}
