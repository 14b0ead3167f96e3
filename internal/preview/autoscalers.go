package preview

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// autoscaler is a HorizontalPodAutoscaler that scales by utilization, which is a part of what pods request.
type autoscaler struct {
	namespace, name, metric string
	target                  schema.GroupKind
	of                      string // the target's name
}

// byUtilization returns what a HorizontalPodAutoscaler scales by utilization, if it does.
func byUtilization(o *autoscalingv2.HorizontalPodAutoscaler) (a autoscaler, is bool) {
	for _, m := range o.Spec.Metrics {
		switch {
		case m.Resource != nil && m.Resource.Target.Type == autoscalingv2.UtilizationMetricType:
			a.metric = string(m.Resource.Name)
		case m.ContainerResource != nil && m.ContainerResource.Target.Type == autoscalingv2.UtilizationMetricType:
			a.metric = string(m.ContainerResource.Name)
		}
	}
	if len(o.Spec.Metrics) == 0 {
		a.metric = "cpu" // which the API server fills in
	}
	ref := o.Spec.ScaleTargetRef
	a.namespace, a.name, a.of = o.Namespace, o.Name, ref.Name
	a.target = schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	return a, a.metric != ""
}

// byUtilizationV1 is [byUtilization] for version 1, which scales by the utilization of CPU alone.
func byUtilizationV1(o *autoscalingv1.HorizontalPodAutoscaler) (autoscaler, bool) {
	ref := o.Spec.ScaleTargetRef
	return byUtilization(&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: o.ObjectMeta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name},
	}})
}

// warnOfAutoscalers says which HorizontalPodAutoscalers cannot scale a workload of peer pods: its pods request no CPU and no memory.
func (v *visiting) warnOfAutoscalers(w *Workload) {
	class := w.template.Spec.RuntimeClassName
	if !v.settings.PeerPods || class == nil || !v.settings.PeerPodConfig.Targets(*class) {
		return
	}
	for _, a := range v.in.autoscalers {
		if a.namespace == w.Namespace && a.target == w.GroupKind() && a.of == w.Name {
			v.warn(w, fmt.Sprintf("HorizontalPodAutoscaler %s scales by the utilization of %s, which peer pods have none of, because they request none; use averageValue, or a metric of the application", a.name, a.metric))
		}
	}
}
