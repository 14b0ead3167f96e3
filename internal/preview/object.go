package preview

import (
	"cmp"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// object takes an object of one of the types that decisions depend on.
func (l *loader) object(at source, where string, obj object) {
	in := &l.in.Objects
	switch o := obj.(type) {
	case *corev1.Namespace:
		for _, f := range policy.Check("Namespace", feature.Metadata{Annotations: o.Annotations, Labels: o.Labels}, nil) {
			l.warn("%s: %s", where, f)
		}
		l.takeOther(at, o, func() { in.Namespaces = append(in.Namespaces, *o) })
	case *corev1.LimitRange:
		l.home(&o.Namespace)
		l.takeOther(at, o, func() { in.LimitRanges = append(in.LimitRanges, *o) })
	case *corev1.ResourceQuota:
		l.home(&o.Namespace)
		l.takeOther(at, o, func() { in.ResourceQuotas = append(in.ResourceQuotas, *o) })
	case *nodev1.RuntimeClass:
		l.takeOther(at, o, func() { l.in.RuntimeClasses = append(l.in.RuntimeClasses, *o) })
	case *schedulingv1.PriorityClass:
		l.takeOther(at, o, func() { in.PriorityClasses = append(in.PriorityClasses, o.Name) })
	case *autoscalingv2.HorizontalPodAutoscaler:
		l.home(&o.Namespace)
		l.autoscaler(at, o, o)
	case *autoscalingv1.HorizontalPodAutoscaler:
		l.home(&o.Namespace)
		l.autoscaler(at, o, asV2(o))
	case *corev1.Node:
		l.takeOther(at, o, func() { in.Nodes = append(in.Nodes, *o) })
	case *versprei.PodDistributor, *stowage.SpreadPolicy, *stowage.ClusterSpreadPolicy, *stowage.ScaleDownPolicy, *stowage.ClusterScaleDownPolicy, *stowage.VMCatalog, *flexdaemonsets.FlexDaemonsetTemplate:
		l.ownKind(at, where, obj)
	default:
		if w, known := newWorkload(obj); known {
			l.workload(at, w, obj)
		}
	}
}

// autoscaler takes a HorizontalPodAutoscaler, which v2 is in version 2.
func (l *loader) autoscaler(at source, obj object, v2 *autoscalingv2.HorizontalPodAutoscaler) {
	l.takeOther(at, obj, func() {
		if a := byUtilization(v2); len(a.metrics) > 0 {
			l.in.autoscalers = append(l.in.autoscalers, a)
		}
	})
}

// notYet is when an object of a manifest is created: after those that a cluster has. The older one of two sources wins.
var notYet = metav1.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// ownKind takes an object of one of Stowage's own kinds.
func (l *loader) ownKind(at source, where string, obj object) {
	in := &l.in.Objects
	var err error
	var add func()
	switch o := obj.(type) {
	case *versprei.PodDistributor:
		l.home(&o.Namespace)
		err, add = policy.Compile(o).Err, func() {
			o.UID = cmp.Or(o.UID, identityOf(o).uid())
			in.PodDistributors = append(in.PodDistributors, *o)
		}
	case *stowage.SpreadPolicy:
		l.home(&o.Namespace)
		err, add = policy.CompilePolicy(policy.FromSpreadPolicy(o)).Err, func() {
			o.UID, o.Generation = cmp.Or(o.UID, identityOf(o).uid()), max(o.Generation, 1)
			in.Policies.Namespaced = append(in.Policies.Namespaced, o)
		}
	case *stowage.ClusterSpreadPolicy:
		err, add = policy.CompilePolicy(policy.FromClusterSpreadPolicy(o)).Err, func() {
			o.UID, o.Generation = cmp.Or(o.UID, identityOf(o).uid()), max(o.Generation, 1)
			in.Policies.Cluster = append(in.Policies.Cluster, o)
		}
	case *stowage.ScaleDownPolicy:
		l.home(&o.Namespace)
		p := policies.Of(o)
		err, add = p.Err, func() { l.in.scaleDowns = append(l.in.scaleDowns, p) }
	case *stowage.ClusterScaleDownPolicy:
		p := policies.OfCluster(o)
		err, add = p.Err, func() { l.in.scaleDowns = append(l.in.scaleDowns, p) }
	case *stowage.VMCatalog:
		add = func() { in.VMCatalogs = append(in.VMCatalogs, *o) }
	case *flexdaemonsets.FlexDaemonsetTemplate:
		_, err = sizing.Compile(o)
		add = func() { in.Templates = append(in.Templates, *o) }
	}
	if l.compiles(where, obj.GetName(), err) {
		l.takeOther(at, obj, func() {
			if created := obj.GetCreationTimestamp(); created.IsZero() {
				obj.SetCreationTimestamp(notYet)
			}
			add()
		})
	}
}

// takeOther takes an object that is no workload.
func (l *loader) takeOther(at source, obj object, add func()) {
	l.take(taken{identity: identityOf(obj), at: at, obj: obj, add: add})
}

// identityOf is the identity of an object whose namespace is filled in.
func identityOf(obj object) identity {
	return identity{obj.GetObjectKind().GroupVersionKind().GroupKind(), obj.GetNamespace(), obj.GetName()}
}

// workload takes a pod, or what makes pods.
func (l *loader) workload(at source, w Workload, obj object) {
	l.home(&w.Namespace)
	if l.valid(at, &w) {
		l.take(taken{identity: w.identity(), at: at, obj: obj, workload: &w, add: func() { l.in.add(w, obj) }})
	}
}

// valid reports whether the API server takes a workload, and its settings have an effect.
func (l *loader) valid(at source, w *Workload) bool {
	w.source = at
	before := len(l.errs)
	for _, err := range w.validate() {
		l.fail("%s (%s): %w", at, w, err)
	}
	for _, f := range policy.Check(w.Kind, w.own(), w.ofTemplate()) {
		if f.Invalid {
			l.fail("%s (%s): %s", at, w, f)
		} else {
			l.warn("%s (%s): %s", at, w, f)
		}
	}
	return len(l.errs) == before
}

// compiles reports whether a custom resource has a name, which [loader.named] checks, and compiling the resource made no error.
func (l *loader) compiles(where, name string, err error) bool {
	switch {
	case name == "":
		l.fail("%s: metadata.name: it is required", where)
	case err != nil:
		l.fail("%s: %w", where, err)
	default:
		return true
	}
	return false
}

// home fills in the namespace that kubectl would.
func (l *loader) home(namespace *string) {
	if *namespace == "" {
		*namespace = l.namespace
	}
}

// kindsOfInterest are the kinds that decisions depend on, or are about. The fields in
// quantityMaps and quantityFields are quantities wherever they are in these.
var kindsOfInterest = []string{
	"Pod", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob",
	"Node", "RuntimeClass", "LimitRange", "ResourceQuota", "Namespace", "PodDistributor", "FlexDaemonsetTemplate",
	"SpreadPolicy", "ClusterSpreadPolicy", "ScaleDownPolicy", "ClusterScaleDownPolicy", "VMCatalog", "PriorityClass", "HorizontalPodAutoscaler",
}
