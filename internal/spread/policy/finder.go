package policy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

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

// Excluded returns the namespaces in which annotations are not looked at.
func (f *Finder) Excluded() []string { return *f.excluded.Load() }

type parsed struct {
	strategy *sequence.Strategy
	err      error
}

type compiled struct {
	generation int64
	policy     Compiled
}

// Pod is what the answer depends on.
type Pod struct {
	Namespace   string
	Owner       world.Ref
	Annotations map[string]string // of the pod, which has those of its template
}

// Find returns the policy for a pod, or nil if it has none.
func (f *Finder) Find(ctx context.Context, pod Pod) (*Policy, error) {
	// 1. What there is: what made the pod, and a PodDistributor. There may be many Jobs, so they are looked up only where it
	// matters.
	chain, isJob := world.Chain{Refs: []world.Ref{pod.Owner}}, pod.Owner.IsJob()
	if !isJob {
		var err error
		if chain, err = world.Owners(ctx, f.World, pod.Namespace, pod.Owner); err != nil {
			return nil, err
		}
	}
	distributor, err := f.World.PodDistributor(ctx, pod.Namespace, chain.Refs)
	if err != nil {
		return nil, err
	}

	// 2. Which source wins?
	winner := matchOf(chain, pod.Annotations, distributor)
	if winner.None() {
		return nil, nil
	}
	if isJob {
		if chain, err = world.Owners(ctx, f.World, pod.Namespace, pod.Owner); err != nil {
			return nil, err
		}
	}
	if invented(chain) {
		return nil, nil
	}

	// 3. What does it say?
	var p *Policy
	if winner.Distributor != nil {
		p = f.compile(winner.Distributor).Unbound()
	} else {
		if ok, err := f.serves(ctx, pod.Namespace); err != nil || !ok {
			return nil, err
		}
		c := Compiled{Source: "annotation of " + winner.Source, Repair: stowage.RepairRecreate}
		c.Whole, c.Err = f.parse(winner.Text)
		p = c.Unbound()
	}
	p.annotate(pod.Annotations, chain.Top())

	// 4. What holds for this workload now?
	return p, f.bind(ctx, p, pod.Namespace, chain)
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

// compile returns what a PodDistributor says, computed once for each generation.
func (f *Finder) compile(d *versprei.PodDistributor) Compiled {
	if known, ok := f.distributors.Get(d.UID); ok && d.UID != "" && known.generation == d.Generation {
		return known.policy
	}
	d = d.DeepCopy() // it may be a part of a list, which would be kept with it
	p := Compile(d)
	if p.Whole.Size() <= maxSize {
		data, _ := json.Marshal(d) // about as long as the object is large
		f.distributors.Add(d.UID, compiled{d.Generation, p}, 2*int64(len(data))+bytesOf(p.Whole), rememberFor)
	}
	return p
}
