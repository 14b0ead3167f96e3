// Package filters asks kube-scheduler's own Filter plugins which nodes take a pod, on nodes, pods and volumes that the caller gives. It runs the
// default profile of the Kubernetes version that this module pins. Tests compare Stowage's answers with it.
//
// Nothing runs beside it and nobody is asked: plugins read their objects from the indexes of informers that never start. So a [Filters] is cheap,
// and its answers stay as its objects are.
package filters

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// Answer is what the filters say of a pod and a node. It is empty where the node passes.
type Answer struct {
	// Plugin is the first one that refuses, and Reason what it says.
	Plugin string `json:"plugin,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Passes reports whether the node takes the pod.
func (a Answer) Passes() bool { return a.Plugin == "" && a.Reason == "" }

// Filters are the Filter plugins on a fixed state of a cluster.
type Filters struct {
	framework framework.Framework
	snapshot  *schedulercache.Snapshot
}

// New returns the default profile's filters on some objects: nodes, pods, namespaces, volumes, claims, classes and others that plugins read. Pods
// with a node run there.
func New(objects ...runtime.Object) (*Filters, error) { return Only(nil, objects...) }

// Only is [New] with some plugins alone, such as NodeAffinity; without any, it has all.
func Only(only []string, objects ...runtime.Object) (*Filters, error) {
	metrics.Register() // else plugins count on nil
	// What a framework starts counts for metrics, and ends with this call.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	defer cancel()
	client, err := clientset.NewForConfig(&rest.Config{Host: "localhost:0"}) // nothing is asked of it
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	f := &Filters{snapshot: snapshotOf(objects)}
	if f.framework, err = newFramework(ctx, client, factory, f.snapshot, only); err != nil {
		return nil, err
	}
	// After the plugins have added their indexes.
	for _, o := range objects {
		if err := add(factory, o); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// snapshotOf returns the nodes, with the pods that run there. A pod of a node that is gone counts nowhere.
func snapshotOf(objects []runtime.Object) *schedulercache.Snapshot {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	there := map[string]bool{}
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok {
			nodes, there[n.Name] = append(nodes, n), true
		}
	}
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok && there[p.Spec.NodeName] && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods = append(pods, p)
		}
	}
	return schedulercache.NewSnapshot(pods, nodes)
}

// newFramework returns the framework of the default profile.
func newFramework(ctx context.Context, client clientset.Interface, factory informers.SharedInformerFactory, snapshot *schedulercache.Snapshot, only []string) (framework.Framework, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	if len(defaults.Profiles) == 0 {
		return nil, errors.New("the default configuration of kube-scheduler has no profile")
	}
	profile := &defaults.Profiles[0]
	if len(only) > 0 {
		profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
			needed := p.Name == names.PrioritySort || p.Name == names.DefaultBinder // a framework has one of each
			return !needed && !slices.Contains(only, p.Name)
		})
	}
	logger := klog.FromContext(ctx)
	claims := assumecache.NewAssumeCache(logger, factory.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{SliceInformer: factory.Resource().V1().ResourceSlices(), KubeClient: client})
	if err != nil {
		return nil, err
	}
	return frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithMutableSnapshotLister(snapshot),
		frameworkruntime.WithSharedDRAManager(dynamicresources.NewDRAManager(ctx, claims, slices, factory)),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
	)
}

// add gives an object to the informer of its kind. Kinds that no plugin reads are left out.
func add(factory informers.SharedInformerFactory, o runtime.Object) error {
	if _, err := meta.Accessor(o); err != nil {
		return fmt.Errorf("%T: %w", o, err)
	}
	if index := indexOf(factory, o); index != nil {
		return index.Add(o)
	}
	return nil
}

// Passes returns what the filters say of each node. A pod with a scheduling gate passes nowhere.
func (f *Filters) Passes(ctx context.Context, pod *corev1.Pod) (map[string]Answer, error) {
	ctx = klog.NewContext(ctx, logr.Discard())
	nodes, err := f.snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	out := make(map[string]Answer, len(nodes))
	all := func(a Answer) map[string]Answer {
		for _, n := range nodes {
			out[n.Node().Name] = a
		}
		return out
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		return all(Answer{Plugin: names.SchedulingGates, Reason: "the pod has a scheduling gate"}), nil
	}
	state := framework.NewCycleState()
	left, status, by := f.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			return nil, fmt.Errorf("the filters of pod %s/%s: %w", pod.Namespace, pod.Name, status.AsError())
		}
		return all(Answer{Plugin: status.Plugin(), Reason: status.Message()}), nil
	}
	for _, n := range nodes {
		name := n.Node().Name
		if !left.AllNodes() && !left.NodeNames.Has(name) {
			out[name] = Answer{Plugin: first(by.UnsortedList()), Reason: "left out before the filters"}
			continue
		}
		status := f.framework.RunFilterPlugins(ctx, state, pod, n)
		if status.Code() == fwk.Error {
			return nil, fmt.Errorf("the filters of pod %s/%s and node %s: %w", pod.Namespace, pod.Name, name, status.AsError())
		}
		if !status.IsSuccess() {
			out[name] = Answer{Plugin: status.Plugin(), Reason: status.Message()}
			continue
		}
		out[name] = Answer{}
	}
	return out, nil
}

func first(of []string) string {
	if len(of) == 0 {
		return ""
	}
	return slices.Min(of)
}

// indexOf returns the index of the informer of an object's kind, or nil.
func indexOf(f informers.SharedInformerFactory, o runtime.Object) cache.Indexer {
	if i := informerOf(f, o); i != nil {
		return i.GetIndexer()
	}
	return nil
}

// Plugins returns the Filter plugins.
func (f *Filters) Plugins() (out []string) {
	for _, p := range f.framework.ListPlugins().Filter.Enabled {
		out = append(out, p.Name)
	}
	return out
}
