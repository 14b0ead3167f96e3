package status

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// A policy with a kind that Stowage may not read is not ready, and says which right is missing. A kind that is not installed is no fault.
func TestConditionsOfUnreadableKinds(t *testing.T) {
	kind := func(kind string, lacks ...string) stowage.UnreadableKind {
		return stowage.UnreadableKind{OwnerKind: stowage.OwnerKind{Group: "example.net", Kind: kind}, Lacks: lacks}
	}
	const (
		sentence = "Stowage may not get pipelinesets.example.net, so pods of this kind get no seat"
		remedy   = "; add a ClusterRole for its ServiceAccounts with apiGroups: [example.net], resources: [pipelinesets], verbs: [get]: kubectl stowage check prints it"
	)
	type conditions struct{ ready, stalled string }
	for name, tc := range map[string]struct {
		unreadable []stowage.UnreadableKind
		edit       func(*stowage.SpreadPolicy, *tally)
		want       conditions
	}{
		"all can be read":  {want: conditions{"True Counted: the workloads that the policy selects are counted", "False Counted: the policy is valid"}},
		"one may not":      {unreadable: []stowage.UnreadableKind{kind("PipelineSet", "pipelinesets.example.net")}, want: conditions{"False KindNotReadable: " + sentence, "True KindNotReadable: " + sentence + remedy}},
		"one is not there": {unreadable: []stowage.UnreadableKind{kind("PipelineSet")}, want: conditions{"True Counted: the workloads that the policy selects are counted", "False Counted: the policy is valid"}},
		"one may not, and one is not there": {unreadable: []stowage.UnreadableKind{kind("Other"), kind("PipelineSet", "pipelinesets.example.net")},
			want: conditions{"False KindNotReadable: " + sentence, "True KindNotReadable: " + sentence + remedy}},
		"two may not, and one of them not its scale": {unreadable: []stowage.UnreadableKind{kind("PipelineSet", "pipelinesets.example.net", "pipelinesets/scale.example.net"), {OwnerKind: stowage.OwnerKind{Kind: "ReplicationController"}, Lacks: []string{"replicationcontrollers"}}},
			want: conditions{"False KindNotReadable: Stowage may not get pipelinesets.example.net and pipelinesets/scale.example.net and replicationcontrollers, so pods of these kinds get no seat",
				"True KindNotReadable: Stowage may not get pipelinesets.example.net and pipelinesets/scale.example.net and replicationcontrollers, so pods of these kinds get no seat; add a ClusterRole for its ServiceAccounts with " +
					"apiGroups: [example.net], resources: [pipelinesets, pipelinesets/scale], verbs: [get]; and apiGroups: [\"\"], resources: [replicationcontrollers], verbs: [get]: kubectl stowage check prints it"}},
		"in Audit, and not counted": {unreadable: []stowage.UnreadableKind{kind("PipelineSet", "pipelinesets.example.net")}, edit: func(p *stowage.SpreadPolicy, t *tally) {
			p.Spec.Mode, t.unseen = stowage.PolicyAudit, map[world.Object]bool{{}: true}
		}, want: conditions{"False KindNotReadable: " + sentence, "True KindNotReadable: " + sentence + remedy}},
		"the policy is invalid": {unreadable: []stowage.UnreadableKind{kind("PipelineSet", "pipelinesets.example.net")}, edit: func(_ *stowage.SpreadPolicy, t *tally) {
			t.compiled.Err = errors.New("wrong")
		}, want: conditions{"False Invalid: the policy is invalid and divides no pods: wrong", "True Invalid: correct the policy: wrong"}},
	} {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Pools: []stowage.PolicyPool{{Name: "a", NodeSelector: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
		}}
		of := policy.FromSpreadPolicy(p)
		tally := newTally(of, policy.CompilePolicy(of), p, p, &p.Status, &p.Spec)
		tally.status.Unreadable = tc.unreadable
		if tc.edit != nil {
			tc.edit(p, tally)
		}
		tally.describe([]corev1.Node{})
		text := func(kind string) string {
			c := meta.FindStatusCondition(p.Status.Conditions, kind)
			return string(c.Status) + " " + c.Reason + ": " + c.Message
		}
		if diff := cmp.Diff(tc.want, conditions{text(stowage.ConditionReady), text(stowage.ConditionStalled)}, cmp.AllowUnexported(conditions{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
