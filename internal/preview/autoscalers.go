package preview

import (
	"fmt"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// autoscaler is a HorizontalPodAutoscaler that scales by utilization, which is a part of what pods request.
type autoscaler struct {
	name    string
	metrics []string // the resources whose utilization it scales by
	target  identity
}

// byUtilization returns a HorizontalPodAutoscaler with its metrics that are utilizations.
func byUtilization(o *autoscalingv2.HorizontalPodAutoscaler) autoscaler {
	ref := o.Spec.ScaleTargetRef
	a := autoscaler{name: o.Name, target: identity{schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(), o.Namespace, ref.Name}}
	for _, m := range o.Spec.Metrics {
		switch {
		case m.Resource != nil && m.Resource.Target.Type == autoscalingv2.UtilizationMetricType:
			a.metrics = append(a.metrics, string(m.Resource.Name))
		case m.ContainerResource != nil && m.ContainerResource.Target.Type == autoscalingv2.UtilizationMetricType:
			a.metrics = append(a.metrics, string(m.ContainerResource.Name))
		}
	}
	if len(o.Spec.Metrics) == 0 {
		a.metrics = []string{"cpu"} // which the API server fills in
	}
	return a
}

// asV2 returns what [byUtilization] reads of version 1, which scales by the utilization of CPU alone.
func asV2(o *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	ref := o.Spec.ScaleTargetRef
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: o.ObjectMeta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name},
	}}
}

// warnOfAutoscalers says which HorizontalPodAutoscalers cannot scale a workload of peer pods: its pods request no CPU and no memory.
func (v *visiting) warnOfAutoscalers(w *Workload) {
	class := w.template.Spec.RuntimeClassName
	if !v.settings.PeerPods || class == nil || !v.settings.PeerPodConfig.Targets(*class) {
		return
	}
	for _, a := range v.in.autoscalers {
		if a.target == w.identity() {
			v.warn(w, fmt.Sprintf("HorizontalPodAutoscaler %s scales by utilization of %s, and peer pods request none; use averageValue, or a metric of the application", a.name, strings.Join(a.metrics, " and ")))
		}
	}
}
