package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// NodeExplanation says what Stowage decided that concerns a node.
type NodeExplanation struct {
	Node     string    `json:"node"`
	Problems []Problem `json:"problems"`
	// Facts are sentences: about the node's VMs, its sized pods and its pods of pools. Data has the same for programs.
	Facts []string  `json:"facts"`
	Data  nodeFacts `json:"data"`
}

// nodeFacts are what is known of a node.
type nodeFacts struct {
	VMs   *nodeVMFacts `json:"vms,omitempty"`
	Sized []sizedPod   `json:"sized,omitempty"`
	Pools []pooledPods `json:"pools,omitempty"`
}

// nodeVMFacts are the VMs of a node.
type nodeVMFacts struct {
	Resource   string `json:"resource"`
	Advertised int64  `json:"advertised"`
	Used       int64  `json:"used"` // what the pods request
	// Users are the pods that take VMs.
	Users []vmUser `json:"users,omitempty"`
	// Limit is why the node has so many, or nil where Stowage advertises none.
	Limit *limitFacts `json:"limit,omitempty"`
}

// vmUser is a pod that takes VMs.
type vmUser struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	VMs       int64  `json:"vms"`
}

// limitFacts are the limit of a node's VMs.
type limitFacts struct {
	// NotSelected says that the node may have none. Then the rest is not known.
	NotSelected bool `json:"notSelected,omitempty"`
	// Own is the node's own limit. OfAll is that of all nodes, from ConfigMap; without one of both the node keeps the last
	// valid limit.
	Own       string      `json:"own,omitempty"`
	OfAll     *int64      `json:"ofAll,omitempty"`
	ConfigMap string      `json:"configMap"`
	Daemon    daemonState `json:"daemon,omitempty"` // empty where no daemon decides
	Warnings  []string    `json:"warnings,omitempty"`
}

// daemonState is the state of the pod that makes a node's VMs.
type daemonState string

const (
	daemonReady    daemonState = "Ready"
	daemonNotReady daemonState = "NotReady"
	daemonAbsent   daemonState = "Absent"
)

// sizedPod is a pod that a template sized.
type sizedPod struct {
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	SizedBy   string       `json:"sizedBy"`
	Resources []shareFacts `json:"resources"`
}

// pooledPods are the pods of an owner that have a seat in a pool.
type pooledPods struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Owner     string `json:"owner"`
	Pool      string `json:"pool"`
	Pods      int    `json:"pods"`
}

// ExplainNode explains a node. It returns [ErrNotFound] if there is none.
func (i *Inspector) ExplainNode(ctx context.Context, name string) (*NodeExplanation, error) {
	var node corev1.Node
	if err := i.Client.Get(ctx, client.ObjectKey{Name: name}, &node); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("node %s: %w", name, ErrNotFound)
	} else if err != nil {
		return nil, forbidden("node "+name, err)
	}
	e := &NodeExplanation{Node: name, Problems: []Problem{}}
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
		if err := i.nodeVMs(ctx, e, &node, pods); err != nil {
			return nil, err
		}
	}
	e.Data.Sized, e.Data.Pools = sizedPods(pods), poolsOnNode(pods)
	e.Facts = e.Data.sentences()
	return e, nil
}

// nodeVMs looks how many VMs the node has, and why so many.
func (i *Inspector) nodeVMs(ctx context.Context, e *NodeExplanation, node *corev1.Node, pods []*corev1.Pod) error {
	q := node.Status.Allocatable[corev1.ResourceName(i.PeerPods.VMResource)]
	f := &nodeVMFacts{Resource: i.PeerPods.VMResource, Advertised: q.Value()}
	for _, pod := range pods {
		if n := i.vmsOf(pod); n > 0 {
			f.Used += n
			f.Users = append(f.Users, vmUser{pod.Namespace, pod.Name, n})
		}
	}
	if f.Advertised == 0 && f.Used == 0 && i.Capacity == nil {
		return nil
	}
	e.Data.VMs = f
	if i.Capacity == nil {
		return nil
	}
	f.Limit = &limitFacts{ConfigMap: i.limitConfigMap()}
	if f.Limit.NotSelected = !i.Capacity.Nodes.Matches(labels.Set(node.Labels)); f.Limit.NotSelected {
		return nil
	}
	r := &Report{}
	if err := i.nodeLimit(ctx, f.Limit, node, r); err != nil {
		return err
	}
	f.Limit.Warnings = r.Warnings
	e.Problems = append(e.Problems, r.Problems...)
	return nil
}

// nodeLimit looks which limit the VMs of a selected node have, and whether a daemon makes them. It adds to the report what is wrong.
func (i *Inspector) nodeLimit(ctx context.Context, f *limitFacts, node *corev1.Node, r *Report) error {
	limit, known, err := i.limit(ctx, r)
	if err != nil {
		return err
	}
	if known {
		f.OfAll = &limit
	}
	text := node.Annotations[stowage.PeerPodsLimitAnnotation]
	if _, err := peerpod.ParseLimit(text); err == nil { // without one, the text is empty and no limit
		f.Own = text
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
	switch ready, there := daemons[node.Name]; {
	case daemons == nil:
	case ready:
		f.Daemon = daemonReady
	case there:
		f.Daemon = daemonNotReady
	default:
		f.Daemon = daemonAbsent
	}
	if known || f.Own != "" {
		i.nodeProblems(node, limit, daemons, r)
	}
	return nil
}

// sizedPods returns how big the sized pods among some are.
func sizedPods(pods []*corev1.Pod) (out []sizedPod) {
	for _, pod := range pods {
		template, sized := pod.Labels[stowage.SizedByLabel]
		if !sized {
			continue
		}
		p := sizedPod{Namespace: pod.Namespace, Pod: pod.Name, SizedBy: template, Resources: []shareFacts{}}
		for _, r := range sizing.SizedResources(pod.Annotations) {
			if spec, inForce := requested(pod, r); spec != "" {
				p.Resources = append(p.Resources, shareFacts{Resource: r, Requested: spec, InForce: inForce})
			}
		}
		out = append(out, p)
	}
	return out
}

// poolsOnNode counts the pods with a seat, by owner and pool.
func poolsOnNode(pods []*corev1.Pod) (out []pooledPods) {
	counts := map[pooledPods]int{}
	for _, pod := range pods {
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && proven(pod) {
			counts[pooledPods{Namespace: pod.Namespace, Kind: owner.Kind, Owner: owner.Name, Pool: pod.Labels[stowage.PoolLabel]}]++
		}
	}
	for of, n := range counts {
		of.Pods = n
		out = append(out, of)
	}
	slices.SortFunc(out, func(a, b pooledPods) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Pool, b.Pool))
	})
	return out
}

// Print writes the explanation.
func (e *NodeExplanation) Print(out io.Writer, format string) error { return printAs(out, format, e) }

// text is the explanation for people.
func (e *NodeExplanation) text() string {
	var l lines
	l.add("Node %s", e.Node)
	for n := range e.Problems {
		l.WriteString(e.Problems[n].text())
	}
	for _, fact := range e.Facts {
		l.add("  %s", fact)
	}
	return l.String()
}
