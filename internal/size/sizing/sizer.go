package sizing

import (
	"fmt"
	"math/bits"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// sizer sizes one resource of a pod.
type sizer struct {
	*Template
	res      *Result
	declared *record // what the pod declared
	share    *Share
	place    Place
	limited  bool // whether a limit is needed, too

	sharing  []*podpatch.Container // the containers that run side by side and share the total
	weights  []int64               // what they declare; -1 is nothing
	excluded sum                   // what the excluded ones of those declare
	all      sum                   // what all of them declare, or the pod as a whole
	total    int64                 // of the pod
	running  map[string]int64      // what the containers got
}

// apply sizes one resource, of which the pod declared what is in the record.
func (t *Template) apply(res *Result, declared *record, share *Share, place Place) (note string, err error) {
	s := &sizer{
		Template: t, res: res, declared: declared, share: share, place: place,
		limited: slices.Contains(place.Limited, share.Resource), running: map[string]int64{},
	}
	if err := s.addUp(); err != nil {
		return "", err
	}
	note, sized := s.chooseTotal()
	if !sized {
		return note, nil
	}
	if err := s.divide(); err != nil {
		return "", err
	}
	request, limit, err := s.initContainers()
	if err != nil {
		return "", err
	}
	if err := s.whole(request, limit); err != nil {
		return "", err
	}
	if r := share.Resource; len(s.running) > 0 && !slices.Contains(declared.Sized, r) {
		declared.Sized = append(declared.Sized, r)
	}
	return note, nil
}

// addUp adds up what the containers that run side by side declare.
func (s *sizer) addUp() error {
	for c := range sideBySide(s.res.Pod) {
		n, err := s.declared.request(c, s.share.Resource)
		if err != nil {
			return err
		}
		s.all.add(max(0, n))
		if slices.Contains(s.Excluded, c.Name) {
			s.excluded.add(max(0, n))
			continue
		}
		s.sharing = append(s.sharing, c)
		s.weights = append(s.weights, n)
	}
	whole, err := s.declared.pod(s.share.Resource)
	if err != nil {
		return err
	}
	if whole.request >= 0 {
		s.all = sum(whole.request)
	}
	return nil
}

// chooseTotal chooses the pod's total, and returns false if the pod keeps what it declares.
func (s *sizer) chooseTotal() (note string, sized bool) {
	r := s.share.Resource
	s.total = s.share.Min
	there := int64(0)
	if q, ok := s.place.Allocatable[r]; ok && q.Sign() > 0 {
		there = unitsDown(r, q)
		s.total = s.share.Of(there)
	} else if s.total > 0 {
		note = fmt.Sprintf("the node has no allocatable %s; the pod gets the minimum", r)
	} else {
		return fmt.Sprintf("the node has no allocatable %s; the pod keeps what it declares", r), false
	}
	if s.Ceiling {
		if s.all == 0 {
			return fmt.Sprintf("the ceiling is what the pod template requests, and it requests no %s; the pod keeps what it declares", r), false
		}
		s.total = min(s.total, int64(s.all))
	}
	switch {
	case s.total == 0:
		return fmt.Sprintf("the pod's share of %s is nothing; it keeps what it declares", r), false
	case there > 0 && s.total > there:
		note = fmt.Sprintf("the pod gets the minimum of %s, %s, which is more than the node has (%s)", r, text(r, s.total), text(r, there))
	case s.rest() == 0 && len(s.sharing) > 0:
		note = fmt.Sprintf("the containers that are excluded request all of the pod's %s, %s; nothing is left for the others", r, text(r, s.total))
	}
	return note, true
}

// rest is what the containers share that are not excluded.
func (s *sizer) rest() int64 { return max(0, s.total-int64(s.excluded)) }

// divide gives each container its part.
func (s *sizer) divide() error {
	for i, part := range Split(s.rest(), evenWhereNothing(s.weights)) {
		c := s.sharing[i]
		if err := s.set(&c.Resources, s.declared.Containers[c.Name], s.share.Resource, part, part, s.limited); err != nil {
			return fmt.Errorf("container %q: %w", c.Name, err)
		}
		s.running[c.Name] = part
		s.res.sized(c.Name, s.share.Resource)
	}
	return nil
}

// initContainers keeps init containers within the total: one runs beside the sidecars before it, and does
// not raise the total (KEP-753). It returns the least request and limit of the pod as a whole.
func (s *sizer) initContainers() (request, limit int64, err error) {
	r := s.share.Resource
	request = max(s.total, int64(s.excluded))
	for c := range sideBySide(s.res.Pod) {
		if slices.Contains(s.Excluded, c.Name) {
			n, err := s.declared.limit(c, r)
			if err != nil {
				return 0, 0, err
			}
			limit = max(limit, n)
		}
	}
	var before sum // the sidecars before it
	for i := range s.res.Pod.Spec.InitContainers {
		c := &s.res.Pod.Spec.InitContainers[i]
		n, err := s.declared.request(c, r)
		if err != nil {
			return 0, 0, err
		}
		n = max(0, n)
		part, shares := s.running[c.Name]
		switch {
		case shares:
			before.add(part)
		case c.IsSidecar():
			before.add(n)
		case slices.Contains(s.Excluded, c.Name):
			own, err := s.declared.limit(c, r)
			if err != nil {
				return 0, 0, err
			}
			beside := before
			beside.add(n)
			request, limit = max(request, int64(beside)), max(limit, own)
		default:
			if err := s.cap(c, s.declared.Containers[c.Name], r, max(0, s.total-int64(before))); err != nil {
				return 0, 0, fmt.Errorf("init container %q: %w", c.Name, err)
			}
			s.res.sized(c.Name, r)
		}
	}
	return request, limit, nil
}

// whole sets the entries of the pod as a whole, where it has some: they must not be less than what its
// containers have. The API server may have made them after us.
func (s *sizer) whole(request, limit int64) error {
	r, pod := s.share.Resource, s.res.Pod
	if !has(s.declared.Pod, r) && !has(pod.Spec.Resources, r) {
		return nil
	}
	of := s.declared.Pod
	if of == nil {
		of = &podpatch.Resources{}
	}
	if err := s.set(&pod.Spec.Resources, of, r, request, max(request, limit), s.limited); err != nil {
		return fmt.Errorf("spec.resources: %w", err)
	}
	s.res.sized("", r)
	return nil
}

// set gives a container, or the pod, a request of a resource, and the limit or, without limits, its own one. The
// record has what it declared.
func (t *Template) set(to **podpatch.Resources, declared *podpatch.Resources, r corev1.ResourceName, request, limit int64, limited bool) error {
	if *to == nil {
		*to = &podpatch.Resources{}
	}
	res := *to
	res.Requests = with(res.Requests, r, text(r, request))
	if !t.NoLimits {
		res.Limits = with(res.Limits, r, text(r, limit))
		return nil
	}
	own, ok := declared.Limits[r]
	if !ok {
		delete(res.Limits, r)
		return nil
	}
	q, err := own.Parse()
	if err != nil {
		return fmt.Errorf("limits: %s: %w", r, err)
	}
	switch {
	case q.Cmp(*amount(r, request)) >= 0:
		res.Limits = with(res.Limits, r, own)
	case limited: // without one, the namespace refuses the pod, or fills that one in again
		res.Limits = with(res.Limits, r, text(r, request))
	default:
		delete(res.Limits, r)
	}
	return nil
}

// cap keeps an init container below an amount of a resource. Where it declared nothing,
// what somebody filled in since is kept below it.
func (t *Template) cap(c *podpatch.Container, declared *podpatch.Resources, r corev1.ResourceName, most int64) error {
	from := declared
	if !has(declared, r) {
		from = c.Resources
	}
	if !has(from, r) {
		return nil
	}
	if c.Resources == nil {
		c.Resources = &podpatch.Resources{}
	}
	for _, list := range []struct {
		name   string
		to     *podpatch.ResourceList
		was    podpatch.ResourceList
		capped bool
	}{{"requests", &c.Resources.Requests, from.Requests, true}, {"limits", &c.Resources.Limits, from.Limits, !t.NoLimits}} {
		q, ok := list.was[r]
		if !ok {
			delete(*list.to, r)
			continue
		}
		parsed, err := q.Parse()
		if err != nil {
			return fmt.Errorf("%s: %s: %w", list.name, r, err)
		}
		if list.capped && parsed.Cmp(*amount(r, most)) > 0 {
			q = text(r, most)
		}
		*list.to = with(*list.to, r, q)
	}
	return nil
}

// evenWhereNothing returns weights that give each container that declares nothing an even share. They divide the rest
// among the others in proportion to what they declare.
func evenWhereNothing(declared []int64) []int64 {
	var all sum
	some := int64(0)
	for _, n := range declared {
		if n >= 0 {
			all.add(n)
			some++
		}
	}
	if all == 0 || some == int64(len(declared)) {
		out := slices.Clone(declared)
		for i := range out {
			out[i] = max(0, out[i])
		}
		if some < int64(len(declared)) { // those that declare 0 want none
			for i := range out {
				if declared[i] < 0 {
					out[i] = 1
				}
			}
		}
		return out
	}
	// A share is even if its weight is the mean of the others: all/some. Multiplied by
	// some, that is whole; large weights lose their last digits before, so that it fits.
	shift := max(0, bits.Len64(uint64(all))-40)
	out := make([]int64, len(declared))
	total := int64(0)
	for i, n := range declared {
		if n >= 0 {
			out[i] = n >> shift
			total += out[i]
			out[i] *= some
		}
	}
	for i, n := range declared {
		if n < 0 {
			out[i] = total
		}
	}
	return out
}
