package admit

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Without limits of its own a template keeps those of containers, and drops one that is below the request. Where a LimitRange demands a
// limit of a container or of the pod, it grows instead, so that no node's pod stays without its size.
func TestLimitRangeDemandsALimit(t *testing.T) {
	for name, tc := range map[string]struct {
		item  *corev1.LimitRangeItem
		node  string // what it has of memory
		sized podpatch.Quantity
		limit podpatch.Quantity // "" is none
	}{
		"nothing demands one":             {node: "memory=100Gi", sized: "5Gi"},
		"a ratio, on a small node":        {item: &corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: testkit.ResourceList("memory=20")}, node: "memory=10Gi", sized: "512Mi", limit: "1Gi"},
		"a ratio, on a large node":        {item: &corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: testkit.ResourceList("memory=20")}, node: "memory=100Gi", sized: "5Gi", limit: "5Gi"},
		"a ratio of the pod":              {item: &corev1.LimitRangeItem{Type: corev1.LimitTypePod, MaxLimitRequestRatio: testkit.ResourceList("memory=20")}, node: "memory=100Gi", sized: "5Gi", limit: "5Gi"},
		"a maximum of the pod":            {item: &corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: testkit.ResourceList("memory=8Gi")}, node: "memory=100Gi", sized: "5Gi", limit: "5Gi"},
		"a maximum that is too small":     {item: &corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: testkit.ResourceList("memory=4Gi")}, node: "memory=100Gi", sized: "128Mi", limit: "1Gi"},
		"a ratio of another resource":     {item: &corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: testkit.ResourceList("cpu=20")}, node: "memory=100Gi", sized: "5Gi"},
		"a maximum of claims for volumes": {item: &corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Max: testkit.ResourceList("memory=8Gi")}, node: "memory=100Gi", sized: "5Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			c := static()
			c.objects.Nodes[0].Status.Allocatable = testkit.ResourceList(tc.node)
			c.objects.Templates[0] = template(func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) {
				s.CPUPercentage, s.MemoryPercentage, s.Limits = nil, new(int32(5)), flexdaemonsets.LimitsNone
			})
			if tc.item != nil {
				c.objects.LimitRanges = []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{*tc.item}}}}
			}
			pod := agent(t, func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: testkit.ResourceList("memory=128Mi"), Limits: testkit.ResourceList("memory=1Gi")}
			})
			d, err := (&Feature{World: c.ready()}).Decide(t.Context(), feature.Request{Namespace: "default", Pod: pod})
			if err != nil || d.Pod == nil {
				t.Fatal(err)
			}
			got := d.Pod.Spec.Containers[0].Resources
			if got.Requests["memory"] != tc.sized || got.Limits["memory"] != tc.limit {
				t.Errorf("it requests %s and has a limit of %q; want %s and %q (%v)", got.Requests["memory"], got.Limits["memory"], tc.sized, tc.limit, d.Warnings)
			}
		})
	}
}

// A ResourceQuota demands a limit of the pods that its scopes cover, and of no others.
func TestQuotaScopes(t *testing.T) {
	selector := func(name corev1.ResourceQuotaScope, operator corev1.ScopeSelectorOperator, values ...string) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: name, Operator: operator, Values: values}}}}
	}
	scopes := func(names ...corev1.ResourceQuotaScope) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{Scopes: names}
	}
	cpu, storage := &sizing.Template{Shares: []sizing.Share{{Resource: corev1.ResourceCPU}}}, &sizing.Template{Shares: []sizing.Share{{Resource: corev1.ResourceEphemeralStorage}}}
	const priority = corev1.ResourceQuotaScopePriorityClass
	for name, tc := range map[string]struct {
		quota    corev1.ResourceQuotaSpec
		template *sizing.Template // sizes CPU, unless another is given
		requests string
		class    string
		want     bool
	}{
		"no scope":                              {want: true},
		"pods with a deadline":                  {quota: scopes(corev1.ResourceQuotaScopeTerminating)},
		"pods without a deadline":               {quota: scopes(corev1.ResourceQuotaScopeNotTerminating), want: true},
		"both":                                  {quota: scopes(corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeTerminating)},
		"volumes":                               {quota: scopes(corev1.ResourceQuotaScopeVolumeAttributesClass)},
		"a scope of a later Kubernetes":         {quota: scopes("Later"), want: true},
		"best effort, and it is sized":          {quota: scopes(corev1.ResourceQuotaScopeBestEffort)},
		"best effort, and only storage is":      {quota: scopes(corev1.ResourceQuotaScopeBestEffort), template: storage, want: true},
		"best effort, but it requests memory":   {quota: scopes(corev1.ResourceQuotaScopeBestEffort), template: storage, requests: "memory=1Gi"},
		"best effort, and it requests 0":        {quota: scopes(corev1.ResourceQuotaScopeBestEffort), template: storage, requests: "memory=0", want: true},
		"not best effort":                       {quota: scopes(corev1.ResourceQuotaScopeNotBestEffort), want: true},
		"not best effort, and only storage is":  {quota: scopes(corev1.ResourceQuotaScopeNotBestEffort), template: storage},
		"a class, and it has one":               {quota: scopes(priority), class: "high", want: true},
		"a class, and it has none":              {quota: scopes(priority)},
		"that class":                            {quota: selector(priority, corev1.ScopeSelectorOpIn, "high"), class: "high", want: true},
		"that class, and it has another":        {quota: selector(priority, corev1.ScopeSelectorOpIn, "high"), class: "low"},
		"that class, and it has none":           {quota: selector(priority, corev1.ScopeSelectorOpIn, "")},
		"not that class":                        {quota: selector(priority, corev1.ScopeSelectorOpNotIn, "high"), class: "high"},
		"not that class, and it has another":    {quota: selector(priority, corev1.ScopeSelectorOpNotIn, "high"), class: "low", want: true},
		"not that class, and it has none":       {quota: selector(priority, corev1.ScopeSelectorOpNotIn, "high"), want: true},
		"no class":                              {quota: selector(priority, corev1.ScopeSelectorOpDoesNotExist), want: true},
		"no class, and it has one":              {quota: selector(priority, corev1.ScopeSelectorOpDoesNotExist), class: "high"},
		"a scope by a selector":                 {quota: selector(corev1.ResourceQuotaScopeTerminating, corev1.ScopeSelectorOpExists)},
		"a class by a selector without a value": {quota: selector(priority, corev1.ScopeSelectorOpExists), class: "high", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.template == nil {
				tc.template = cpu
			}
			pod := agent(t, func(p *corev1.Pod) {
				p.Spec.PriorityClassName = tc.class
				p.Spec.Containers[0].Resources.Requests = testkit.ResourceList(tc.requests)
			})
			tc.quota.Hard = testkit.ResourceList("limits.cpu=10")
			got := limited(tc.template, pod, nil, []corev1.ResourceQuota{{Spec: tc.quota}})
			if slices.Contains(got, corev1.ResourceCPU) != tc.want {
				t.Errorf("limits are demanded of %v", got)
			}
		})
	}
}
