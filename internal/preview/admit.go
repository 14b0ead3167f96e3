package preview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Admitted is one pod as it would be created.
type Admitted struct {
	Workload *Workload
	Pod      *corev1.Pod
	// Result is what the pipeline decided about the pod when it first saw it.
	Result pipeline.Result
}

// Admit makes the pods of every workload and takes each through admission. With
// replicas at least 0, that many pods are made of each workload that has a replica
// count. The warnings are about the inputs and about single workloads.
func (p *Preview) Admit(ctx context.Context, replicas int32) (pods []Admitted, warnings []string, err error) {
	var errs []error
	all := 0
	warnings, err = p.AdmitEach(ctx, Visit{
		Replicas: replicas,
		Most:     func(*Workload) int { return MaxPods - all },
		Use:      func(a *Admitted) { pods, all = append(pods, *a), all+1 },
		Failed:   func(w *Workload, err error) { errs = append(errs, fmt.Errorf("%s (%s): %w", w.source, w, err)) },
	})
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	if err != nil {
		return nil, nil, err
	}
	texts, err := p.misfits(ctx, pods)
	return pods, append(warnings, texts...), err
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

// AdmitEach is [Preview.Admit] for many pods: it keeps none.
func (p *Preview) AdmitEach(ctx context.Context, v Visit) (warnings []string, err error) {
	in := p.in
	warnings = slices.Clone(in.Warnings)
	if len(in.Unknown) > 0 {
		warnings = append(warnings, fmt.Sprintf("ignored, because Kubernetes itself has no such kind: %s", in.Unknown))
	}
	warned := map[string]bool{}
	warn := func(w *Workload, text string) {
		if text = w.String() + ": " + text; !warned[text] {
			warned[text] = true
			warnings = append(warnings, text)
		}
	}
	for i := range in.Workloads {
		w := &in.Workloads[i]
		most, replicas := v.Most(w), w.replicasOr(v.Replicas)
		if w.Kind == "DaemonSet" {
			replicas = 0 // it has a pod for each node
		}
		if int(replicas) > most || w.Kind == "DaemonSet" && len(in.Objects.Nodes) > most {
			v.Failed(w, errTooMany)
			continue
		}
		made := w.pods(replicas, in.Objects.Nodes)
		if w.Kind == "DaemonSet" && len(made) == 0 {
			warn(w, "the input has no node that it may run on, so it has no pods")
		}
		class, found := in.runtimeClass(w.template.Spec.RuntimeClassName)
		if !found {
			warn(w, fmt.Sprintf("RuntimeClass %q is not in the input; its overhead and scheduling are left out", *w.template.Spec.RuntimeClassName))
		}
		for _, pod := range made {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			a, err := p.admitOne(ctx, w, pod, class)
			if err != nil {
				v.Failed(w, err)
				break
			}
			for _, text := range a.Result.Warnings {
				warn(w, text)
			}
			v.Use(a)
		}
	}
	return warnings, nil
}

// errTooMany means that a workload has more pods than a preview makes.
var errTooMany = fmt.Errorf("there are more than %d pods in all", MaxPods)

// Example returns the first pod of a workload as it would be created, or nil if it has none. The workload may be one of no pods.
func (p *Preview) Example(ctx context.Context, w *Workload) (*corev1.Pod, error) {
	made := w.pods(1, nil)
	if len(made) == 0 {
		return nil, nil
	}
	class, _ := p.in.runtimeClass(w.template.Spec.RuntimeClassName)
	a, err := p.admitOne(ctx, w, made[0], class)
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
	a.Pod, a.Result, err = p.admit(ctx, pod)
	return a, err
}

// admit passes a pod through defaulting, LimitRanges and the pipeline. Where the pipeline changed it, it does so once
// more, as the API server does with reinvocationPolicy IfNeeded.
func (p *Preview) admit(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, pipeline.Result, error) {
	var first pipeline.Result
	if p.settings.Reaches != nil && !p.settings.Reaches(pod) {
		p.in.applyLimitRanges(pod)
		return pod, pipeline.Result{LeftAlone: "the webhook's registration leaves the pod out"}, nil
	}
	for pass := range 2 {
		p.in.applyLimitRanges(pod)
		data, err := json.Marshal(pod)
		if err != nil {
			return nil, first, err
		}
		view, err := podpatch.Decode(data)
		if err != nil {
			return nil, first, err
		}
		res := p.pipeline.Run(ctx, feature.Request{Namespace: pod.Namespace, Pod: view})
		if pass == 0 {
			first = res
		}
		if len(res.Patch) == 0 {
			break
		}
		if pod, err = patched(data, res.Patch); err != nil {
			return nil, first, err
		}
	}
	return pod, first, nil
}

// patched applies a patch with the library that the API server applies it with.
func patched(data []byte, patch podpatch.Patch) (*corev1.Pod, error) {
	raw, err := patch.JSON()
	if err != nil {
		return nil, err
	}
	decoded, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, err
	}
	out, err := decoded.Apply(data)
	if err != nil {
		return nil, fmt.Errorf("apply the patch: %w", err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(out, pod); err != nil {
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
// nothing.
func (in *Inputs) applyLimitRanges(pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			r.Requests = withDefaults(r.Requests, r.Limits)
			for j := range in.Objects.LimitRanges {
				lr := &in.Objects.LimitRanges[j]
				if lr.Namespace != pod.Namespace {
					continue
				}
				for _, item := range lr.Spec.Limits {
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
		}
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
