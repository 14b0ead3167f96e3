package preview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonv1 "github.com/go-json-experiment/json/v1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Admitted is one pod as it would be created.
type Admitted struct {
	Workload *Workload
	Pod      *corev1.Pod
	// Result is what the pipeline decided about the pod when it first saw it.
	Result pipeline.Result
	// Offer is what a VMCatalog has for the pod; nil if none is for its RuntimeClass.
	Offer *catalog.Offer
}

// Admit makes the pods of every workload and takes each through admission. With
// replicas at least 0, that many pods are made of each workload that has a replica
// count. The warnings are about the inputs and about single workloads.
func (p *Preview) Admit(ctx context.Context, replicas int32) (pods []Admitted, warnings []string, err error) {
	if warnings, err = p.AdmitAll(ctx, replicas, func(a *Admitted) { pods = append(pods, *a) }); err != nil {
		return nil, nil, err
	}
	return pods, warnings, nil
}

// AdmitAll is [Preview.Admit] that gives each pod to use. It keeps one pod of each workload and cell at most. If it returns an error, the pods that
// it gave do not count.
func (p *Preview) AdmitAll(ctx context.Context, replicas int32, use func(*Admitted)) (warnings []string, err error) {
	var errs []error
	all := 0
	seen := examples{of: map[place]bool{}}
	warnings, err = p.AdmitEach(ctx, Visit{
		Replicas: replicas,
		Most:     func(*Workload) int { return MaxPods - all },
		Use:      func(a *Admitted) { all++; seen.add(a); use(a) },
		Failed:   func(w *Workload, err error) { errs = append(errs, fmt.Errorf("%s (%s): %w", w.source, w, err)) },
	})
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if err != nil {
		return nil, err
	}
	misfits, err := p.misfits(ctx, seen.pods)
	if err != nil {
		return nil, err
	}
	warnWithoutSeat, err := p.warnWithoutSeat(ctx, seen.pods)
	return slices.Concat(warnings, misfits, warnWithoutSeat), err
}

// Visit says what becomes of the pods of a preview.
type Visit struct {
	// Replicas is how many pods each workload has that has a replica count; its own if that is negative.
	Replicas int32
	// Most returns how many pods a workload may have.
	Most func(*Workload) int
	// Use gets each pod, and Failed each workload whose pods cannot be made. The pods before have been used.
	Use    func(*Admitted)
	Failed func(*Workload, error)
}

// visiting is a [Visit] under way.
type visiting struct {
	*Preview
	Visit
	warnings []string
	warned   map[string]bool
}

func (v *visiting) warn(w *Workload, text string) {
	if text = line(w.String() + ": " + text); !v.warned[text] {
		v.warned[text] = true
		v.warnings = append(v.warnings, text)
	}
}

// AdmitEach is [Preview.Admit] for workloads that may fail one by one. It keeps no pods.
func (p *Preview) AdmitEach(ctx context.Context, of Visit) (warnings []string, err error) {
	v := visiting{Preview: p, Visit: of, warnings: slices.Clone(p.in.Warnings), warned: map[string]bool{}}
	if len(p.in.Unknown) > 0 {
		v.warnings = append(v.warnings, fmt.Sprintf("ignored, because Kubernetes itself has no such kind: %s", p.in.Unknown))
	}
	for i := range p.in.Workloads {
		if err := v.workload(ctx, &p.in.Workloads[i]); err != nil {
			return nil, err
		}
	}
	return v.warnings, nil
}

// workload makes and admits the pods of one workload.
func (v *visiting) workload(ctx context.Context, w *Workload) error {
	most, replicas, nodes := v.Most(w), w.replicasOr(v.Replicas), v.in.Objects.Nodes
	if w.Kind == "DaemonSet" {
		replicas = 0 // it has a pod for each node
	}
	if int(replicas) > most || w.Kind == "DaemonSet" && len(nodes) > most {
		v.Failed(w, errTooMany)
		return nil
	}
	class, found := v.in.runtimeClass(w.template.Spec.RuntimeClassName)
	if !found {
		v.warn(w, fmt.Sprintf("RuntimeClass %q is not in the input; its overhead and scheduling are left out", *w.template.Spec.RuntimeClassName))
	}
	v.warnOfAutoscalers(w)
	some := false
	for pod := range w.pods(replicas, nodes) {
		some = true
		if err := ctx.Err(); err != nil {
			return err
		}
		a, err := v.admitOne(ctx, w, pod, class)
		if err != nil {
			v.Failed(w, err)
			return nil
		}
		for _, text := range a.Result.Warnings {
			v.warn(w, text)
		}
		if text := sizing.Overhead(a.Pod); text != "" {
			v.warn(w, fmt.Sprintf("the RuntimeClass adds %s to each pod (spec.overhead), on top of its share of the node", text))
		}
		v.Use(a)
	}
	if w.Kind == "DaemonSet" && !some {
		v.warn(w, "the input has no node that it may run on, so it has no pods")
	}
	return nil
}

// errTooMany means that a workload has more pods than a preview makes.
var errTooMany = fmt.Errorf("there are more than %d pods in all", MaxPods)

// Example returns the first pod of a workload as it would be created, or nil if it has none. The workload may be one of no pods.
func (p *Preview) Example(ctx context.Context, w *Workload) (*corev1.Pod, error) {
	pod := firstPod(w.pods(1, nil))
	if pod == nil {
		return nil, nil
	}
	class, _ := p.in.runtimeClass(w.template.Spec.RuntimeClassName)
	a, err := p.admitOne(ctx, w, pod, class)
	if err != nil {
		return nil, err
	}
	return a.Pod, nil
}

// admitOne takes one pod of a workload through admission.
func (p *Preview) admitOne(ctx context.Context, w *Workload, pod *corev1.Pod, class *nodev1.RuntimeClass) (*Admitted, error) {
	if err := applyRuntimeClass(pod, class); err != nil {
		return nil, err
	}
	a := &Admitted{Workload: w}
	var err error
	if a.Pod, a.Result, err = p.admit(ctx, pod); err == nil {
		a.Offer = p.offer(a.Pod)
	}
	return a, err
}

// LeftOut is why a pod is left alone that the API server does not send to the webhook.
const LeftOut = "the webhook's registration leaves the pod out"

// admit passes a pod through defaulting, LimitRanges and the pipeline. Where these change what the pipeline has patched, the pipeline sees the
// pod once more, as the API server has it with reinvocationPolicy IfNeeded.
func (p *Preview) admit(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, pipeline.Result, error) {
	p.in.applyLimitRanges(pod)
	if p.settings.Reaches != nil && !p.settings.Reaches(pod) {
		return pod, pipeline.Result{LeftAlone: LeftOut}, nil
	}
	patched, first, err := p.call(ctx, pod)
	if err != nil || !p.in.applyLimitRanges(patched) {
		return patched, first, err
	}
	patched, _, err = p.call(ctx, patched)
	return patched, first, err
}

// call has the pipeline decide about a pod, and applies its patch.
func (p *Preview) call(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, pipeline.Result, error) {
	data, err := json.Marshal(pod)
	if err != nil {
		return nil, pipeline.Result{}, err
	}
	view, err := podpatch.Decode(data)
	if err != nil {
		return nil, pipeline.Result{}, err
	}
	res := p.pipeline.Run(ctx, feature.Request{Namespace: pod.Namespace, Pod: view})
	if len(res.Patch) > 0 {
		pod, err = patched(data, res.Patch)
	}
	return pod, res, err
}

// patched applies a patch with the library that the API server applies it with. To read JSON, [jsonv1] takes less than half the time that
// encoding/json takes, and reads the same.
func patched(data []byte, patch podpatch.Patch) (*corev1.Pod, error) {
	raw, err := patch.JSON()
	if err != nil {
		return nil, err
	}
	var decoded jsonpatch.Patch
	if err := jsonv1.Unmarshal(raw, &decoded); err != nil {
		return nil, err
	}
	out, err := decoded.Apply(data)
	if err != nil {
		return nil, fmt.Errorf("apply the patch: %w", err)
	}
	pod := &corev1.Pod{}
	if err := jsonv1.Unmarshal(out, pod); err != nil {
		return nil, err
	}
	return pod, nil
}

// runtimeClass finds the class of a name. Without a name there is none to find.
func (in *Inputs) runtimeClass(name *string) (*nodev1.RuntimeClass, bool) {
	if name == nil {
		return nil, true
	}
	for i := range in.RuntimeClasses {
		if in.RuntimeClasses[i].Name == *name {
			return &in.RuntimeClasses[i], true
		}
	}
	return nil, false
}

// applyRuntimeClass does what the API server's RuntimeClass admission does: it
// sets the pod's overhead and adds the class's node selector and tolerations.
func applyRuntimeClass(pod *corev1.Pod, class *nodev1.RuntimeClass) error {
	if class == nil {
		return nil
	}
	if class.Overhead != nil {
		if have := pod.Spec.Overhead; len(have) > 0 && !equality.Semantic.DeepEqual(have, class.Overhead.PodFixed) {
			return fmt.Errorf("spec.overhead is not that of RuntimeClass %q; leave it out", class.Name)
		}
		pod.Spec.Overhead = maps.Clone(class.Overhead.PodFixed)
	}
	if class.Scheduling == nil {
		return nil
	}
	for key, value := range class.Scheduling.NodeSelector {
		if have, ok := pod.Spec.NodeSelector[key]; ok && have != value {
			return fmt.Errorf("spec.nodeSelector[%s] is %q, but RuntimeClass %q demands %q", key, have, class.Name, value)
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	for _, t := range class.Scheduling.Tolerations {
		pod.Spec.Tolerations = appendMissing(pod.Spec.Tolerations, t)
	}
	return nil
}

// applyLimitRanges fills in a namespace's default requests and limits, as the API server's defaulting and LimitRanger
// admission do. A limit without a request is the request. Then each LimitRange's defaults apply where there is
// nothing. It reports whether that changed the pod.
func (in *Inputs) applyLimitRanges(pod *corev1.Pod) (changed bool) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			before := len(r.Requests) + len(r.Limits)
			r.Requests = withDefaults(r.Requests, r.Limits)
			for j := range in.Objects.LimitRanges {
				if lr := &in.Objects.LimitRanges[j]; lr.Namespace == pod.Namespace {
					applyLimits(r, lr.Spec.Limits)
				}
			}
			changed = changed || len(r.Requests)+len(r.Limits) > before
		}
	}
	return changed
}

// applyLimits fills in the defaults of a LimitRange.
func applyLimits(r *corev1.ResourceRequirements, items []corev1.LimitRangeItem) {
	for _, item := range items {
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		// The API server defaults the LimitRange itself: a
		// missing default is the max, a missing default
		// request is the default, or else the min.
		limits := withDefaults(maps.Clone(item.Default), item.Max)
		requests := withDefaults(withDefaults(maps.Clone(item.DefaultRequest), limits), item.Min)
		r.Limits = withDefaults(r.Limits, limits)
		r.Requests = withDefaults(r.Requests, requests)
	}
}

// withDefaults returns list with the entries of defaults that it lacks.
func withDefaults(list, defaults corev1.ResourceList) corev1.ResourceList {
	for name, q := range defaults {
		if _, ok := list[name]; ok {
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[name] = q
	}
	return list
}
