package preview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// Split returns the DaemonSets of the input that Stowage sizes, each divided by the value that a label has on the
// nodes of the input. There is one DaemonSet for each value, with the size of its pods in the template, and the
// DaemonSet itself for all other nodes. Each is named, and selects its nodes, so that applying all of them changes a
// running DaemonSet into them.
//
// Karpenter plans with one size for each DaemonSet, whatever the instance type (see [sizing.NodePlan]). It leaves out
// a DaemonSet for the instance types that the DaemonSet does not select. So one DaemonSet for each instance type is
// planned with the size that its pods have.
func (p *Preview) Split(ctx context.Context, label string) (sets []*appsv1.DaemonSet, warnings []string, err error) {
	pods, warnings, err := p.Admit(ctx, -1)
	if err != nil {
		return nil, nil, err
	}
	s := splitter{label: label, class: map[string]string{}, warnings: warnings}
	for i := range p.in.Objects.Nodes {
		n := &p.in.Objects.Nodes[i]
		s.class[n.Name] = n.Labels[label]
	}
	for i := range p.in.Workloads {
		w := &p.in.Workloads[i]
		if w.daemonSet == nil {
			continue
		}
		if w.daemonSet.Spec.Selector == nil {
			return nil, nil, fmt.Errorf("%s (%s): spec.selector is required", w.source, w)
		}
		if w.daemonSet.Spec.Selector.MatchLabels[stowage.NodeClassLabel] != "" {
			continue
		}
		largest := s.largest(w, pods)
		if len(largest) == 0 {
			s.warn("%s: Stowage sizes none of its pods on the nodes of the input", w)
			continue
		}
		divided, err := divide(w.daemonSet, label, largest)
		if err != nil {
			return nil, nil, fmt.Errorf("%s (%s): %w", w.source, w, err)
		}
		if len(requiredTerms(&w.template.Spec)) > 1 {
			s.warn("%s: it has several terms of required node affinity, and Karpenter reads only the first", w)
		}
		sets = append(sets, divided...)
	}
	if len(sets) == 0 {
		return nil, s.warnings, errors.New("nothing to split: the input needs a DaemonSet, its FlexDaemonsetTemplate, and a node of each class with the label " + label)
	}
	slices.Sort(s.warnings)
	return sets, slices.Compact(s.warnings), nil
}

// splitter knows the classes of nodes, by the value of a label.
type splitter struct {
	label    string
	class    map[string]string // by the node's name
	warnings []string
}

// warn adds a warning.
func (s *splitter) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// largest returns the largest pod of a DaemonSet on the nodes of each class, among those that Stowage sizes.
func (s *splitter) largest(w *Workload, pods []Admitted) map[string]*corev1.Pod {
	largest := map[string]*corev1.Pod{}
	for i := range pods {
		pod := pods[i].Pod
		if pods[i].Workload != w || pod.Labels[stowage.SizedByLabel] == "" {
			continue
		}
		c := s.class[nodeOf(pod)]
		if c == "" {
			s.warn("%s: node %s has no label %s; it stays with DaemonSet %s", w, nodeOf(pod), s.label, w.Name)
			continue
		}
		other := largest[c]
		if other != nil && sizing.Differ(other, pod) {
			s.warn("%s: nodes with %s=%s differ in size by more than a tenth; the template gets the largest", w, s.label, c)
		}
		if other == nil || larger(pod, other) {
			largest[c] = pod
		}
	}
	return largest
}

// divide returns the DaemonSet for each class, by its pod there, and the DaemonSet for the nodes of no such class.
func divide(d *appsv1.DaemonSet, label string, pods map[string]*corev1.Pod) ([]*appsv1.DaemonSet, error) {
	classes := slices.Sorted(maps.Keys(pods))
	rest := bare(d)
	if rest.Spec.Template.Spec.NodeSelector[label] != "" {
		return nil, fmt.Errorf("spec.template.spec.nodeSelector[%s] selects one class already", label)
	}
	sets := make([]*appsv1.DaemonSet, 0, len(classes)+1)
	names := map[string]string{}
	for _, c := range classes {
		s := bare(d)
		suffix := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(c), "-"), "-")
		s.Name = d.Name[:min(len(d.Name), max(1, maxGenerated-len(suffix)-1))] + "-" + suffix
		if other := names[s.Name]; other != "" {
			return nil, fmt.Errorf("the classes %q and %q give the same name %s", other, c, s.Name)
		}
		names[s.Name] = c
		metav1.AddLabelToSelector(s.Spec.Selector, stowage.NodeClassLabel, suffix)
		metav1.SetMetaDataLabel(&s.Spec.Template.ObjectMeta, stowage.NodeClassLabel, suffix)
		if s.Spec.Template.Spec.NodeSelector == nil {
			s.Spec.Template.Spec.NodeSelector = map[string]string{}
		}
		s.Spec.Template.Spec.NodeSelector[label] = c
		withSizes(&s.Spec.Template.Spec, &pods[c].Spec)
		sets = append(sets, s)
	}
	leaveOut(&rest.Spec.Template.Spec, label, classes)
	return append(sets, rest), nil
}

// notInNames are the characters that a label value may have and a DaemonSet's name should not.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// bare returns a DaemonSet as a user would write it: without what the API server adds.
func bare(d *appsv1.DaemonSet) *appsv1.DaemonSet {
	s := &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, Labels: maps.Clone(d.Labels), Annotations: maps.Clone(d.Annotations)},
		Spec:       *d.Spec.DeepCopy(),
	}
	delete(s.Annotations, appsv1.DeprecatedTemplateGeneration)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	s.Spec.Template.CreationTimestamp = metav1.Time{}
	return s
}

// withSizes gives the containers of a template the resources that they have in a sized pod.
func withSizes(template, sized *corev1.PodSpec) {
	for _, l := range []struct{ to, from []corev1.Container }{
		{template.InitContainers, sized.InitContainers}, {template.Containers, sized.Containers},
	} {
		for i := range l.to {
			for j := range l.from {
				if l.to[i].Name == l.from[j].Name {
					l.to[i].Resources = *l.from[j].Resources.DeepCopy()
				}
			}
		}
	}
	template.Resources = sized.Resources.DeepCopy()
}

// leaveOut keeps a DaemonSet from the nodes of some classes. A second split of the same DaemonSet adds to the classes of
// the first.
func leaveOut(spec *corev1.PodSpec, label string, classes []string) {
	required := requiredAffinity(spec)
	if *required == nil {
		*required = &corev1.NodeSelector{}
	}
	terms := &(*required).NodeSelectorTerms
	if len(*terms) == 0 {
		*terms = []corev1.NodeSelectorTerm{{}}
	}
	for i := range *terms {
		list := &(*terms)[i].MatchExpressions
		at := slices.IndexFunc(*list, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == label && r.Operator == corev1.NodeSelectorOpNotIn
		})
		if at < 0 {
			*list = append(*list, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpNotIn})
			at = len(*list) - 1
		}
		values := append((*list)[at].Values, classes...)
		slices.Sort(values)
		(*list)[at].Values = slices.Compact(values)
	}
}

// larger compares two pods of a DaemonSet: by CPU, then by memory.
func larger(a, b *corev1.Pod) bool {
	cpuA, memoryA := sizing.PodSize(a)
	cpuB, memoryB := sizing.PodSize(b)
	return cmp.Or(cmp.Compare(cpuA, cpuB), cmp.Compare(memoryA, memoryB)) > 0
}

// PrintSets writes DaemonSets as the documents of a YAML file.
func PrintSets(out io.Writer, sets []*appsv1.DaemonSet) error {
	documents := make([]string, len(sets))
	for i, s := range sets {
		data, err := Manifest(s)
		if err != nil {
			return err
		}
		documents[i] = string(data)
	}
	_, err := io.WriteString(out, strings.Join(documents, "---\n"))
	return err
}

// Manifest returns an object as YAML, for somebody who writes it to the API server: without a status.
func Manifest(object any) ([]byte, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}
