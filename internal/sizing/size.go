package sizing

import (
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Result is a pod with a size.
type Result struct {
	Pod *podpatch.Pod
	// Sized is, by container, the resources whose entries were decided, whatever they
	// were before. It is empty, and the pod is the one that was given, if none was.
	Sized map[string][]corev1.ResourceName
	// Notes are what the pod's user should be told.
	Notes []string
}

// Size returns the pod as big as the template makes it on a node with the given
// allocatable resources. It does not modify pod. A resource of which the node has none
// gets the minimum or, where there is none, stays as it is. It fails if an entry that
// counts is not a quantity.
func (t *Template) Size(pod *podpatch.Pod, allocatable corev1.ResourceList) (Result, error) {
	res := Result{Pod: pod.Clone(), Sized: map[string][]corev1.ResourceName{}}

	// 1. What did the pod declare? A container that is not in the record is new.
	declared, note := declaredBy(pod)
	res.note(note)

	// 2. Size each resource.
	for i := range t.Shares {
		note, err := t.apply(&res, declared, &t.Shares[i], allocatable)
		if err != nil {
			return Result{}, err
		}
		res.note(note)
	}
	if len(res.Sized) == 0 {
		res.Pod = pod
		return res, nil
	}

	// 3. Leave what a later look needs.
	res.Pod.SetLabel(stowage.SizedByLabel, LabelOf(t.Name))
	res.Pod.SetAnnotation(stowage.DeclaredResourcesAnnotation, declared.String())
	return res, nil
}

func (res *Result) note(text string) {
	if text != "" {
		res.Notes = append(res.Notes, text)
	}
}

func (res *Result) sized(c *podpatch.Container, r corev1.ResourceName) {
	res.Sized[c.Name] = append(res.Sized[c.Name], r)
}

// apply sizes one resource, of which the pod declared what is in the record.
func (t *Template) apply(res *Result, declared *record, s *Share, allocatable corev1.ResourceList) (note string, err error) {
	pod, r := res.Pod, s.Resource

	// 1. The pod's total.
	total := s.Min
	if q, ok := allocatable[r]; ok && q.Sign() > 0 {
		has := unitsDown(r, q)
		total = s.Of(has)
		if total > has {
			note = fmt.Sprintf("the minimum of %s, %s, is more than the node has (%s)", r, amount(r, s.Min), &q)
		}
	} else {
		note = fmt.Sprintf("the node has no allocatable %s; the pod keeps what it declares", r)
		if total > 0 {
			note = fmt.Sprintf("the node has no allocatable %s; the pod gets the minimum", r)
		}
	}
	if total == 0 {
		return note, nil
	}

	// 2. What do the containers that run side by side declare?
	var sharing []*podpatch.Container
	var weights []int64
	var excluded, all sum
	for c := range sideBySide(pod) {
		n, err := declared.request(c, r)
		if err != nil {
			return "", err
		}
		all.add(n)
		if slices.Contains(t.Excluded, c.Name) {
			excluded.add(n)
			continue
		}
		sharing = append(sharing, c)
		weights = append(weights, n)
	}
	if t.Ceiling {
		if all == 0 {
			return fmt.Sprintf("the ceiling is what the pod template requests, and it requests no %s; the pod keeps what it declares", r), nil
		}
		total = min(total, int64(all))
	}
	rest := max(0, total-int64(excluded))
	if rest == 0 && len(sharing) > 0 && excluded > 0 {
		note = fmt.Sprintf("the containers that are excluded request all of the pod's %s, %s; nothing is left for the others", r, amount(r, total))
	}

	// 3. Divide it.
	running := map[string]int64{}
	for i, part := range Split(rest, weights) {
		c := sharing[i]
		if err := t.set(&c.Resources, declared.Containers[c.Name], r, part); err != nil {
			return "", fmt.Errorf("container %q: %w", c.Name, err)
		}
		running[c.Name] = part
		res.sized(c, r)
	}

	// 4. An init container runs beside the sidecars before it, and does not raise the
	// total (KEP-753).
	room := total
	var largest int64 // of those that keep what they have
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		isExcluded := slices.Contains(t.Excluded, c.Name)
		n, err := declared.request(c, r)
		if err != nil {
			return "", err
		}
		switch {
		case c.IsSidecar() && isExcluded:
			room = max(0, room-n)
		case c.IsSidecar():
			room = max(0, room-running[c.Name])
		case isExcluded:
			limit, err := declared.limit(c, r)
			if err != nil {
				return "", err
			}
			largest = max(largest, n, limit)
		default:
			if err := t.cap(c, declared.Containers[c.Name], r, room); err != nil {
				return "", fmt.Errorf("init container %q: %w", c.Name, err)
			}
			res.sized(c, r)
		}
	}

	// 5. Where the pod as a whole declares the resource, too, it must not be less than
	// its containers.
	if has(declared.Pod, r) {
		if err := t.set(&pod.Spec.Resources, declared.Pod, r, max(total, int64(excluded), largest)); err != nil {
			return "", fmt.Errorf("spec.resources: %w", err)
		}
	}
	return note, nil
}

// set gives a container, or the pod, an amount of a resource of which it declared what
// is in the record.
func (t *Template) set(to **podpatch.Resources, declared *podpatch.Resources, r corev1.ResourceName, n int64) error {
	if *to == nil {
		*to = &podpatch.Resources{}
	}
	res := *to
	text := podpatch.Quantity(amount(r, n).String())
	res.Requests = with(res.Requests, r, text)
	if !t.NoLimits && n > 0 {
		res.Limits = with(res.Limits, r, text)
		return nil
	}
	// A limit of 0 would be none. One of its own stays if it allows for the request.
	delete(res.Limits, r)
	limit, ok := declared.Limits[r]
	if !ok || !t.NoLimits {
		return nil
	}
	q, err := limit.Parse()
	if err != nil {
		return fmt.Errorf("limits: %s: %w", r, err)
	}
	if q.Cmp(*amount(r, n)) >= 0 {
		res.Limits = with(res.Limits, r, limit)
	}
	return nil
}

// cap keeps an init container below an amount of a resource.
func (t *Template) cap(c *podpatch.Container, declared *podpatch.Resources, r corev1.ResourceName, most int64) error {
	if !has(declared, r) {
		if c.Resources != nil { // filled in since
			delete(c.Resources.Requests, r)
			delete(c.Resources.Limits, r)
		}
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
	}{{"requests", &c.Resources.Requests, declared.Requests, true}, {"limits", &c.Resources.Limits, declared.Limits, !t.NoLimits}} {
		text, ok := list.was[r]
		if !ok {
			delete(*list.to, r)
			continue
		}
		q, err := text.Parse()
		if err != nil {
			return fmt.Errorf("%s: %s: %w", list.name, r, err)
		}
		if list.capped && q.Cmp(*amount(r, most)) > 0 {
			text = podpatch.Quantity(amount(r, most).String())
		}
		*list.to = with(*list.to, r, text)
	}
	return nil
}

// sideBySide yields the containers that run side by side: the sidecars and then the
// containers.
func sideBySide(pod *podpatch.Pod) iter.Seq[*podpatch.Container] {
	return func(yield func(*podpatch.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if c := &pod.Spec.InitContainers[i]; c.IsSidecar() && !yield(c) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
	}
}

// with returns a list with an entry set, making the list where there is none.
func with(list podpatch.ResourceList, r corev1.ResourceName, q podpatch.Quantity) podpatch.ResourceList {
	if list == nil {
		list = podpatch.ResourceList{}
	}
	list[r] = q
	return list
}

// sum is a sum of units that stops at math.MaxInt64.
type sum int64

func (s *sum) add(n int64) {
	if *s > sum(math.MaxInt64-n) {
		*s = math.MaxInt64
		return
	}
	*s += sum(n)
}

// LabelOf returns the value of the label that tells which template sized a pod.
func LabelOf(template string) string {
	if len(template) <= validation.LabelValueMaxLength {
		return template
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(template))
	suffix := "-" + strconv.FormatUint(h.Sum64(), 36)
	return strings.TrimRight(template[:validation.LabelValueMaxLength-len(suffix)], "-.") + suffix
}
