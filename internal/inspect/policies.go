package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// Policy is a SpreadPolicy or a ClusterSpreadPolicy. The counts are those of its status, over all namespaces that it selects.
type Policy struct {
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	Mode       string `json:"mode"`
	Workloads  int32  `json:"workloads"`
	Pods       int32  `json:"pods"`
	Balanced   string `json:"balanced,omitempty"`
	NotReached int32  `json:"notReached,omitempty"`
	Shadowed   int32  `json:"shadowed,omitempty"`
	// Audit is what the policy would do.
	Audit *stowage.PolicyAuditStatus `json:"audit,omitempty"`
	Pools []stowage.PolicyPoolStatus `json:"pools,omitempty"`
	Note  string                     `json:"note,omitempty"`
}

// policyReports adds the policies, with what is wrong with them.
func (s *snapshot) policyReports(r *Report) {
	for _, p := range s.objects.Policies.Namespaced {
		s.policyReport(policy.FromSpreadPolicy(p), &p.Status, r)
	}
	for _, p := range s.objects.Policies.Cluster {
		selecting := policy.FromClusterSpreadPolicy(p)
		if r.namespace != "" && !slices.ContainsFunc(s.objects.Namespaces, func(ns corev1.Namespace) bool { return selecting.SelectsNamespace(ns.Name, ns.Labels) }) {
			continue // it concerns others
		}
		s.policyReport(selecting, &p.Status, r)
	}
	slices.SortFunc(r.Policies, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (s *snapshot) policyReport(p *policy.SpreadPolicy, st *stowage.SpreadPolicyStatus, r *Report) {
	out := Policy{
		Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Mode: string(p.Spec.Mode), Workloads: st.Workloads, Pods: st.Pods, Balanced: st.Balanced,
		NotReached: st.NotReached, Shadowed: st.Shadowed, Audit: st.Audit, Pools: st.Pools,
	}
	compiled := policy.CompilePolicy(p)
	add := func(reason finding.Reason, values finding.Values) {
		r.problem(finding.Finding{Reason: reason, Namespace: p.Namespace, Kind: p.Kind, Name: p.Name, Values: values})
	}
	if compiled.Err != nil {
		add(finding.InvalidPolicy, finding.Values{Text: oneLine(compiled.Err)})
	} else {
		for _, v := range s.missingClasses(&compiled) {
			add(finding.ClassMissing, v)
		}
	}
	unreadable := finding.OfUnreadable(st.Unreadable)
	if unreadable.Objects != "" && st.ObservedGeneration == p.Generation {
		add(finding.KindNotReadable, unreadable)
	}
	for i := range p.Spec.Pools {
		if nodes := policy.NodesOf(&p.Spec.Pools[i]); s.nodes != nil && !s.nodes.have(nodes) {
			out.Note = fmt.Sprintf("no node has the labels of pool %s (%s)", p.Spec.Pools[i].Name, nodes)
		}
	}
	var notes []string
	note := func(ok bool, format string, args ...any) {
		if ok {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	note(out.Note != "", "%s", out.Note)
	if c := meta.FindStatusCondition(st.Conditions, stowage.ConditionStalled); c != nil && c.Reason == string(stowage.ReasonTooMany) {
		note(c.ObservedGeneration == p.Generation, "%s", c.Message)
	}
	note(st.ObservedGeneration != p.Generation, "the leader has not counted its workloads since its last change")
	note(st.ObservedGeneration == p.Generation && st.Workloads == 0 && unreadable.Objects == "", "%s", s.selectsNothing(p))
	for _, u := range st.Unreadable {
		note(len(u.Lacks) == 0, "the API server has no kind %s of %s with a scale subresource", u.Kind, cmp.Or(u.Group, "the core group"))
	}
	if a := st.Audit; a != nil {
		note(true, "Enforce would move %d of %d pods at their next rollout", a.InOtherPool+a.InOtherDomain+a.Outside, a.Pods)
		note(a.Workloads < st.Workloads, "%d of %d workloads were looked at", a.Workloads, st.Workloads)
	}
	note(st.Shadowed > 0, "%d of its workloads are divided by other sources, such as %s", st.Shadowed, st.ShadowedBy)
	note(st.NotReached > 0, "the webhook leaves %d of its workloads alone", st.NotReached)
	note(st.KeptByVolume > 0, "%d workload(s) have pods that stay where their volumes are", st.KeptByVolume)
	note(st.Unsuitable > 0, "%d of its workloads cannot use each pool, such as %s", st.Unsuitable, st.UnsuitableExample)
	for _, pool := range st.Pools {
		share, err := strconv.ParseFloat(pool.Share, 64)
		more := float64(pool.Desired) - share
		note(err == nil && more >= 1, "rounding gives pool %s %.1f pods more than its share", pool.Name, more)
	}
	note(st.WithoutSeat > 0, "%d pod(s) have no seat until the next rollout", st.WithoutSeat)
	note(st.ChooseNodes > 0, "%d pod(s) have no seat, because they choose their nodes themselves", st.ChooseNodes)
	out.Note = strings.Join(notes, "; ")
	r.Policies = append(r.Policies, out)
}

// selectsNothing says why a policy selects no workload, as far as the namespaces of the report show it.
func (s *snapshot) selectsNothing(p *policy.SpreadPolicy) string {
	n := 0
	for i := range s.objects.Namespaces {
		if p.SelectsNamespace(s.objects.Namespaces[i].Name, s.objects.Namespaces[i].Labels) {
			n++
		}
	}
	if n == 0 {
		return "it selects none of the namespaces that were looked at"
	}
	return "it selects no workload, or none whose pods can run in its pools: kubectl stowage explain of a workload says why"
}

func (r *Report) policyTable(l Layout) report.Table {
	var rows [][]string
	for _, p := range r.Policies {
		name := p.Kind + "/" + p.Name
		if l.AllNamespaces && p.Namespace != "" {
			name = p.Kind + "/" + p.Namespace + "/" + p.Name
		}
		pools := make([]string, len(p.Pools))
		for i, pool := range p.Pools {
			pools[i] = fmt.Sprintf("%s %d/%d", pool.Name, pool.Current, pool.Desired)
		}
		rows = append(rows, []string{name, p.Mode, fmt.Sprint(p.Workloads), fmt.Sprint(p.Pods), cmp.Or(p.Balanced, "-"), strings.Join(pools, ", "), p.Note})
	}
	return report.Table{Head: []string{"POLICY", "MODE", "WORKLOADS", "PODS", "BALANCED", "CURRENT/DESIRED", "NOTE"}, Rows: rows}.WithoutEmpty()
}
