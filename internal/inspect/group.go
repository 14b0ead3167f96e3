package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/refusal"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// look notes why the pods of a workload get no seat, if they get none.
func (g *group) look(ctx context.Context, s *snapshot, scope *scope.Scope, m *podOwner, p *policy.Policy) error {
	template := s.created[m.UID]
	object := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod := podpatch.FromPod(object)
	answer, err := scope.Of(ctx, m.Namespace, pod)
	if err != nil {
		return err
	}
	if answer.Mode != stowage.ModeEnforce {
		why := "left alone on purpose: " + answer.Text()
		if len(answer.Warnings) > 0 {
			why = "left alone, because what is written as its mode is taken as Audit"
		}
		g.idle, m.why.leftAlone = cmp.Or(g.idle, why), true
		return nil
	}
	if p.Layout != nil {
		if key, pinned := placement.Pinned(pod, p.Strategy, nodeset.Set{}); pinned {
			if p.Distributor == nil || template.Spec.NodeName != "" { // the author of a PodDistributor names the workload, and contradicts himself
				g.idle, m.why.choosesBy = cmp.Or(g.idle, "its pods choose their nodes themselves, by "+key), key
				return nil
			}
		}
	}
	ns, err := s.Namespace(ctx, m.Namespace)
	if err != nil || ns == nil {
		return err
	}
	g.edited = later(g.edited, s.onSince(ns))
	switch {
	case p.Distributor != nil:
		g.edited = later(g.edited, editedAt(p.Distributor))
	case p.Policy != nil:
		// A label on a namespace or a template leaves no time. Only a pod that the policy divides shows that it selects the workload.
		g.edited = never
	default:
		g.edited = later(g.edited, later(s.edited[m.UID], s.edited[m.root.UID]))
	}
	if s.registration == nil {
		return err
	}
	sent, _ := s.registration.Sent(ns.Labels, object)
	g.leftOut = g.leftOut || sent == selection.No
	return err
}

// group is a workload in the making.
type group struct {
	Workload
	division.Division
	idle string // why nobody wants us to touch it, or some of its revisions
	// undivided says why its pods can run in no pool. Waiting are those of them that have no node.
	undivided string
	waiting   int64
	noMoves   bool // because of a problem of Stowage itself
	// leftOut says that the webhook's registration leaves its pods out.
	leftOut bool
	policy  *policy.Policy
	failure string        // why its controller creates no pods, if that is known
	vm      refusal.Added // what its pods get as peer pods
	pods    int64         // that there are, with a seat or without
	// overflow are the pods without a seat because every pool has its maximum.
	overflow int64
	// adopted are the pods that ran before they got their seat, by the key of their pool. Staying are those without a seat that may be kept
	// where they run.
	adopted map[string]int64
	staying int64
	// adopting are the pods that Stowage gives a seat where they run.
	adopting int64
	finding.Rollout
	// noNodes and cordoned name the pools that take no new pods, where a rollout would make some.
	noNodes, cordoned string
	state             *stowage.PoolState // nil if there is none
	outsider          string             // names a pod that is not in the pool of its seat
	costWriter        string             // who wrote the deletion cost of a pod, if not Stowage
	// lacking are the pods that have not what their pool gives to new ones, with one of these pools and what it gives.
	lacking           int64
	lackIn, lackWhich string
	volumesUnknown    bool     // of pods without a seat that wait
	ungiven           []string // which podLabels of its pools its pods never get
	pin               pin
	pinned            *stowage.Hindrance // the pods without a seat that choose their nodes themselves, or nil
	// unanswered are when the pods were created that the webhook gave no seat. After edited, when its policy was last written and
	// its namespace is known to be on, the webhook should have. Times are whole seconds: a pod of the same second may be the earlier one.
	unanswered []time.Time
	edited     time.Time
	// unseen says that the controller of a Deployment or a StatefulSet has not done what it last asked for.
	unseen   bool
	rollouts []rollout
	lack     []world.Object // what makes its pods, and has not all
}

// addUndivided adds an owner whose pods can run in no pool, so that they get no seat.
func (g *group) addUndivided(m *podOwner, p *policy.Policy) {
	if g.policy == nil {
		g.policy, g.Policy = p, p.Source
	}
	_, why := p.Misfits()
	g.undivided = strings.Join(why, "; ")
	for _, pod := range slices.Concat(m.pods, m.bare) {
		if _, waits := podstatus.Unschedulable(pod); waits {
			g.waiting++
		}
	}
}

// add adds what one owner of pods has and should have.
func (g *group) add(ctx context.Context, all *groups, m *podOwner, seen observed.Owner, p *policy.Policy) error {
	g.failure = cmp.Or(g.failure, m.Failure)
	if all.VMs && g.vm == nil {
		g.vm = all.PeerPods.Adds(ptr.Deref(all.s.created[m.UID].Spec.RuntimeClassName, ""))
	}
	if g.policy == nil {
		g.policy, g.Policy = p, p.Source
	}
	if p.Layout == nil {
		return nil
	}
	if g.policy == p {
		g.Shortages = p.Shortages()
	}
	g.unanswered = append(g.unanswered, m.unanswered...)
	for _, pod := range m.pods {
		if len(pod.ManagedFields) > 0 {
			g.costWriter = pod.ManagedFields[0].Manager
		}
		if adopted(pod) {
			g.adopted[poolOf(pod)]++
			g.unanswered = append(g.unanswered, pod.CreationTimestamp.Time)
		}
	}
	g.staying += int64(len(m.held))
	g.pods += int64(len(m.pods)) + m.unseated
	var adopting []division.Pod
	if g.idle == "" {
		adopting = all.adopting(p, m)
	}
	g.adopting += int64(len(adopting))
	seated := g.AddPods(p.Whole(), append(all.viewOf(p, all.s.nodes).Pods(seen.Pods), adopting...))
	g.notePinned(all.s, p, m)
	g.noteLacking(all.s, p, m)
	g.outsider = cmp.Or(g.outsider, all.outsider(p, seen))
	replicas := m.Replicas
	if replicas < 0 {
		replicas = seated
		scale, err := worldapi.ReadScale(ctx, all.Client, m.Namespace, m.Ref)
		switch {
		case apierrors.IsForbidden(err):
			g.Note = fmt.Sprintf("its replica count may not be read, so that of its pods is taken: %v", err)
		case err != nil:
			return fmt.Errorf("read the scale of %s %s: %w", m.Kind, m.Name, err)
		case scale != nil:
			replicas = scale.Replicas
		}
	}
	if int64(len(m.pods))+m.unseated < replicas {
		g.lack = append(g.lack, world.Object{Namespace: m.Namespace, Ref: m.Ref})
	}
	g.noteVolumes(ctx, all, p, m)
	elsewhere := all.finder.Elsewhere(ctx, p, seen, slices.Concat(m.held, m.why.outOfReach), all.s.cells.with(ctx))
	g.AddTargets(p.Layout, p.Divide(replicas, seen.Indexed(p.Layout), elsewhere))
	if gaps, some := division.Gaps(p.Layout, p.State, p.Spill); some {
		g.Untaken = cmp.Or(g.Untaken, division.Untaken(p.Layout, gaps, replicas))
	}
	m.asked = replicas
	without := max(0, m.unseated-int64(len(adopting)+len(elsewhere.Own))-elsewhere.Others)
	unseated := min(without, max(0, p.Seats()-seated))
	g.Division.Unseated += unseated
	g.overflow += without - unseated
	m.why.beyond = without > unseated && unseated == 0
	return nil
}

// notePinned counts the pods without a seat that choose their nodes themselves.
func (g *group) notePinned(s *snapshot, p *policy.Policy, m *podOwner) {
	for _, pod := range m.bare {
		by, pinned := pinnedBy(p, pod)
		if !pinned || proven(pod) {
			continue
		}
		if g.pinned == nil {
			g.pinned = &stowage.Hindrance{Reason: stowage.HindrancePinned, Pod: pod.Name, Objects: []string{by}}
			g.pin = pinOf(&cells{owners: s.ownersByUID, created: s.created}, p, pod)
		}
		g.pinned.Count++
	}
}

// noteVolumes notes the pods that wait without a seat because no node of a pool reaches their volumes. They have a problem of their own.
func (g *group) noteVolumes(ctx context.Context, all *groups, p *policy.Policy, m *podOwner) {
	for _, pod := range m.bare {
		claims := podstatus.VolumeClaims(&pod.Spec)
		if pod.Spec.NodeName != "" || len(claims) == 0 {
			continue
		}
		reach, err := all.finder.Reached(ctx, p, policy.Bound{Namespace: pod.Namespace, Claims: claims}, all.s.cells.with(ctx))
		switch {
		case err != nil || all.s.hiddenVolumes || reach != nil && reach.Unknown:
			g.volumesUnknown = true
		case reach != nil && reach.Nowhere():
			m.why.outOfReach = append(m.why.outOfReach, pod)
		}
	}
}

// noteLacking counts the pods that have not what their pool gives to new ones.
func (g *group) noteLacking(s *snapshot, p *policy.Policy, m *podOwner) {
	if p.Carries == nil {
		return
	}
	for pool := range p.Len() {
		if _, ungiven := p.Gives(pool); ungiven != "" && !slices.Contains(g.ungiven, ungiven) {
			g.ungiven = append(g.ungiven, ungiven)
		}
	}
	for _, pod := range m.pods {
		pool, known := p.PoolKeyed(poolOf(pod))
		if !known {
			continue
		}
		carry, _ := p.Gives(pool)
		if s.lacksClass(carry.PriorityClass) {
			carry.PriorityClass = "" // that is told of the policy
		}
		if carry.Lacks(pod) {
			g.lackIn, g.lackWhich = cmp.Or(g.lackIn, p.Pool(pool).Name), cmp.Or(g.lackWhich, carry.String())
			g.lacking++
		}
	}
}
