package policy

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Finder finds policies.
type Finder struct {
	World    world.Snapshot
	settings Settings
	excluded atomic.Pointer[[]string]

	parsed          *bounded.Cache[string, parsed]                 // parsed strategies by their text
	compiledSources *bounded.Cache[types.UID, compiled]            // compiled PodDistributors and policies by their UID
	ofCluster       atomic.Pointer[policyIndex]                    // the policies of the cluster, as they were last asked for
	ofNamespaces    *bounded.Cache[string, *policyIndex]           // those of namespaces
	selectors       *bounded.Cache[version, *SpreadPolicy]         // what indexes consist of
	indexing        singleflight.Group                             // by namespace
	chosen          *bounded.Cache[ledger.OwnerKey, choice]        // which policy divides the pods of an owner
	shorts          *bounded.Cache[layout.Key, *sequence.Strategy] // strategies without the seats of some gaps
}

// Settings are what a Finder looks at beside the cluster. Each may be empty.
type Settings struct {
	// ExcludedNamespaces are those in which annotations are not looked at.
	ExcludedNamespaces []string
	// NamespaceLabel, as key=value, must be on a namespace for its workloads' annotations to be looked at.
	NamespaceLabel string
	// Held returns how many pods of an owner have a seat in a pool, with those to come. Those that its controller is about to
	// remove do not count. While a pool has no room, the revisions of a workload share what the pool may have. Without
	// Held, each revision may have all of it. HeldIn is the same for the domains of pools, of the pods that were seen.
	Held   func(owner *world.Workload, pool string) int64
	HeldIn func(owner *world.Workload) map[ledger.Cell]int64
}

// NewFinder returns a finder.
func NewFinder(reader world.Snapshot, settings Settings) *Finder {
	f := &Finder{
		World: reader, settings: settings,
		parsed: bounded.New[string, parsed](parsedBytes, clock.RealClock{}), compiledSources: bounded.New[types.UID, compiled](compiledBytes, clock.RealClock{}),
		shorts: bounded.New[layout.Key, *sequence.Strategy](parsedBytes, clock.RealClock{}), chosen: bounded.New[ledger.OwnerKey, choice](chosenBytes, clock.RealClock{}),
		ofNamespaces: bounded.New[string, *policyIndex](indexBytes, clock.RealClock{}), selectors: bounded.New[version, *SpreadPolicy](indexBytes, clock.RealClock{}),
	}
	f.Exclude(settings.ExcludedNamespaces)
	return f
}

// Exclude says in which namespaces annotations are not looked at, from now on.
func (f *Finder) Exclude(namespaces []string) { f.excluded.Store(&namespaces) }

// Excluded returns the namespaces in which annotations are not looked at.
func (f *Finder) Excluded() []string { return *f.excluded.Load() }

type parsed struct {
	written *layout.Written
	err     error
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
	p, err := f.FindSelected(ctx, pod)
	return p.Dividing(), err
}

// ErrOwnerGone means that the owner of a pod that has a strategy does not exist.
var ErrOwnerGone = errors.New("the owner does not exist")

// FindForAdmission is [Finder.Find]. It returns ErrOwnerGone where the pod has none only because its owner does not exist.
func (f *Finder) FindForAdmission(ctx context.Context, pod Pod) (*Policy, error) {
	p, err := f.find(ctx, pod)
	return p.Dividing(), err
}

// FindSelected is [Finder.Find]. It also returns a policy that selects the pod's workload and does not divide it now: see
// [Policy.Nowhere].
func (f *Finder) FindSelected(ctx context.Context, pod Pod) (*Policy, error) {
	p, err := f.find(ctx, pod)
	if errors.Is(err, ErrOwnerGone) {
		return nil, nil
	}
	return p, err
}

func (f *Finder) find(ctx context.Context, pod Pod) (*Policy, error) {
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
	if winner.None() && !isJob {
		if winner.Policy, err = f.policyFor(ctx, pod.Namespace, chain); err != nil {
			return nil, err
		}
	}
	if winner.None() {
		return nil, nil
	}
	if isJob {
		if chain, err = world.Owners(ctx, f.World, pod.Namespace, pod.Owner); err != nil {
			return nil, err
		}
	}
	if invented(chain) {
		return nil, ErrOwnerGone
	}

	// 3. What does it say?
	var c Compiled
	switch {
	case winner.Distributor != nil:
		c = f.compile(winner.Distributor)
	case winner.Policy != nil:
		c = f.CompiledPolicy(winner.Policy)
	default:
		if ok, err := f.serves(ctx, pod.Namespace); err != nil || !ok {
			return nil, err
		}
		c = Compiled{Origin: Origin{Source: "annotation of " + winner.Source}, Rules: Rules{Repair: stowage.RepairRecreate}}
		over, _ := setting(pod.Annotations, chain.Highest(), stowage.AcrossAnnotation)
		c.Written, c.Err = f.parse(winner.Text, over)
	}
	c.annotate(pod.Annotations, chain.Highest())

	// 4. What holds for this workload now?
	return f.bind(ctx, c, pod.Namespace, chain)
}

// choice is the policy that divides the pods of an owner, as long as nothing changes of what it depends on.
type choice struct {
	indexes          [2]*policyIndex
	labels, template map[string]string // of the namespace, and of the pod template
	policy           *SpreadPolicy     // nil is none
}

// policyFor returns the policy that divides the pods of an owner where no other source does, or nil if none does. Everything is as
// it is now: policies, the labels of the namespace and those of the template.
func (f *Finder) policyFor(ctx context.Context, namespace string, chain world.Chain) (*SpreadPolicy, error) {
	o, indexes, err := f.ownerOf(ctx, namespace, chain)
	if o == nil || err != nil {
		return nil, err
	}
	key := ledger.OwnerKey{Namespace: namespace, UID: o.ref.UID}
	if known, ok := f.chosen.Get(key); ok && known.indexes == indexes && maps.Equal(known.labels, o.labels) && maps.Equal(known.template, o.template) {
		return known.policy, nil
	}
	policy := first(selecting(indexes, o))
	if o.ref.UID != "" {
		f.chosen.Add(key, choice{indexes, o.labels, o.template, policy}, choiceBytes, rememberFor)
	}
	return policy, nil
}

// Selecting returns the policies that select the owner of some pods, those in Audit too, in the order in which they win.
func (f *Finder) Selecting(ctx context.Context, namespace string, chain world.Chain) ([]*SpreadPolicy, error) {
	o, indexes, err := f.ownerOf(ctx, namespace, chain)
	if o == nil || err != nil {
		return nil, err
	}
	return selecting(indexes, o), nil
}

// Other is a source that could divide the pods of an owner, and why it does not.
type Other struct {
	Source string `json:"source"`
	Why    string `json:"why"`
}

// Others returns the sources that could divide a pod's workload beside the one that does, which may be nil.
func (f *Finder) Others(ctx context.Context, pod Pod, winner *Policy) (out []Other, err error) {
	chain, err := world.Owners(ctx, f.World, pod.Namespace, pod.Owner)
	if err != nil {
		return nil, err
	}
	if winner != nil && winner.Distributor != nil {
		if a := matchOf(chain, pod.Annotations, nil); !a.None() {
			out = append(out, Other{"annotation of " + a.Source, "a PodDistributor wins over annotations"})
		}
	}
	selecting, err := f.Selecting(ctx, pod.Namespace, chain)
	if err != nil {
		return nil, err
	}
	var selected *Policy // by a policy that does not divide it now
	if winner == nil && len(selecting) > 0 {
		if selected, err = f.FindSelected(ctx, pod); err != nil {
			return nil, err
		}
	}
	for _, s := range selecting {
		if winner != nil && winner.Policy != nil && winner.Policy.sameAs(s) {
			continue
		}
		switch {
		case s.Spec.Mode != stowage.PolicyEnforce:
			out = append(out, Other{s.String(), "it is in Audit"})
		case winner == nil && selected != nil:
			out, selected = append(out, Other{s.String(), "the pods can run in none of its pools"}), nil
		case winner == nil:
		case winner.Policy == nil:
			out = append(out, Other{s.String(), "a PodDistributor or annotations win over policies"})
		default:
			out = append(out, Other{s.String(), whyBefore(winner.Policy, s)})
		}
	}
	return out, nil
}

// sameAs reports whether two are the same object.
func (p *SpreadPolicy) sameAs(other *SpreadPolicy) bool {
	return p.UID == other.UID && p.Kind == other.Kind
}

// ownerOf returns what policies select by, of the owner of some pods, with the policies of its namespace and of the cluster. It returns
// nil if no policy can select it.
func (f *Finder) ownerOf(ctx context.Context, namespace string, chain world.Chain) (*owner, [2]*policyIndex, error) {
	var none, indexes [2]*policyIndex
	own, err := f.World.Policies(ctx, namespace)
	if err != nil {
		return nil, none, err
	}
	cluster, err := f.World.Policies(ctx, "")
	if err != nil || own == nil && cluster == nil {
		return nil, none, err
	}
	bottom := chain.Bottom()
	if selectable := bottom != nil && bottom.Labelled; !selectable || slices.Contains(f.Excluded(), namespace) {
		return nil, none, nil
	}
	// Each lasts until its own policies change, so that a change in one namespace costs the others nothing.
	if own != nil {
		indexes[0] = f.indexOf(namespace, own, func() *policyIndex { known, _ := f.ofNamespaces.Get(namespace); return known }, func(index *policyIndex) {
			bytes := int64(0)
			for _, p := range own.Namespaced[:min(len(own.Namespaced), world.MostPolicies)] {
				bytes += selectorBytes(&p.Spec)
			}
			f.ofNamespaces.Add(namespace, index, bytes, rememberFor)
		})
	}
	if cluster != nil {
		indexes[1] = f.indexOf("", cluster, f.ofCluster.Load, f.ofCluster.Store)
	}
	ns, err := f.World.Namespace(ctx, namespace)
	if err != nil {
		return nil, none, err
	}
	o := &owner{namespace: namespace, ref: bottom.Ref, template: bottom.TemplateLabels}
	if ns != nil {
		o.labels = ns.Labels
	}
	return o, indexes, nil
}

// indexOf returns the index of some policies, which is made once, by the first request that needs it.
func (f *Finder) indexOf(namespace string, of *world.Policies, load func() *policyIndex, store func(*policyIndex)) *policyIndex {
	if known := load(); known != nil && known.of == of {
		return known
	}
	made, _, _ := f.indexing.Do(namespace, func() (any, error) {
		if known := load(); known != nil && known.of == of {
			return known, nil
		}
		index := f.newIndex(of)
		store(index)
		return index, nil
	})
	return made.(*policyIndex)
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

// What is remembered, in bytes, as long as it is in use. Anybody can write a strategy; the longest take half a megabyte.
const (
	parsedBytes   = 48 << 20
	compiledBytes = 48 << 20
	chosenBytes   = 16 << 20
	choiceBytes   = 256 // beside labels, which the cache has
	indexBytes    = 64 << 20
	policyBytes   = 1 << 10 // of the selectors of a policy
	rememberFor   = time.Hour
)

// compileText returns the strategy of an annotation, divided over the domains of another one, if that is not empty. What is no
// list of domains is ignored.
func compileText(text, over string) (*layout.Written, error) {
	s, err := sequence.Parse(text)
	if err != nil {
		return nil, err
	}
	if across, err := sequence.ParseAcross(over); over != "" && err == nil {
		return divided(s, &across, stowage.AcrossAnnotation)
	}
	return layout.New(s)
}

// parse is [compileText], once for each text.
func (f *Finder) parse(text, over string) (*layout.Written, error) {
	key := text + "\x00" + over
	if known, ok := f.parsed.Get(key); ok {
		return known.written, known.err
	}
	written, err := compileText(text, over)
	if len(text) <= sequence.MaxText && len(over) <= sequence.MaxAcross {
		bytes := 2*int64(len(key)) + written.Bytes()
		if err != nil {
			bytes += int64(len(err.Error()))
		}
		f.parsed.Add(key, parsed{written, err}, bytes, rememberFor)
	}
	return written, err
}

// compile returns what a PodDistributor says, computed once for each generation.
func (f *Finder) compile(d *versprei.PodDistributor) Compiled {
	return f.compiled(&d.ObjectMeta, func() (Compiled, any) {
		d = d.DeepCopy() // it may be a part of a list, which would be kept with it
		return Compile(d), d
	})
}

// CompiledPolicy is [CompilePolicy], computed once for each generation.
func (f *Finder) CompiledPolicy(s *SpreadPolicy) Compiled {
	return f.compiled(s.ObjectMeta, func() (Compiled, any) { return CompilePolicy(s), s.Spec })
}

// compiled returns what is known of a generation of an object. The function compile computes it, and also returns what is kept with it.
func (f *Finder) compiled(m *metav1.ObjectMeta, compile func() (Compiled, any)) Compiled {
	if known, ok := f.compiledSources.Get(m.UID); ok && m.UID != "" && known.generation == m.Generation {
		return known.policy
	}
	p, kept := compile()
	data, _ := json.Marshal(kept) // about as long as the object is large
	f.compiledSources.Add(m.UID, compiled{m.Generation, p}, 2*int64(len(data))+p.Bytes(), rememberFor)
	return p
}
