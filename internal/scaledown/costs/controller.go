// Package costs writes the deletion costs by which scale-downs keep the spread of pods, for ScaleDownPolicies. Package layers has the rule.
//
//	watches ─▶ pods, news ─▶ plan of each owner that has changed ─▶ writes, as fast as the rate allows ─▶ pods
//	                                                             └▶ statuses of policies
//
// It promises that
//   - without a policy it watches no pod, and sends one request when this replica begins to lead;
//   - it reads and writes nothing but annotations of pods, and the statuses of policies: nothing waits for it;
//   - it never overwrites another writer's cost;
//   - a pod that no policy in Enforce selects loses the cost that was written.
package costs

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/contest"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

const (
	// every is how often the controller looks for changes. Without any, it does nothing.
	every = 100 * time.Millisecond
	// mostLooked is how many pods are looked at in that time, with those of their owners: some 40 ms.
	mostLooked = 10_000
	// noteAgain is after how long a request about the ConfigMap is tried again.
	noteAgain = time.Minute
)

// Controller writes costs and keeps the statuses of policies.
type Controller struct {
	Policies *Policies
	// Cached reads nodes, namespaces and policies from the watch, and Uncached asks the API server.
	Cached    client.Reader
	Uncached  client.Client
	Clientset kubernetes.Interface
	Informers crcache.Informers
	Scope     *scope.Scope
	// Note is the name of a ConfigMap. It says whether pods may have costs that Stowage wrote.
	Note    types.NamespacedName
	Clock   clock.WithTicker
	Log     logr.Logger
	Metrics *Metrics
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch,roleName=stowage-scale-down-controllers
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch,roleName=stowage-scale-down-controllers
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=stowage-scale-down,verbs=get;patch,namespace=stowage-system,roleName=stowage-scale-down-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "scale-down" }

// run is the controller in one term.
type run struct {
	*Controller
	term  *leader.Term
	limit *rate.Limiter
	news  news
	// watching: pods are watched.
	watching atomic.Bool

	// pods has the lock of all that follows, up to the next blank line.
	pods     *pods
	nodes    nodeLabels
	contests contest.Contest[types.UID]
	sorted   []*policies.Policy
	// unjudged are owners that a policy may concern now that did not before, and stale those that a node may concern.
	unjudged, stale map[*owner]bool
	later           map[*owner]bool // owners whose plan says when to look again
	writing         map[*owner]bool // owners with writes to do
	flying          map[string]int  // writes on their way, by namespace
	// turns counts the writes, and turnOf has the number of the last one of a namespace.
	turns  int64
	turnOf map[string]int64
	due    bool // a status may have changed

	// The ticker of the beat alone uses these.
	stop     func()    // ends the watch of pods; nil while there is none
	noted    bool      // the ConfigMap says that pods may have costs
	nextAsk  time.Time // when the ConfigMap is read
	nextNote time.Time // when it is written, at the earliest
	forgot   time.Time // when contests were forgotten last

	// The ticker of the statuses alone uses this.
	statuses statuses
}

// news is what watches tell, until the next beat.
type news struct {
	mu sync.Mutex
	told
}

// told names what has changed. Policies are named by their namespace, which is empty for those of the cluster.
type told struct {
	policies, namespaces, relabelled map[string]bool
	nodes                            bool
}

func (n *news) tell(add func(*told)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.policies == nil {
		n.told = told{policies: map[string]bool{}, namespaces: map[string]bool{}, relabelled: map[string]bool{}}
	}
	add(&n.told)
}

func (n *news) take() told {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.told
	n.told = told{}
	return all
}

func (t *told) any() bool {
	return t.nodes || len(t.policies)+len(t.namespaces)+len(t.relabelled) > 0
}

func (c *Controller) newRun(t *leader.Term) *run {
	r := &run{
		Controller: c, term: t, limit: rate.NewLimiter(writeRate, atOnce), nodes: nodeLabels{}, unjudged: map[*owner]bool{}, stale: map[*owner]bool{},
		later: map[*owner]bool{}, writing: map[*owner]bool{}, flying: map[string]int{}, turnOf: map[string]int64{}, statuses: statuses{written: map[types.UID]time.Time{}, failed: map[types.UID]time.Time{}},
	}
	r.pods = newPods(c.Clock.Now, func(pod types.UID) { r.contests.Written(pod, c.Clock.Now()) })
	return r
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := c.newRun(t)
	policiesOf := func(namespace string) { r.news.tell(func(all *told) { all.policies[namespace] = true }) }
	policiesOf("")
	t.AtEnd(c.Policies.Changes.Add(policiesOf))
	t.AtEnd(func() { c.Metrics.set(nil) })
	if err := t.Watch(c.Informers, &corev1.Node{}, worldcache.Handler(func(was, is *corev1.Node, _ bool) { r.nodeSeen(was, is) })); err != nil {
		return err
	}
	if err := t.Watch(c.Informers, &corev1.Namespace{}, worldcache.Handler(func(was, is *corev1.Namespace, _ bool) {
		if is != nil && r.watching.Load() && (was == nil || !maps.Equal(was.Labels, is.Labels) || was.Annotations[stowage.ModeKey] != is.Annotations[stowage.ModeKey]) {
			r.news.tell(func(all *told) { all.namespaces[is.Name] = true })
		}
	})); err != nil {
		return err
	}
	t.Every(every, r.beat)
	t.Every(statusEvery, r.writeStatuses)
	return nil
}

// beat looks at what has changed, and writes what is due.
func (r *run) beat(ctx context.Context) {
	now, changes := r.Clock.Now(), r.news.take()
	if len(changes.policies) > 0 {
		sorted, known, err := r.Policies.all(ctx, r.Cached)
		if err != nil {
			r.Log.Error(err, "the ScaleDownPolicies were not listed; this is tried again")
		}
		if !known {
			r.news.tell(func(all *told) { maps.Copy(all.policies, changes.policies) })
			return
		}
		r.pods.mu.Lock()
		r.sorted, r.due = sorted, true
		r.pods.mu.Unlock()
	}
	if !r.watches(ctx, now) || !r.pods.synced.Load() {
		if r.stop != nil && changes.any() {
			r.news.tell(func(all *told) { all.policies[""] = true }) // all are looked at once they are known
		}
		return
	}
	if !r.noted && !now.Before(r.nextNote) && slices.ContainsFunc(r.sorted, (*policies.Policy).Enforces) {
		r.makeNote(ctx, now)
	}
	r.pods.mu.Lock()
	if now.Sub(r.forgot) >= time.Minute {
		r.contests.ForgetOld(now)
		r.forgot = now
	}
	r.mark(&changes, now)
	r.lookAtMarked(ctx, now)
	r.send(ctx, now)
	done := len(r.sorted)+len(r.flying)+len(r.pods.changed)+len(r.unjudged)+len(r.stale)+len(r.later)+len(r.writing) == 0 && !r.anyMarked()
	r.pods.mu.Unlock()
	if done && !now.Before(r.nextNote) {
		r.end(ctx, now)
	}
}

// watches reports whether pods are watched. Their watch begins once there is a policy, or if an earlier leader has left costs.
func (r *run) watches(ctx context.Context, now time.Time) bool {
	switch {
	case r.stop != nil:
		return true
	case len(r.sorted) > 0:
	case now.Before(r.nextAsk): // no pod has a cost, as far as is known
		return false
	default:
		var note corev1.ConfigMap
		err := r.Uncached.Get(ctx, r.Note, &note)
		if r.nextAsk = never; client.IgnoreNotFound(err) != nil {
			r.nextAsk = now.Add(noteAgain)
			r.Log.Error(err, "whether pods have deletion costs of an earlier ScaleDownPolicy is not known; this is tried again")
		}
		if r.noted = note.Data[noteKey] != ""; !r.noted {
			return false
		}
	}
	watch, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r.stop = func() {
		cancel()
		<-ended
	}
	r.watching.Store(true)
	r.term.Go(func(context.Context) {
		defer close(ended)
		r.pods.run(watch, r.Clientset.CoreV1().RESTClient())
	})
	return true
}

// never is a time that does not come.
var never = time.Unix(1<<40, 0)

// noteKey is the key of the ConfigMap that a later leader reads. It looks for costs of policies that are gone if there is a value.
const noteKey = "costs"

// keep notes whether pods may have costs.
func (r *run) keep(ctx context.Context, text any) error {
	body, err := json.Marshal(map[string]any{"data": map[string]any{noteKey: text}})
	if err != nil {
		return err
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Note.Namespace, Name: r.Note.Name}}
	return r.Uncached.Patch(ctx, note, client.RawPatch(types.MergePatchType, body))
}

// makeNote notes that pods may have costs.
func (r *run) makeNote(ctx context.Context, now time.Time) {
	if err := r.keep(ctx, "written"); err != nil {
		r.nextNote = now.Add(noteAgain)
		r.Log.Error(err, "a ConfigMap was not written; if the last ScaleDownPolicy goes while no replica runs, pods keep their deletion costs", "name", r.Note.Name)
		return
	}
	r.noted = true
}

// end ends the watch of pods, after no pod has a cost of a policy any more.
func (r *run) end(ctx context.Context, now time.Time) {
	if err := r.keep(ctx, nil); client.IgnoreNotFound(err) != nil {
		r.nextNote = now.Add(noteAgain)
		r.Log.Error(err, "a ConfigMap was not written; this is tried again", "name", r.Note.Name)
		return
	}
	r.watching.Store(false)
	r.stop()
	r.stop, r.noted, r.nextAsk = nil, false, never
	r.pods.clear()
}

// anyMarked reports whether a pod has a cost that Stowage wrote, or its mark.
func (r *run) anyMarked() bool {
	for _, o := range r.pods.owners {
		for _, p := range o.pods {
			if p.marked {
				return true
			}
		}
	}
	return false
}

// mark marks the owners that something new may concern.
func (r *run) mark(changes *told, now time.Time) {
	if changes.any() {
		for _, o := range r.pods.owners {
			switch {
			case changes.policies[""], changes.policies[o.namespace], changes.namespaces[o.namespace]:
				r.unjudged[o] = true
			case o.anyOn(changes.relabelled):
				r.pods.changed[o] = true
			case changes.nodes:
				r.stale[o] = true
			}
		}
	}
	for o := range r.later {
		if !now.Before(o.again) {
			r.pods.changed[o] = true
		}
	}
}

// lookAtMarked plans for the owners that are marked: first for those whose own pods have changed.
func (r *run) lookAtMarked(ctx context.Context, now time.Time) {
	left := mostLooked
	for _, marked := range []map[*owner]bool{r.pods.changed, r.unjudged, r.stale} {
		for o := range marked {
			if left <= 0 {
				return
			}
			for _, set := range []map[*owner]bool{r.pods.changed, r.unjudged, r.stale, r.later, r.writing} {
				delete(set, o)
			}
			r.due = true
			if len(o.pods) == 0 {
				continue
			}
			left -= len(o.pods) + mostLooked/200
			r.look(ctx, o, now)
			if !o.again.IsZero() {
				r.later[o] = true
			}
			if len(o.writes) > 0 {
				r.writing[o] = true
			}
		}
	}
}
