package inspect

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/world"
)

// WorkloadExplanation says why the pods of a workload look the way they do: pods that look alike are explained
// by one of them.
type WorkloadExplanation struct {
	Namespace string    `json:"namespace"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Problems  []Problem `json:"problems"`
	Groups    []Group   `json:"groups"`
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
	e := &WorkloadExplanation{Namespace: namespace, Name: name, Problems: []Problem{}, Groups: []Group{}}
	counts, samples := map[look]int{}, map[look]string{}
	var order []look
	reader := i.live()
	owners := map[string]world.Chain{}
	var failed error
	err := each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || podstatus.Ended(pod) || failed != nil {
			return
		}
		chain, known := owners[string(owner.UID)]
		if !known {
			if chain, failed = world.Owners(ctx, reader, namespace, world.RefOf(owner)); failed != nil {
				return
			}
			owners[string(owner.UID)] = chain
		}
		for _, ref := range chain.Refs {
			if ref.Name == name && SameKind(ref.Kind, kind) {
				e.Kind = ref.Kind
				l := i.lookOf(pod)
				if counts[l] == 0 {
					order = append(order, l)
					samples[l] = pod.Name
				}
				counts[l]++
				return
			}
		}
	}, client.InNamespace(namespace))
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, forbidden("the pods of "+kind+" "+name, err)
	}
	report, err := i.Status(ctx, namespace)
	if err != nil {
		return nil, err
	}
	report.Only([]string{kind + "/" + name})
	e.Problems = append(e.Problems, report.Problems...)
	for _, w := range report.Workloads {
		if w.Name == name && SameKind(w.Kind, kind) {
			e.Kind = w.Kind
		}
	}
	for _, p := range report.Problems {
		if k, n, _ := strings.Cut(p.Object, "/"); n == name && SameKind(k, kind) {
			e.Kind = k
		}
	}
	if e.Kind == "" {
		return nil, fmt.Errorf("%s %s, with pods or with a strategy, in namespace %s: %w", kind, name, namespace, ErrNotFound)
	}
	for _, l := range order {
		sample, err := i.Explain(ctx, namespace, samples[l])
		if err != nil {
			return nil, err
		}
		e.Groups = append(e.Groups, Group{Pods: counts[l], Sample: sample})
	}
	return e, nil
}

func (i *Inspector) lookOf(pod *corev1.Pod) look {
	_, waits := podstatus.Unschedulable(pod)
	return look{
		pool: pod.Labels[stowage.PoolLabel], template: pod.Labels[stowage.SizedByLabel],
		adopted: adopted(pod), waits: waits, vm: i.vmsOf(pod) > 0,
	}
}

// shortKinds are kubectl's short names of kinds.
var shortKinds = map[string]string{
	"deploy": "Deployment", "rs": "ReplicaSet", "sts": "StatefulSet", "ds": "DaemonSet", "rc": "ReplicationController", "cj": "CronJob",
	"po": "Pod", "no": "Node", "pd": "PodDistributor", "fdt": "FlexDaemonsetTemplate",
}

// SameKind reports whether text is a way to write a kind: in any case, in the plural, or in short.
func SameKind(kind, text string) bool {
	if short, ok := shortKinds[strings.ToLower(text)]; ok {
		text = short
	}
	return strings.EqualFold(kind, text) || strings.EqualFold(kind+"s", text)
}

// Print writes the explanation.
func (e *WorkloadExplanation) Print(out io.Writer, format string) error {
	if format != "text" {
		return report.Object(out, format, e)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s\n", e.Kind, e.Namespace, e.Name)
	for n := range e.Problems {
		b.WriteString(e.Problems[n].text())
	}
	if len(e.Groups) == 0 {
		b.WriteString("It has no pods.\n")
	}
	for _, g := range e.Groups {
		which := "1 pod"
		if g.Pods > 1 {
			which = fmt.Sprintf("%d pods that look alike, one of them", g.Pods)
		}
		fmt.Fprintf(&b, "\n%s: %s", which, g.Sample.text())
	}
	_, err := io.WriteString(out, b.String())
	return err
}
