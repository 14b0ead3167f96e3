package status

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// inWords names pools without room.
func inWords(shortages []spill.Shortage) string {
	short := make([]string, len(shortages))
	for i, s := range shortages {
		short[i] = s.String()
	}
	return strings.Join(short, "; ")
}

// reasons are those of the condition Balanced, by the reason of the first finding.
var reasons = map[finding.Reason]stowage.ConditionReason{
	finding.PodsPending: stowage.ReasonPodsPending, finding.PoolExhausted: stowage.ReasonSpilled, finding.NotReached: stowage.ReasonNotReached, finding.PodsRefused: stowage.ConditionReason(finding.PodsRefused),
	finding.NodesGone: stowage.ConditionReason(finding.NodesGone), finding.Progressing: stowage.ReasonProgressing, finding.OutsidePool: stowage.ReasonOutsidePool, finding.OverTarget: stowage.ReasonOverTarget,
	finding.JobUneven:   stowage.ReasonOverTarget,
	finding.PoolRemoved: stowage.ReasonWithoutSeat, finding.WithoutSeat: stowage.ReasonWithoutSeat,
	finding.EvictionRefused: stowage.ConditionReason(finding.EvictionRefused), finding.NoRoomForRebalance: stowage.ConditionReason(finding.NoRoomForRebalance),
	finding.WebhookNotProven: stowage.ConditionReason(finding.WebhookNotProven), finding.UpdateRefused: stowage.ConditionReason(finding.UpdateRefused), finding.NotAllReady: stowage.ConditionReason(finding.NotAllReady), finding.RolloutUnfinished: stowage.ConditionReason(finding.RolloutUnfinished), finding.RepairInVain: stowage.ConditionReason(finding.RepairInVain),
	finding.PodHeld: stowage.ConditionReason(finding.PodHeld), finding.PodsChooseNodes: stowage.ConditionReason(finding.PodsChooseNodes),
}

// noted are what the condition says of pods beside the first cause.
var noted = map[finding.Reason]bool{finding.UpdateRefused: true, finding.ForeignCost: true, finding.CostsUneven: true, finding.HeldByVolume: true, finding.PodsStay: true, finding.PoolsPreferred: true, finding.PoolUnsuitable: true}

// balanced returns the condition Balanced of a target: whether each pool has the pods that it should have. If not, it has the first cause, with
// the remedy. What else is to be known of the pods follows. What a rollout would do is added only to the findings that are told and may ask for one.
func balanced(of world.Object, p *policy.Policy, d *divisions.Division, said said, ofRollout func(*finding.Values)) (metav1.ConditionStatus, stowage.ConditionReason, string) {
	w := &divisions.Workload{Namespace: of.Namespace, Kind: of.Kind, Name: of.Name, Values: p.Values(), Pods: d.Replicas, Stuck: said.stuck, Hindrances: said.hindrances}
	if said.refused != "" {
		w.Refused, w.Pods, w.Adds = said.refused, said.pods, p.Adds()
	}
	w.Soft, w.Unsuitable = p.Misfits()
	status, reason, text := metav1.ConditionTrue, stowage.ReasonBalanced, "each pool has the pods that it should have"
	var notes []string
	found, told := d.Findings(w), -1
	if !d.Balanced() {
		cause := finding.Finding{Reason: finding.Progressing, Values: finding.Values{Count: d.Replicas, Of: d.Replicas}}
		surge := d.Even() && len(found) > 0 && found[0].Reason == finding.WithoutSeat // the pods without a seat are beyond the targets
		if len(found) > 0 && reasons[found[0].Reason] != "" && !surge {
			cause, told = found[0], 0
		}
		status, reason, text = metav1.ConditionFalse, reasons[cause.Reason], tell(&cause, ofRollout)
	}
	for i := range found {
		if f := &found[i]; i != told && noted[f.Reason] || f.Reason == finding.OverInDomain && status == metav1.ConditionTrue {
			notes = append(notes, "; "+tell(f, ofRollout))
		}
	}
	return status, reason, text + strings.Join(notes, "")
}

// tell is a finding in words.
func tell(f *finding.Finding, ofRollout func(*finding.Values)) string {
	if rollsOut[f.Reason] {
		ofRollout(&f.Values)
	}
	return f.String()
}
