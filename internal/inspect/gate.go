package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/world"
)

// Gate is what there is of the scheduling gate stowage.dev/seat in the report's namespaces.
type Gate struct {
	// Pods is how many pods wait at the gate, and Oldest when the first of them was created.
	Pods   int        `json:"pods"`
	Oldest *time.Time `json:"oldest,omitempty"`
	// Templates are the objects whose pod template has the gate, as namespace/kind/name. Without Stowage, nobody removes it.
	Templates []string `json:"templates,omitempty"`
}

// Level is what becomes of a pod that no replica sees.
type Level string

// The levels.
const (
	LevelIgnore Level = "Ignore" // it is created as it was written
	LevelFail   Level = "Fail"   // it is refused
	LevelGate   Level = "Gate"   // where its namespace or the pod asks for it, it waits for its seat
)

// gateBinding is the name of the binding for namespaces in config/gate and the chart.
const gateBinding = "stowage-gate-namespaces"

// patience is how long a pod waits at the gate before that is a problem.
const patience = time.Minute

func hasGate(spec *corev1.PodSpec) bool {
	return (&podpatch.Pod{Spec: podpatch.Spec{SchedulingGates: spec.SchedulingGates}}).Gated(stowage.SeatGate)
}

// noteGate keeps an object whose pod template has the gate. Of what another object made, that one is kept.
func (s *snapshot) noteGate(kind string, obj client.Object, spec *corev1.PodSpec) {
	if !hasGate(spec) {
		return
	}
	name := obj.GetName()
	if c := metav1.GetControllerOfNoCopy(obj); c != nil {
		kind, name = c.Kind, c.Name
	}
	s.gateTemplates = append(s.gateTemplates, obj.GetNamespace()+"/"+finding.Object(strings.ToLower(kind), name))
}

// listJobs lists Jobs and CronJobs, for their settings and the gate.
func (i *Inspector) listJobs(ctx context.Context, s *snapshot, namespace string) error {
	in := client.InNamespace(namespace)
	return cmp.Or(
		each(ctx, i, &batchv1.CronJobList{}, func(o *batchv1.CronJob) {
			s.note(batchv1.SchemeGroupVersion.WithKind("CronJob"), o, &o.Spec.JobTemplate.Spec.Template)
			s.noteGate("CronJob", o, &o.Spec.JobTemplate.Spec.Template.Spec)
			s.others = append(s.others, "CronJob/"+o.Name)
		}, in),
		each(ctx, i, &batchv1.JobList{}, func(o *batchv1.Job) {
			s.others = append(s.others, "Job/"+o.Name)
			if o.Status.CompletionTime == nil && !slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
				return c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue
			}) {
				s.note(batchv1.SchemeGroupVersion.WithKind("Job"), o, &o.Spec.Template)
				s.noteGate("Job", o, &o.Spec.Template.Spec)
				w := world.New(batchv1.SchemeGroupVersion.WithKind("Job"), o)
				w.Replicas = asks(o)
				s.jobs = append(s.jobs, job{Workload: w, template: createdBy(&o.Spec.Template)})
			}
		}, in),
	)
}

// gate adds what there is of the gate, and the level.
func (i *Inspector) gate(ctx context.Context, s *snapshot, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) error {
	g := &Gate{Templates: slices.Compact(slices.Sorted(slices.Values(s.gateTemplates)))}
	var first *corev1.Pod
	for _, pod := range s.pods {
		if pod.Spec.NodeName != "" || !hasGate(&pod.Spec) || !s.Covers(pod.Namespace) {
			continue
		}
		g.Pods++
		if first == nil || pod.CreationTimestamp.Before(&first.CreationTimestamp) {
			first = pod
		}
	}
	if first != nil {
		g.Oldest = &first.CreationTimestamp.Time
		if age := i.Clock.Since(*g.Oldest); age > patience {
			values := finding.Values{Text: duration.HumanDuration(age), Count: int64(g.Pods) - 1}
			r.problem(finding.Finding{Reason: finding.PodsGated, Namespace: first.Namespace, Kind: "Pod", Name: first.Name, Values: values})
		}
	}
	if g.Pods > 0 || len(g.Templates) > 0 {
		r.Gate = g
	}
	return i.level(ctx, registration, r)
}

// level fills in what becomes of a pod that no replica sees.
func (i *Inspector) level(ctx context.Context, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) error {
	if r.Stowage == nil || registration == nil || len(registration.Webhooks) == 0 {
		return nil
	}
	r.Stowage.Level = Level(ptr.Deref(registration.Webhooks[0].FailurePolicy, admissionregistrationv1.Fail))
	err := i.Client.Get(ctx, client.ObjectKey{Name: gateBinding}, &admissionregistrationv1.MutatingAdmissionPolicyBinding{})
	switch {
	case err == nil:
		r.Stowage.Level = LevelGate
	case apierrors.IsForbidden(err):
		r.hide("whether pods get the gate")
	case !absent(err):
		return fmt.Errorf("the binding %s: %w", gateBinding, err)
	}
	return nil
}

// text says what waits at the gate, and what names it.
func (g *Gate) text(l Layout, now time.Time) string {
	var b strings.Builder
	if g.Pods > 0 {
		fmt.Fprintf(&b, "%d pod(s) wait at the gate %s, the oldest for %s.\n", g.Pods, stowage.SeatGate, duration.HumanDuration(now.Sub(*g.Oldest)))
	}
	if n := len(g.Templates); n > 0 {
		shown, more := g.Templates, ""
		if n > mostGateTemplates && !l.All {
			shown, more = shown[:mostGateTemplates], fmt.Sprintf(" and %d more (--all)", n-mostGateTemplates)
		}
		b.WriteString(l.wrap(fmt.Sprintf("The gate is in %d pod template(s), whose pods would wait for ever without Stowage: %s%s.", n, strings.Join(shown, ", "), more), "  ") + "\n")
	}
	return b.String()
}

// mostGateTemplates is how many objects are named whose template has the gate.
const mostGateTemplates = 10
