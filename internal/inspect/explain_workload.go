package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/world"
)

// WorkloadExplanation says why the pods of a workload look the way they do: pods that look alike are explained
// by one of them.
type WorkloadExplanation struct {
	Namespace string    `json:"namespace"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Problems  []Problem `json:"problems"`
	// Facts are sentences about a policy, whose pods are those of many workloads.
	Facts  []string `json:"facts,omitempty"`
	Groups []Group  `json:"groups"`
}

// Group is pods that look alike.
type Group struct {
	Pods   int          `json:"pods"`
	Sample *Explanation `json:"sample"`
}

// look is what tells the pods of a workload apart.
type look struct {
	pool, template string
	adopted        bool
	waits, vm      bool
}

// ExplainWorkload explains the pods of a workload, of a kind as people write it, such as deployment or ds. It
// returns [ErrNotFound] if there is none, and no pod that belongs to one.
func (i *Inspector) ExplainWorkload(ctx context.Context, namespace, kind, name string) (*WorkloadExplanation, error) {
	if world.SameKind("PodDistributor", kind) {
		return i.explainDistributor(ctx, namespace, name)
	}
	if world.SameKind("SpreadPolicy", kind) || world.SameKind("ClusterSpreadPolicy", kind) {
		return i.explainPolicy(ctx, namespace, kind, name)
	}
	return i.explainPods(ctx, namespace, kind, name)
}

// explainPods explains the pods of an object that makes some.
func (i *Inspector) explainPods(ctx context.Context, namespace, kind, name string) (*WorkloadExplanation, error) {
	looks, ofPods, err := i.looks(ctx, namespace, kind, name)
	if err != nil {
		return nil, forbidden("the pods of "+kind+" "+name, err)
	}
	report, err := i.Status(ctx, namespace)
	if err != nil {
		return nil, err
	}
	report.Only([]string{kind + "/" + name})
	e := &WorkloadExplanation{Namespace: namespace, Kind: cmp.Or(report.kindOf(kind, name), ofPods), Name: name, Problems: report.Problems, Groups: []Group{}}
	if e.Kind == "" {
		e.Kind = report.knownAs(kind, name)
	}
	if e.Kind == "" {
		return nil, fmt.Errorf("%s %s, in namespace %s: %w", kind, name, namespace, ErrNotFound)
	}
	for _, l := range looks.order {
		pods := looks.pods[l]
		sample, err := i.Explain(ctx, namespace, pods[0])
		if err != nil {
			return nil, err
		}
		e.Groups = append(e.Groups, Group{Pods: len(pods), Sample: sample})
	}
	return e, nil
}

// looks tells the pods of a workload that look alike, and its kind as it is written, which is empty if there are no pods.
func (i *Inspector) looks(ctx context.Context, namespace, kind, name string) (looks *tally[look], written string, _ error) {
	var pods []*corev1.Pod
	err := each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		if metav1.GetControllerOfNoCopy(pod) != nil && !podstatus.Ended(pod) {
			pods = append(pods, slim(pod))
		}
	}, client.InNamespace(namespace))
	if err != nil {
		return nil, "", err
	}
	looks, reader, chains := &tally[look]{pods: map[look][]string{}}, i.live(), map[types.UID]world.Chain{}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		chain, known := chains[owner.UID]
		if !known {
			if chain, err = world.Owners(ctx, reader, namespace, world.RefOf(owner)); err != nil {
				return nil, "", err
			}
			chains[owner.UID] = chain
		}
		if n := slices.IndexFunc(chain.Refs, func(ref world.Ref) bool { return ref.Name == name && world.SameKind(ref.Kind, kind) }); n >= 0 {
			written = chain.Refs[n].Kind
			looks.add(i.lookOf(pod), pod.Name)
		}
	}
	return looks, written, nil
}

// kindOf returns the kind of a named object as the report writes it; empty if the object is not there.
func (r *Report) kindOf(kind, name string) (written string) {
	for _, w := range r.Workloads {
		if w.Name == name && world.SameKind(w.Kind, kind) {
			written = w.Kind
		}
	}
	for _, p := range r.Problems {
		if k, n, _ := strings.Cut(p.Object, "/"); n == name && world.SameKind(k, kind) {
			written = k
		}
	}
	return written
}

// knownAs returns the kind of an object that was listed, and "" if none was.
func (r *Report) knownAs(kind, name string) string {
	for _, object := range r.listed {
		if k, n, _ := strings.Cut(object, "/"); n == name && world.SameKind(k, kind) {
			return k
		}
	}
	return ""
}

// tally has the names of pods that are alike, in the order in which the first of each came.
type tally[K comparable] struct {
	order []K
	pods  map[K][]string
}

// add adds a pod.
func (t *tally[K]) add(key K, name string) {
	if t.pods[key] == nil {
		t.order = append(t.order, key)
	}
	t.pods[key] = append(t.pods[key], name)
}

// lookOf returns what tells a pod from others of its workload.
func (i *Inspector) lookOf(pod *corev1.Pod) look {
	_, waits := podstatus.Unschedulable(pod)
	return look{
		pool: pod.Labels[stowage.PoolLabel], template: pod.Labels[stowage.SizedByLabel],
		adopted: adopted(pod), waits: waits, vm: i.vmsOf(pod) > 0,
	}
}

// Print writes the explanation.
func (e *WorkloadExplanation) Print(out io.Writer, format string) error {
	return printAs(out, format, e)
}

// text is the explanation for people.
func (e *WorkloadExplanation) text() string {
	var l lines
	l.add("%s %s", e.Kind, strings.TrimPrefix(e.Namespace+"/"+e.Name, "/"))
	for n := range e.Problems {
		l.WriteString(e.Problems[n].text())
	}
	for _, fact := range e.Facts {
		l.add("  %s", fact)
	}
	if len(e.Groups) == 0 && len(e.Facts) == 0 {
		l.add("It has no pods. The events of what creates them say why, if it asks for some.")
	}
	for _, g := range e.Groups {
		which := "1 pod"
		if g.Pods > 1 {
			which = fmt.Sprintf("%d pods that look alike, one of them", g.Pods)
		}
		l.WriteString("\n" + which + ": " + g.Sample.text())
	}
	return l.String()
}
