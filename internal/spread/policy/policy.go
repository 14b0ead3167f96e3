// Package policy answers which strategy a pod's workload has, and who says so.
//
// There are two front ends: a PodDistributor that targets the workload, and annotations
// on the workload or its pod template. A PodDistributor beats annotations; of several
// for one target the oldest wins. Package sequence says what a strategy means, and package
// admit applies it to a pod.
package policy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Policy is a workload's strategy with what its front end says beside it.
type Policy struct {
	// Strategy is nil if the policy is invalid; then Err says why. The seats of pools without room are left out.
	Strategy *sequence.Strategy
	Err      error
	// Whole is the strategy with all its seats.
	Whole *sequence.Strategy
	// Spill is, for each pool, when other pools take the pods that wait, and how many. It is nil if no pool
	// has a limit.
	Spill []spill.Rule
	// State is what is known of pools without room, or nil if nothing is.
	State *stowage.PoolState
	// Root is the uppermost workload, or nil if that is not known.
	Root *world.Workload
	// Distributor is the PodDistributor that the policy comes from, or nil.
	Distributor *versprei.PodDistributor
	// Source names where the policy comes from, for people.
	Source string
	// Preferred lets pods run outside their pool.
	Preferred bool
	// Tolerations are those of each pool.
	Tolerations [][]corev1.Toleration
	Evict       bool // rebalance by eviction
	Repair      stowage.Repair
	// Warnings are about settings that were ignored.
	Warnings []string
	// FirstOrdinal is the ordinal of the first pod, for the owner of a StatefulSet.
	FirstOrdinal int64
	// Since is when its PodDistributor was created, in whole seconds. It is zero for annotations: nothing
	// but a watch tells when they were written.
	Since time.Time
	// WorkloadCreated is when the uppermost workload was created, or zero if that is not known.
	WorkloadCreated time.Time
	// Unverified says that nobody knows whether the pod's owner exists: Stowage may not read
	// its kind.
	Unverified bool
}

// Pool returns the index of a pool by its name.
func (p *Policy) Pool(name string) (int, bool) {
	for i := range p.Strategy.Len() {
		if p.Strategy.Pool(i).Name == name {
			return i, true
		}
	}
	return 0, false
}

// TolerationsOf returns the tolerations that a pool gives to its pods.
func (p *Policy) TolerationsOf(pool int) []corev1.Toleration {
	if pool < len(p.Tolerations) {
		return p.Tolerations[pool]
	}
	return nil
}

// SeatAt returns the seat of a pod with an ordinal of its own, by its rank. While the pod's pool has no room, the pod
// may have a seat in another one.
func (p *Policy) SeatAt(rank int64) (sequence.Seat, error) {
	if p.State != nil && p.Spill != nil {
		if pool, ok := p.Pool(p.State.Ordinals[strconv.FormatInt(rank+p.FirstOrdinal-1, 10)]); ok {
			return sequence.Seat{Pool: pool, Ordinal: sequence.MovedOrdinals + rank}, nil
		}
	}
	return p.Whole.SeatAt(rank)
}

// Finder finds policies.
type Finder struct {
	World    world.Snapshot
	settings Settings
	excluded atomic.Pointer[[]string]

	parsed       *bounded.Cache[string, parsed]               // parsed strategies by their text
	distributors *bounded.Cache[types.UID, compiled]          // compiled PodDistributors by their UID
	shorts       *bounded.Cache[shortKey, *sequence.Strategy] // strategies without the seats of some gaps
}

// Settings are what a Finder looks at beside the cluster. Each may be empty.
type Settings struct {
	// ExcludedNamespaces are those in which annotations are not looked at.
	ExcludedNamespaces []string
	// NamespaceLabel, as key=value, must be on a namespace for its workloads' annotations to be looked at.
	NamespaceLabel string
	// Held returns how many pods of an owner have a seat in a pool, with those to come. Those that its controller is about to
	// remove do not count. While a pool has no room, the revisions of a workload share what the pool may have. Without
	// Held, each revision may have all of it.
	Held func(owner *world.Workload, pool string) int64
}

// NewFinder returns a finder.
func NewFinder(reader world.Snapshot, settings Settings) *Finder {
	f := &Finder{
		World: reader, settings: settings,
		parsed: bounded.New[string, parsed](parsedBytes, clock.RealClock{}), distributors: bounded.New[types.UID, compiled](compiledBytes, clock.RealClock{}),
		shorts: bounded.New[shortKey, *sequence.Strategy](parsedBytes, clock.RealClock{}),
	}
	f.Exclude(settings.ExcludedNamespaces)
	return f
}

// Exclude says in which namespaces annotations are not looked at, from now on.
func (f *Finder) Exclude(namespaces []string) { f.excluded.Store(&namespaces) }

type parsed struct {
	strategy *sequence.Strategy
	err      error
}

type compiled struct {
	generation int64
	policy     *Policy
}

// Pod is what the answer depends on.
type Pod struct {
	Namespace   string
	Owner       world.Ref
	Annotations map[string]string // of the pod, which has those of its template
}

// Find returns the policy for a pod, or nil if it has none.
func (f *Finder) Find(ctx context.Context, pod Pod) (*Policy, error) {
	distributors, err := f.World.PodDistributors(ctx, pod.Namespace)
	if err != nil {
		return nil, err
	}
	// A Job's pods are divided only where a PodDistributor says so.
	isJob := pod.Owner.IsJob()
	if isJob && len(distributors) == 0 {
		return nil, nil
	}

	// 1. The owner, its controller, and so on.
	chain := world.Chain{Refs: []world.Ref{pod.Owner}}
	var firstOrdinal int64
	if !isJob {
		if chain, err = world.Owners(ctx, f.World, pod.Namespace, pod.Owner); err != nil {
			return nil, err
		}
		if w := chain.Bottom(); w != nil {
			firstOrdinal = w.FirstOrdinal
		}
	}
	root := chain.Top()

	// 2. A PodDistributor for any of them.
	if d := f.winner(distributors, chain); d != nil {
		if isJob {
			// Jobs are looked up only where it matters: there may be many.
			if chain, err = world.Owners(ctx, f.World, pod.Namespace, pod.Owner); err != nil {
				return nil, err
			}
		}
		if invented(chain) {
			return nil, nil
		}
		p := *f.compile(d)
		p.FirstOrdinal, p.Unverified = firstOrdinal, chain.Unverified
		p.Since, p.WorkloadCreated = d.CreationTimestamp.Time, createdOf(root)
		f.annotated(&p, root, pod.Annotations)
		return &p, f.shorten(ctx, &p, pod.Namespace, chain)
	}
	if isJob {
		return nil, nil
	}

	// 3. Annotations, those of the template first.
	text, found := StrategyText(pod.Annotations)
	source := "the pod template"
	if !found && root != nil {
		text, found = StrategyText(root.Annotations)
		source = root.Kind + " " + root.Name
	}
	if !found || invented(chain) {
		return nil, nil
	}
	if ok, err := f.serves(ctx, pod.Namespace); err != nil || !ok {
		return nil, err
	}
	p := &Policy{Source: "annotation of " + source, Repair: stowage.RepairRecreate, FirstOrdinal: firstOrdinal, Unverified: chain.Unverified, WorkloadCreated: createdOf(root)}
	p.Strategy, p.Err = f.parse(text)
	p.Whole = p.Strategy
	f.annotated(p, root, pod.Annotations)
	return p, f.shorten(ctx, p, pod.Namespace, chain)
}

func createdOf(w *world.Workload) time.Time {
	if w == nil {
		return time.Time{}
	}
	return w.Created
}

// invented reports whether the pod's owner does not exist, in the version that its reference has. Whoever creates a pod can
// write any owner reference into it, and the API server checks none of them before admission.
func invented(chain world.Chain) bool {
	if b := chain.Bottom(); b != nil {
		return b.APIVersion != chain.Refs[0].APIVersion
	}
	return !chain.Unverified
}

// serves reports whether a namespace's annotations are looked at.
func (f *Finder) serves(ctx context.Context, namespace string) (bool, error) {
	if excluded := f.excluded.Load(); excluded != nil && slices.Contains(*excluded, namespace) {
		return false, nil
	}
	if f.settings.NamespaceLabel == "" {
		return true, nil
	}
	ns, err := f.World.Namespace(ctx, namespace)
	if err != nil || ns == nil {
		return false, err
	}
	key, value, _ := strings.Cut(f.settings.NamespaceLabel, "=")
	have, ok := ns.Labels[key]
	return ok && have == value, nil
}

// annotated reads the settings that stand in annotations beside a strategy.
func (f *Finder) annotated(p *Policy, root *world.Workload, template map[string]string) {
	setting := func(key string) (string, bool) {
		if v, ok := template[key]; ok {
			return v, true
		}
		if root == nil {
			return "", false
		}
		v, ok := root.Annotations[key]
		return v, ok
	}
	if v, ok := setting(stowage.RebalanceAnnotation); ok && p.Distributor == nil {
		switch versprei.Rebalance(v) {
		case versprei.RebalanceEvict:
			p.Evict = true
		case versprei.RebalanceNever:
		default:
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s is %q and was ignored; it must be %s or %s", stowage.RebalanceAnnotation, v, versprei.RebalanceNever, versprei.RebalanceEvict))
		}
	}
	if v, ok := setting(stowage.SpillAnnotation); ok && p.Distributor == nil && p.Strategy != nil {
		if after, err := parseSpill(v); err != nil {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s is %q and was ignored: %v", stowage.SpillAnnotation, v, err))
		} else {
			p.Spill = slices.Repeat([]spill.Rule{{After: after}}, p.Strategy.Len())
		}
	}
	if v, ok := setting(stowage.RepairAnnotation); ok {
		if r := stowage.Repair(v); slices.Contains([]stowage.Repair{stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate}, r) {
			p.Repair = r
		} else {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s is %q and was ignored; it must be %s, %s or %s", stowage.RepairAnnotation, v, stowage.RepairOff, stowage.RepairAdopt, stowage.RepairRecreate))
		}
	}
}

// What is remembered, in bytes, as long as it is in use. Anybody can write a strategy. Those of more seats than maxSize
// are computed for each pod.
const (
	parsedBytes   = 16 << 20
	compiledBytes = 32 << 20
	maxSize       = 4000
	rememberFor   = time.Hour
)

// bytesOf is about what a strategy takes: five bytes for each of its [sequence.Strategy.Size], and its pools.
func bytesOf(s *sequence.Strategy) int64 {
	if s == nil {
		return 0
	}
	return 5*s.Size() + 512*int64(s.Len())
}

// parse reads a strategy, once for each text.
func (f *Finder) parse(text string) (*sequence.Strategy, error) {
	if known, ok := f.parsed.Get(text); ok {
		return known.strategy, known.err
	}
	strategy, err := sequence.Parse(text)
	if len(text) <= sequence.MaxText && strategy.Size() <= maxSize {
		bytes := 2*int64(len(text)) + bytesOf(strategy)
		if err != nil {
			bytes += int64(len(err.Error()))
		}
		f.parsed.Add(text, parsed{strategy, err}, bytes, rememberFor)
	}
	return strategy, err
}
