package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// NodeExplanation says what Stowage decided that concerns a node.
type NodeExplanation struct {
	Node     string    `json:"node"`
	Problems []Problem `json:"problems"`
	// Facts are sentences: about the node's VMs, its sized pods and its pods of pools.
	Facts []string `json:"facts"`
}

// ExplainNode explains a node. It returns [ErrNotFound] if there is none.
func (i *Inspector) ExplainNode(ctx context.Context, name string) (*NodeExplanation, error) {
	var node corev1.Node
	if err := i.Client.Get(ctx, client.ObjectKey{Name: name}, &node); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("node %s: %w", name, ErrNotFound)
	} else if err != nil {
		return nil, forbidden("node "+name, err)
	}
	e := &NodeExplanation{Node: name, Problems: []Problem{}, Facts: []string{}}
	var pods []*corev1.Pod
	err := each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		if !podstatus.Ended(pod) {
			pods = append(pods, pod)
		}
	}, client.MatchingFields{"spec.nodeName": name})
	if err != nil {
		return nil, forbidden("the pods of node "+name, err)
	}
	if i.VMs {
		if err := i.explainVMs(ctx, e, &node, pods); err != nil {
			return nil, err
		}
	}
	i.explainSized(e, pods)
	e.explainPools(pods)
	if len(e.Facts) == 0 {
		e.say("Stowage decided nothing about it: it has no VMs, no sized pod and no pod with a seat.")
	}
	return e, nil
}

func (e *NodeExplanation) say(format string, args ...any) {
	e.Facts = append(e.Facts, fmt.Sprintf(format, args...))
}

// explainVMs says how many VMs the node has, and why so many.
func (i *Inspector) explainVMs(ctx context.Context, e *NodeExplanation, node *corev1.Node, pods []*corev1.Pod) error {
	used := int64(0)
	for _, pod := range pods {
		used += i.vmsOf(pod)
	}
	q := node.Status.Allocatable[corev1.ResourceName(i.PeerPods.VMResource)]
	if q.IsZero() && used == 0 && i.Capacity == nil {
		return nil
	}
	e.say("It advertises %d %s, of which its pods request %d.", q.Value(), i.PeerPods.VMResource, used)
	if i.Capacity == nil {
		return nil
	}
	if !i.Capacity.Nodes.Matches(labels.Set(node.Labels)) {
		e.say("It may have none: --peerpods-node-selector does not select it.")
		return nil
	}
	r := &Report{}
	limit, known, err := i.limit(ctx, r)
	if err != nil {
		return err
	}
	// The daemons of other nodes matter, too: whether there is one at all.
	var all []*corev1.Pod
	if namespace := i.Capacity.DaemonNamespace; namespace != "" {
		err = each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) { all = append(all, pod) },
			client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: i.Capacity.Daemons})
		if err != nil {
			return forbidden("the daemons that make VMs", err)
		}
	}
	daemons := i.Capacity.daemons(all)
	text, own := node.Annotations[stowage.PeerPodsLimitAnnotation]
	_, invalid := peerpod.ParseLimit(text)
	switch {
	case own && invalid == nil:
		e.say("Its own limit is %s, by the annotation %s.", text, stowage.PeerPodsLimitAnnotation)
	case known:
		e.say("The limit of all nodes is %d (ConfigMap %s, or the flag --peerpods-limit-per-node).", limit, i.limitConfigMap())
	default:
		e.say("The limit of all nodes is invalid, so the node keeps the last valid one.")
	}
	if known || own && invalid == nil {
		i.nodeProblems(node, limit, daemons, r)
	}
	if ready, there := daemons[node.Name]; daemons != nil {
		switch {
		case ready:
			e.say("Its daemon is Ready, so it advertises that many.")
		case !there:
			e.say("It has no daemon that makes VMs, so it advertises none.")
		}
	}
	for _, w := range r.Warnings {
		e.say("%s.", w)
	}
	e.Problems = append(e.Problems, r.Problems...)
	return nil
}

// explainSized says how big the sized pods of the node are.
func (i *Inspector) explainSized(e *NodeExplanation, pods []*corev1.Pod) {
	for _, pod := range pods {
		template, sized := pod.Labels[stowage.SizedByLabel]
		if !sized {
			continue
		}
		var parts []string
		for _, r := range sizing.SizedResources(pod.Annotations) {
			if requested := requestedText(pod, r); requested != "" {
				parts = append(parts, fmt.Sprintf("%s %s", r, requested))
			}
		}
		e.say("Pod %s/%s is sized by FlexDaemonsetTemplate %s: %s.", pod.Namespace, pod.Name, template, strings.Join(parts, ", "))
	}
}

// explainPools counts the pods with a seat.
func (e *NodeExplanation) explainPools(pods []*corev1.Pod) {
	counts := map[string]int{}
	for _, pod := range pods {
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && proven(pod) {
			counts[fmt.Sprintf("%s %s/%s in pool %s", owner.Kind, pod.Namespace, owner.Name, pod.Labels[stowage.PoolLabel])]++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		e.say("%d of the pods of %s.", counts[what], what)
	}
}

// requestedText is what a pod requests of a resource, with what is in force where the kubelet has another amount.
func requestedText(pod *corev1.Pod, r corev1.ResourceName) string {
	requested := sizing.Requested(podpatch.FromPod(pod), r)
	if requested == nil {
		return ""
	}
	actual := pod.DeepCopy()
	for _, list := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{{actual.Spec.Containers, pod.Status.ContainerStatuses}, {actual.Spec.InitContainers, pod.Status.InitContainerStatuses}} {
		for c := range list.containers {
			container := &list.containers[c]
			n := slices.IndexFunc(list.statuses, func(s corev1.ContainerStatus) bool { return s.Name == container.Name })
			if n >= 0 && list.statuses[n].Resources != nil { // else it is not known
				container.Resources = *list.statuses[n].Resources
			}
		}
	}
	if inForce := sizing.Requested(podpatch.FromPod(actual), r); inForce != nil && inForce.Cmp(*requested) != 0 {
		return fmt.Sprintf("%s (in force: %s)", requested, inForce)
	}
	return requested.String()
}

// Print writes the explanation.
func (e *NodeExplanation) Print(out io.Writer, format string) error {
	if format != "text" {
		return printObject(out, format, e)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s\n", e.Node)
	for n := range e.Problems {
		b.WriteString(e.Problems[n].text())
	}
	for _, fact := range e.Facts {
		fmt.Fprintf(&b, "  %s\n", fact)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
