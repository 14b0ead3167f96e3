package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/apisupport"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Report is the state of a cluster, or of one namespace's workloads in it.
type Report struct {
	// Stowage is the state of Stowage itself; nil where nothing of it is installed.
	Stowage *Health `json:"stowage,omitempty"`
	// Paused are the namespaces in which Stowage changes and evicts no pods that exist, or "*" for all.
	Paused []string `json:"paused,omitempty"`
	// Gate is nil where no pod waits at the gate, and no template has it.
	Gate      *Gate      `json:"gate,omitempty"`
	Problems  []Problem  `json:"problems"`
	Workloads []Workload `json:"workloads"`
	Policies  []Policy   `json:"policies,omitempty"`
	// ScaleDowns are the policies of scale-downs.
	ScaleDowns []ScaleDown `json:"scaleDowns,omitempty"`
	Templates  []Template  `json:"templates"`
	// Plans compare what Karpenter plans for DaemonSets with their sizes, where it makes nodes.
	Plans []Plan `json:"plans,omitempty"`
	VMs   *VMs   `json:"vms,omitempty"` // nil if nodes may not be listed
	// VMTypes are the VMs of peer pods by namespace and type, and VMsInAll their sum, where there are VMCatalogs.
	VMTypes  []VMUse `json:"vmTypes,omitempty"`
	VMsInAll *VMUse  `json:"vmsInAll,omitempty"`
	// Warnings are about what could not be looked at.
	Warnings []string `json:"warnings,omitempty"`

	at           time.Time
	namespace    string   // that it is about, or "" for all
	distributors []string // the PodDistributors, as kind/name
	listed       []string // what there is of the kinds that were listed, as kind/name
	named        bool     // only what was named is shown
	hidden       []string // what is left out because the user may not read it
}

// Workload is what has a strategy, with the pods of all its revisions.
type Workload struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Policy    string `json:"policy"`
	Replicas  int64  `json:"replicas"`
	Pools     []Pool `json:"pools,omitempty"`
	// Unseated is how many pods exist that have no seat and should have one.
	Unseated int64 `json:"unseated"`
	// Note says why there is nothing to compare, or what else there is to know.
	Note string `json:"note,omitempty"`
	OK   bool   `json:"ok"`

	about    []string           // what it consists of, as kind/name
	asksFor  bool               // its pods come through the webhook
	strategy *sequence.Strategy // by which its pods are divided now, or nil
}

// Pool is one of a workload's pools.
type Pool struct {
	Name    string  `json:"name"`
	Labels  string  `json:"labels"`
	Share   float64 `json:"share"` // of the replicas, exactly
	Target  int64   `json:"target"`
	Current int64   `json:"current"`
	Ready   int64   `json:"ready"`
	Pending int64   `json:"pending"` // not on a node yet
	// Outside are the pods with a seat in the pool whose node, or node selector while they wait, does not have the pool's
	// labels. They are not in Current.
	Outside int64 `json:"outside,omitempty"`
	// Removed says that the policy does not have the pool any more.
	Removed bool `json:"removed,omitempty"`
	// Difference is Current without Target.
	Difference int64 `json:"difference"`
	// Domains are those of the pool, if its policy divides it over some.
	Domains []Domain `json:"domains,omitempty"`
}

// Domain is a domain of a pool, such as a zone.
type Domain struct {
	Name    string `json:"name"`
	Current int64  `json:"current"`
	Target  int64  `json:"target"`
}

// domains are the counts of a pool's domains as one text. A target stands beside the count if it differs.
func (p *Pool) domains() string {
	out := make([]string, len(p.Domains))
	for i, in := range p.Domains {
		if out[i] = fmt.Sprintf("%s %d", in.Name, in.Current); in.Current != in.Target {
			out[i] += fmt.Sprintf(" of %d", in.Target)
		}
	}
	return cmp.Or(strings.Join(out, ", "), "-")
}

// Template is a FlexDaemonsetTemplate. The counts are those of its status.
type Template struct {
	Name         string `json:"name"`
	UpdatePolicy string `json:"updatePolicy"`
	DaemonSets   int32  `json:"daemonSets"`
	Nodes        *int   `json:"nodes,omitempty"` // nil if pods may not be listed
	Pods         int32  `json:"pods"`
	OffSize      int32  `json:"offSize"`
	Note         string `json:"note,omitempty"`
	OK           bool   `json:"ok"`

	invalid string // why it is, if so
	// offSize is why pods have another size, as the condition UpToDate says.
	offSize stowage.ConditionReason
	about   []string // its DaemonSets in the namespaces of the report, as kind/name
}

// Plan is the size that Karpenter plans for the pod of a DaemonSet, and the size on a class of nodes.
type Plan struct {
	Namespace     string `json:"namespace"`
	DaemonSet     string `json:"daemonSet"`
	NodeClass     string `json:"nodeClass"` // instance type
	Nodes         int    `json:"nodes"`
	PlannedCPU    string `json:"plannedCPU"`
	CPU           string `json:"cpu"`
	PlannedMemory string `json:"plannedMemory"`
	Memory        string `json:"memory"`
	// OK says that the size differs from the plan by at most a tenth.
	OK bool `json:"ok"`
}

// VMs are the peer-pod VMs of all nodes.
type VMs struct {
	Resource string    `json:"resource"`
	Nodes    []NodeVMs `json:"nodes"`
	Capacity int64     `json:"capacity"`
	Used     int64     `json:"used"`
	Free     int64     `json:"free"`
}

// NodeVMs are the VMs of one node.
type NodeVMs struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Used     int64  `json:"used"`
	Free     int64  `json:"free"`
	OK       bool   `json:"ok"`
}

// notOK counts the workloads, templates and nodes that are not as they should be.
func (r *Report) notOK() (workloads, templates, nodes int) {
	if r.VMs != nil {
		nodes = countNot(r.VMs.Nodes, func(n NodeVMs) bool { return n.OK })
	}
	return countNot(r.Workloads, func(w Workload) bool { return w.OK }), countNot(r.Templates, func(t Template) bool { return t.OK }), nodes
}

// countNot counts the items for which a condition does not hold.
func countNot[T any](items []T, condition func(T) bool) int {
	return len(slices.DeleteFunc(slices.Clone(items), condition))
}

// OK reports whether everything is as it should be.
func (r *Report) OK() bool {
	workloads, templates, nodes := r.notOK()
	return len(r.Problems)+workloads+templates+nodes == 0
}

// Verdict says what is not as it should be.
func (r *Report) Verdict() string {
	var parts []string
	count := func(n int, noun string) {
		if n == 1 {
			parts = append(parts, "1 "+noun)
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, noun))
		}
	}
	workloads, templates, nodes := r.notOK()
	count(len(r.Problems), "problem")
	count(workloads, "workload")
	count(templates, "template")
	count(nodes, "node")
	if len(parts) == 0 {
		return "Everything is as it should be."
	}
	return "Not as it should be: " + strings.Join(parts, ", ") + "."
}

// Only leaves what is named, written as kind/name, the kind as kubectl takes it. A problem stays if the object that has it is named,
// or one that it concerns. A Deployment, for example, has the problems of its pods. Only returns the names that
// there are not.
func (r *Report) Only(names []string) (unknown []string) {
	found := map[string]bool{}
	named := func(objects ...string) (any bool) {
		for _, object := range objects {
			kind, of, _ := strings.Cut(object, "/")
			for _, name := range names {
				if k, n, _ := strings.Cut(name, "/"); n == of && world.SameKind(kind, k) {
					found[name], any = true, true
				}
			}
		}
		return any
	}
	r.Workloads = slices.DeleteFunc(r.Workloads, func(w Workload) bool { return !named(append(w.about, w.Kind+"/"+w.Name)...) })
	r.Problems = slices.DeleteFunc(r.Problems, func(p Problem) bool {
		return p.Namespace != "" && p.Namespace != r.namespace || !named(append(p.about, p.Object)...)
	})
	r.Templates = slices.DeleteFunc(r.Templates, func(t Template) bool { return !named(append(t.about, "FlexDaemonsetTemplate/"+t.Name)...) })
	r.Policies = slices.DeleteFunc(r.Policies, func(p Policy) bool { return !named(p.Kind + "/" + p.Name) })
	r.ScaleDowns = slices.DeleteFunc(r.ScaleDowns, func(p ScaleDown) bool { return !named(p.Kind + "/" + p.Name) })
	r.Plans = slices.DeleteFunc(r.Plans, func(p Plan) bool { return !named("DaemonSet/" + p.DaemonSet) })
	named(r.distributors...)
	r.VMs, r.named = nil, true
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return found[name] })
}

// ErrNotFound is returned for a workload or node that does not exist.
var ErrNotFound = errors.New("not found")

// ErrNoNamespace is returned by [Inspector.Status] for a namespace that does not exist.
var ErrNoNamespace = errors.New("there is no such namespace")

// Status looks at the workloads of a namespace, or of all of them if it is empty, and at
// all templates and nodes.
func (i *Inspector) Status(ctx context.Context, namespace string) (*Report, error) {
	r := &Report{Workloads: []Workload{}, Templates: []Template{}, Problems: []Problem{}, at: i.Clock.Now(), namespace: namespace}
	s, err := i.snapshot(ctx, namespace, r)
	if err != nil {
		return nil, err
	}
	r.listed = s.others
	for _, w := range s.objects.Workloads {
		r.listed = append(r.listed, w.Kind+"/"+w.Name)
	}
	registration, err := i.registration(ctx, s, r)
	if err != nil {
		return nil, err
	}
	if err := i.health(ctx, registration, r); err != nil {
		return nil, err
	}
	if err := i.parts(registration, s, r); err != nil {
		return nil, err
	}
	r.Paused = i.paused(s.objects.Namespaces)
	s.noMoves = i.Paused || slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.stopsMoves() })
	own := len(r.Problems)
	if err := i.gate(ctx, s, registration, r); err != nil {
		return nil, err
	}
	if err := i.workloads(ctx, s, r); err != nil {
		return nil, err
	}
	s.policyReports(r)
	i.templateReports(ctx, s, r)
	if err := i.plans(ctx, s, r); err != nil {
		return nil, err
	}
	if err := i.missingAPIs(r); err != nil {
		return nil, err
	}
	if err := r.unlessHidden("the VMs of nodes", i.vms(ctx, s, r)); err != nil { // nodes may be hidden from who looks at one namespace
		return nil, err
	}
	if err := r.unlessHidden("the VMCatalogs", i.catalogs(ctx, s, namespace, r)); err != nil {
		return nil, err
	}
	if err := r.unlessHidden("the policies of scale-downs", i.scaleDowns(ctx, namespace, r)); err != nil {
		return nil, err
	}
	if err := i.policyProblems(ctx, s, r); err != nil {
		return nil, err
	}
	i.podProblems(ctx, s, r)
	i.refusedProblems(s, r)
	if i.Heard != nil {
		i.asks(ctx, registration, r)
	} else {
		i.answerProblem(s, registration, r)
	}
	i.needsWebhook(s, registration, r)
	r.sortProblems(own)
	r.afterAnswers()
	if len(r.hidden) > 0 {
		r.Warnings = append([]string{"what you may not read is left out: " + strings.Join(r.hidden, ", ") + "; ask for the ClusterRole stowage-inspect"}, r.Warnings...)
	}
	return r, nil
}

// needsWebhook adds that there is no registration, where there are policies that need it.
func (i *Inspector) needsWebhook(s *snapshot, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) {
	policies := len(r.Workloads) + len(r.Templates) + len(r.Policies) + len(s.objects.PodDistributors)
	if policies == 0 || registration != nil || s.hiddenRegistration || slices.ContainsFunc(r.Problems, toldAbsent) {
		return
	}
	reason := finding.NotRegistered
	if r.Stowage.withoutWebhook() {
		reason = finding.WithoutWebhook
	}
	r.problem(i.ofRegistration(reason, finding.Values{Count: int64(policies)}))
}

// afterAnswers has nobody roll out while the webhook does not answer, because the new pods would get no seat. Nor has it anybody wait for evictions while
// Stowage makes none.
func (r *Report) afterAnswers() {
	noWebhook := slices.ContainsFunc(r.Problems, func(p Problem) bool {
		return p.Reason == finding.NoAnswer || toldAbsent(p)
	})
	noMoves := slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.stopsMoves() })
	if !noWebhook && !noMoves {
		return
	}
	for n := range r.Problems {
		p := &r.Problems[n]
		p.of.NoWebhook, p.of.NoMoves = noWebhook, noMoves
		p.Action = p.of.Remedy()
	}
}

// parts adds what is missing of Stowage, and which of its kinds lack fields.
func (i *Inspector) parts(registration *admissionregistrationv1.MutatingWebhookConfiguration, s *snapshot, r *Report) error {
	i.installed(registration == nil && !s.hiddenRegistration, s.hiddenRegistration, r)
	return i.olderProblems(r)
}

// NotInstalled reports whether nothing of Stowage is in the cluster.
func (r *Report) NotInstalled() bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Reason == finding.NotInstalled })
}

// toldAbsent reports whether a problem is that the webhook's registration does not exist.
func toldAbsent(p Problem) bool {
	return p.Reason == finding.NotRegistered || p.Reason == finding.WithoutWebhook || p.Reason == finding.NotInstalled
}

// missingAPIs warns of what the API server lacks, where there are templates.
func (i *Inspector) missingAPIs(r *Report) error {
	if len(r.Templates) == 0 || i.Discovery == nil {
		return nil
	}
	server, err := apisupport.Discover(i.Discovery)
	if err != nil {
		return err
	}
	r.Warnings = append(r.Warnings, server.Missing()...)
	return nil
}

// hide notes that something is left out because the user may not read it.
func (r *Report) hide(what string) {
	if !slices.Contains(r.hidden, what) {
		r.hidden = append(r.hidden, what)
	}
}

// unlessHidden returns an error about something. What the user may not read is left out, and is no error.
func (r *Report) unlessHidden(what string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		r.hide(what)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// registration reads the webhook's registration; it is nil where there is none and where it may not be read.
func (i *Inspector) registration(ctx context.Context, s *snapshot, r *Report) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	var registration admissionregistrationv1.MutatingWebhookConfiguration
	err := i.Client.Get(ctx, client.ObjectKey{Name: i.Registration}, &registration)
	switch {
	case apierrors.IsForbidden(err):
		s.hiddenRegistration = true
		r.hide("the registration of the webhook")
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the webhook's registration: %w", err)
	}
	s.registration = selection.Compile(&registration)
	if err := s.registration.Err(); err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("what the webhook's registration leaves out is not known: %v", err))
	}
	return &registration, nil
}
