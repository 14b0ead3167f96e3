package sizing

import (
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

// Place is what a pod's size depends on beside its template.
type Place struct {
	// Allocatable is what the node has.
	Allocatable corev1.ResourceList
	// Limited are the resources for which the namespace demands a limit, or fills one in.
	Limited []corev1.ResourceName
}

// Result is a pod with a size.
type Result struct {
	Pod *podpatch.Pod
	// Sized is, by container, the resources whose entries were decided, whatever they
	// were before; "" stands for spec.resources. It is empty, and the pod is the one that
	// was given, if none was.
	Sized map[string][]corev1.ResourceName
	// Notes are what the pod's user should be told.
	Notes []string
}

// Size returns the pod as big as the template makes it in a place. It does not modify pod.
// A resource of which the node has none gets the minimum or, where there is none, stays as
// it was declared. It fails if an entry that counts is not a quantity.
func (t *Template) Size(pod *podpatch.Pod, place Place) (Result, error) {
	res := Result{Pod: pod.Clone(), Sized: map[string][]corev1.ResourceName{}}

	// 1. What did the pod declare? What an earlier pass made of that does not count.
	declared, note := declaredBy(pod)
	res.note(note)
	declared.restore(res.Pod)

	// 2. Size each resource.
	if len(declared.Sized) == 0 {
		declared.Excluded = t.Excluded
	} else {
		declared.Excluded = slices.DeleteFunc(slices.Clone(declared.Excluded), func(name string) bool { return !slices.Contains(t.Excluded, name) })
	}
	for i := range t.Shares {
		note, err := t.apply(&res, declared, &t.Shares[i], place)
		if err != nil {
			return Result{}, err
		}
		res.note(note)
	}
	if len(res.Sized) == 0 && len(podpatch.Diff(pod, res.Pod)) == 0 {
		res.Pod = pod
		return res, nil
	}

	// 3. Leave what a later look needs.
	res.Pod.SetLabel(stowage.SizedByLabel, LabelOf(t.Name))
	res.Pod.SetAnnotation(stowage.DeclaredResourcesAnnotation, declared.String())
	return res, nil
}

// Unsize returns a pod as it was before it was sized.
func Unsize(pod *podpatch.Pod) *podpatch.Pod {
	if _, sized := pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]; !sized {
		return pod
	}
	out := pod.Clone()
	declared, _ := declaredBy(pod)
	declared.restore(out)
	delete(out.Metadata.Labels, stowage.SizedByLabel)
	delete(out.Metadata.Annotations, stowage.DeclaredResourcesAnnotation)
	return out
}

func (res *Result) note(text string) {
	if text != "" {
		res.Notes = append(res.Notes, text)
	}
}

func (res *Result) sized(container string, r corev1.ResourceName) {
	res.Sized[container] = append(res.Sized[container], r)
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
