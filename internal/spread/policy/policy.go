// Package policy answers which strategy a pod's workload has, and from which source. A [Finder] reads what that takes, and its answer is a [Policy]: what
// holds for the pods of one workload now, with what is known of pools without room. It is made of
//
//   - [Compiled], what one source says: a PodDistributor, a SpreadPolicy or ClusterSpreadPolicy, or annotations of a workload or its pod template;
//   - the choice between several sources (matchOf), for which the policies of a namespace have an index.
//
// [Check] says what is wrong with settings in annotations. Package sequence says what a strategy means, and package admit applies it to a pod.
package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Origin is the source that a division comes from.
type Origin struct {
	// Source names it, for people.
	Source string
	// Distributor is the PodDistributor, or nil.
	Distributor *versprei.PodDistributor
	// Policy is the policy, or nil, and From names it in claims.
	Policy *SpreadPolicy
	From   ledger.Source
}

// Told names the source in what people read who create pods: warnings, and events in the namespace of the pods. By the role stowage-view they may read
// what is of that namespace, and no ClusterSpreadPolicy.
func (o *Origin) Told() string {
	if o.OfCluster() {
		return "a ClusterSpreadPolicy"
	}
	return o.Source
}

// OfCluster reports whether the source is a ClusterSpreadPolicy.
func (o *Origin) OfCluster() bool { return o.Policy != nil && o.Policy.clusterWide() }

// UID returns the UID of the policy or PodDistributor, or "" for annotations.
func (o *Origin) UID() types.UID {
	if o.Distributor != nil {
		return o.Distributor.UID
	}
	return o.From.UID
}

// Rules are what a source asks for beside a strategy.
type Rules struct {
	// Spill is, for each pool, when other pools take the pods that wait, and how many. It is nil if no pool
	// has a limit.
	Spill []spill.Rule
	// Preferred lets pods run outside their pool.
	Preferred bool
	// Tolerations are those of each pool.
	Tolerations [][]corev1.Toleration
	// Carries is what each pool gives to new pods. It is nil if no pool gives anything.
	Carries []placement.Carry
	Evict   bool // rebalance by eviction
	Repair  stowage.Repair
	// EvictEarly has pods go, though Repair is Adopt, that were created with their workload a moment before the source and that nobody uses.
	EvictEarly bool
}

// TolerationsOf returns the tolerations that a pool gives to its pods.
func (r *Rules) TolerationsOf(pool int) []corev1.Toleration {
	if pool < len(r.Tolerations) {
		return r.Tolerations[pool]
	}
	return nil
}

// CarryOf returns what a pool gives to new pods.
func (r *Rules) CarryOf(pool int) (c placement.Carry) {
	if pool < len(r.Carries) {
		return r.Carries[pool]
	}
	return c
}

// Compiled is what one source says of the division of pods.
type Compiled struct {
	Origin
	Rules
	// Written is the strategy. It is nil if the source is invalid; then Err says why.
	*layout.Written
	Err error
	// Warnings are about settings that were ignored.
	Warnings []string
}

// Policy is what holds for the pods of one owner now.
type Policy struct {
	Origin
	Rules
	// Layout says where the pods go. It is nil if the source is invalid; then Err says why.
	*layout.Layout
	Err error
	// Warnings are about settings that were ignored.
	Warnings []string
	// State is what is known of pools without room, or nil if nothing is.
	State *stowage.PoolState
	// Root is the workload that the pods are of, see [world.Chain.Top], or nil if that is not known.
	Root *world.Workload
	// Unverified says that nobody knows whether the pod's owner exists: Stowage may not read
	// its kind.
	Unverified bool
	owner      *world.Workload // of the pods; nil if it is not known
	softened   bool            // see [Policy.Soft]
}

// Nowhere reports whether the pods of the workload can run in no pool. Then the policy does not select the workload.
func (p *Policy) Nowhere() bool { return p.Layout.Nowhere() }

// AuthorKnows reports whether the author of a PodDistributor, or of annotations, contradicts himself where a Filter plugin of kube-scheduler keeps
// pods from a pool: he has said where the pods go, and what they are. A policy is for workloads of others. What nodes have of volumes and domains,
// neither of them knows.
func (o *Origin) AuthorKnows(filter string) bool {
	return o.Policy == nil && slices.Contains([]string{"", nodefit.ByAffinity, nodefit.ByTaint, nodefit.BySize}, filter)
}

// Soft returns why the pods of this revision prefer their pools, though the source requires them, or nil.
func (p *Policy) Soft() *stowage.SoftRevision {
	if !p.softened {
		return nil
	}
	return p.State.Soft
}

// Misfits says, for people, why pods of this revision prefer their pools, or "", and in which pools or domains no pod of the workload can run.
func (p *Policy) Misfits() (soft string, unsuitable []string) {
	if s := p.Soft(); s != nil {
		soft = s.Why
	}
	for i, why := range p.Unsuitable() {
		if why != "" {
			unsuitable = append(unsuitable, spill.PlaceOf(p.AsWritten(), p.AsWritten().Cells().At(i))+": "+why)
		}
	}
	return soft, unsuitable
}

// soften has the pods of a revision prefer their pools, where that is recorded.
func (p *Policy) soften() {
	soft := p.State != nil && p.owner != nil && p.State.Soft != nil && p.State.Soft.Owner == p.owner.UID
	if p.softened = soft && !p.Preferred; p.softened {
		p.Preferred = true
	}
}

// Dividing returns the policy if it divides the workload now, or nil.
func (p *Policy) Dividing() *Policy {
	if p != nil && p.Nowhere() {
		return nil
	}
	return p
}

// WorkloadCreated is when the workload was created, or zero if that is not known.
func (p *Policy) WorkloadCreated() time.Time {
	if p.Root == nil {
		return time.Time{}
	}
	return p.Root.Created
}

// Gives returns what a new pod of a pool gets beside its seat and tolerations, and of which podLabels it gets none, in words: see [placement.Carry.ForOwner].
func (p *Policy) Gives(pool int) (carry placement.Carry, ungiven string) {
	var keys []string
	if p.owner != nil {
		keys = p.owner.SelectorKeys
	}
	carry, left := p.CarryOf(pool).ForOwner(keys)
	switch name := p.Pool(pool).Name; {
	case len(left) == 0:
	case keys == nil:
		ungiven = fmt.Sprintf("pool %s has podLabels, which pods do not get: it is not known by which labels their controller selects them", name)
	default:
		ungiven = fmt.Sprintf("pool %s has podLabels with the key %s, which pods do not get: the selector of %s %s names it", name, strings.Join(left, " and "), p.owner.Kind, p.owner.Name)
	}
	return carry, ungiven
}

// cells are the states of pools or cells from which pods move.
func (p *Policy) cells(s *sequence.Strategy) []spill.Pool {
	cells := spill.FromPoolState(p.State, s)
	for i := range cells {
		if p.Spill[s.Cells().At(i).Pool].After == 0 {
			cells[i] = spill.Pool{Phase: spill.Available}
		}
	}
	return cells
}

// Shortages returns the pools and cells without room whose waiting pods others take.
func (p *Policy) Shortages() []spill.Shortage {
	if p.Spill == nil {
		return nil
	}
	return spill.Shortages(spill.FromPoolState(p.State, p.Whole()), p.Whole())
}

// Values are what findings about the policy's workloads say of it.
func (p *Policy) Values() finding.Values {
	return finding.Values{
		Source: p.Source, Annotated: p.Distributor == nil && p.Policy == nil, ByPolicy: p.Policy != nil,
		Evict: p.Evict, Preferred: p.Preferred, Recreates: p.Repair == stowage.RepairRecreate, RepairOff: p.Repair == stowage.RepairOff,
	}
}

// Limits are the pools and cells without room, with how many pods each may have, for comparisons.
func (p *Policy) Limits() string {
	return fmt.Sprint(p.Short(), spill.Limits(spill.FromPoolState(p.State, p.Whole()), p.Cells()))
}

// Short reports for each pool whether it has no room, as far as pods move from it.
func (p *Policy) Short() []bool {
	short := make([]bool, p.Len())
	for i, pool := range spill.MergeCells(spill.FromPoolState(p.State, p.Whole()), p.Cells()) {
		short[i] = p.Spill != nil && p.Spill[i].After > 0 && pool.Phase != spill.Available
	}
	return short
}
