// Package costs writes the deletion costs by which scale-downs keep the spread of pods, for ScaleDownPolicies. Package layers has the rule.
//
// It promises that
//   - without a policy it watches no pod, and sends at most one request when this replica begins to lead;
//   - it reads and writes nothing but annotations of pods, and the statuses of policies: nothing waits for it;
//   - a cost that somebody else has written stays;
//   - a pod that no policy in Enforce selects loses the cost that was written.
package costs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/contest"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

const (
	// every is how often the controller looks for changes. Without any, it does nothing.
	every = 100 * time.Millisecond
	// writeRate is how many pods are written in a second, in the whole cluster, and atOnce how many writes may be on their way.
	writeRate = 100
	atOnce    = 20
	// writeTimeout bounds one write. Webhooks of others may delay it.
	writeTimeout = 5 * time.Second
	// The waits of an owner after a write that was refused.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	maxRefusal = 512 // bytes of why
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
	term     *leader.Term
	limit    *rate.Limiter
	contests contest.Contest[types.UID]
	pods     *pods

	// policiesChanged and nodesChanged say that all owners are to be looked at again.
	policiesChanged, nodesChanged atomic.Bool

	// One goroutine uses these, with the lock of the pods.
	sorted     []*policies.Policy
	values     map[string]int // how many the nodes have of each key
	stale      map[*owner]bool
	later      map[*owner]bool // owners whose plan says when to look again
	relabelled map[string]bool // nodes
	namespaces map[string]bool // whose labels or mode have changed
	flying     int             // writes on their way
	turns      int64

	// One goroutine uses these.
	stop     context.CancelFunc // of the watch of pods
	noted    bool               // the ConfigMap says that pods may have costs
	nextAsk  time.Time          // when it is read again
	nextNote time.Time          // when it is tried again to write it
	status   statuses
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := &run{
		Controller: c, term: t, limit: rate.NewLimiter(writeRate, atOnce), values: map[string]int{}, stale: map[*owner]bool{}, later: map[*owner]bool{},
		relabelled: map[string]bool{}, namespaces: map[string]bool{}, status: statuses{written: map[types.UID]time.Time{}},
	}
	r.forget()
	r.policiesChanged.Store(true)
	t.AtEnd(c.Policies.Changes.Add(func(struct{}) { r.policiesChanged.Store(true) }))
	t.AtEnd(func() { c.Metrics.set(nil) })
	if err := t.Watch(c.Informers, &corev1.Node{}, worldcache.Handler(func(was, is *corev1.Node, _ bool) {
		switch {
		case was == nil || is == nil:
			r.nodesChanged.Store(true)
		case !maps.Equal(was.Labels, is.Labels):
			r.nodesChanged.Store(true)
			r.note(r.relabelled, is.Name)
		}
	})); err != nil {
		return err
	}
	if err := t.Watch(c.Informers, &corev1.Namespace{}, worldcache.Handler(func(was, is *corev1.Namespace, _ bool) {
		if is != nil && (was == nil || !maps.Equal(was.Labels, is.Labels) || was.Annotations[stowage.ModeKey] != is.Annotations[stowage.ModeKey]) {
			r.note(r.namespaces, is.Name)
		}
	})); err != nil {
		return err
	}
	t.Every(every, r.beat)
	return nil
}

// forget forgets all pods.
func (r *run) forget() {
	r.pods = newPods(r.Clock.Now, func(pod types.UID) { r.contests.Written(pod, r.Clock.Now()) })
	clear(r.stale)
	clear(r.later)
}

func (r *run) note(in map[string]bool, name string) {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	in[name] = true
}

// beat looks at what has changed, and writes what is due.
func (r *run) beat(ctx context.Context) {
	now := r.Clock.Now()
	if r.policiesChanged.Swap(false) {
		sorted, known := r.Policies.all()
		if !known {
			r.policiesChanged.Store(true)
			return
		}
		r.sorted = sorted
		r.nodesChanged.Store(true)
		r.status.due = true
	}
	if !r.watches(ctx, now) || !r.pods.synced.Load() {
		return
	}
	if !r.noted && slices.ContainsFunc(r.sorted, (*policies.Policy).Enforces) && !now.Before(r.nextNote) {
		r.makeNote(ctx, now)
	}
	r.pods.mu.Lock()
	r.lookAtChanged(ctx, now)
	r.send(ctx, now)
	done := len(r.sorted) == 0 && r.flying == 0 && len(r.pods.changed)+len(r.stale)+len(r.later) == 0 && !r.anyMarked()
	r.pods.mu.Unlock()
	r.writeStatuses(ctx, now)
	if done {
		r.end(ctx)
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
			r.nextAsk = now.Add(lastRetry)
			r.Log.Error(err, "whether pods have deletion costs of an earlier ScaleDownPolicy is not known; this is tried again")
		}
		if r.noted = note.Data[noteKey] != ""; !r.noted {
			return false
		}
	}
	watch, stop := context.WithCancel(ctx)
	pods := r.pods
	r.stop = stop
	r.term.Go(func(context.Context) { pods.run(watch, r.Clientset.CoreV1().RESTClient()) })
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
		r.nextNote = now.Add(lastRetry)
		r.Log.Error(err, "a ConfigMap was not written; if the last ScaleDownPolicy goes while no replica runs, pods keep their deletion costs", "name", r.Note.Name)
		return
	}
	r.noted = true
}

// end ends the watch of pods, after no pod has a cost of a policy any more.
func (r *run) end(ctx context.Context) {
	if r.noted {
		if err := r.keep(ctx, nil); client.IgnoreNotFound(err) != nil {
			r.Log.Error(err, "a ConfigMap was not written; this is tried again", "name", r.Note.Name)
			return
		}
	}
	r.stop()
	r.stop, r.noted, r.nextAsk = nil, false, never
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	r.forget()
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

// mostStale is how many owners are looked at in a beat whose own pods have not changed. There may be thousands, and nodes come all the time.
const mostStale = 50

// lookAtChanged plans for the owners that need it.
func (r *run) lookAtChanged(ctx context.Context, now time.Time) {
	if r.nodesChanged.Swap(false) {
		clear(r.values)
		for _, o := range r.pods.owners {
			r.stale[o] = true
		}
	}
	if len(r.namespaces)+len(r.relabelled) > 0 {
		for _, o := range r.pods.owners {
			if r.namespaces[o.namespace] {
				r.pods.changed[o] = true
				continue
			}
			for _, p := range o.pods {
				if r.relabelled[p.node] {
					r.pods.changed[o] = true
					break
				}
			}
		}
		clear(r.namespaces)
		clear(r.relabelled)
	}
	for o := range r.later {
		if !now.Before(o.again) {
			r.pods.changed[o] = true
		}
	}
	for n := 0; len(r.stale) > 0 && n < mostStale; n++ {
		for o := range r.stale {
			r.pods.changed[o] = true
			delete(r.stale, o)
			break
		}
	}
	if len(r.pods.changed) > 0 {
		r.status.due = true
	}
	for o := range r.pods.changed {
		delete(r.stale, o)
		delete(r.later, o)
		if len(o.pods) == 0 {
			continue
		}
		if r.look(ctx, o, now); !o.again.IsZero() {
			r.later[o] = true
		}
	}
	clear(r.pods.changed)
}

// send begins to write what is due, as far as the rate allows: fresh pods before others, namespaces and then owners in turn.
func (r *run) send(ctx context.Context, now time.Time) {
	paused := map[string]bool{}
	pauses := func(namespace string) bool {
		is, known := paused[namespace]
		if !known {
			is = r.Scope.Paused(ctx, namespace)
			paused[namespace] = is
		}
		return is
	}
	for _, fresh := range []bool{true, false} {
		var queue []*owner
		for _, o := range r.pods.owners {
			if len(o.writes) > 0 && o.writes[0].fresh == fresh && !now.Before(o.retry) && !pauses(o.namespace) {
				queue = append(queue, o)
			}
		}
		slices.SortFunc(queue, func(a, b *owner) int { return cmp.Compare(a.turn, b.turn) })
		for len(queue) > 0 {
			var more []*owner
			for _, i := range fair.Turns(len(queue), func(i int) string { return queue[i].namespace }) {
				o := queue[i]
				if r.flying >= atOnce || !r.limit.AllowN(now, 1) {
					return
				}
				r.begin(o, o.writes[0])
				if o.writes = o.writes[1:]; len(o.writes) > 0 && o.writes[0].fresh == fresh {
					more = append(more, o)
				}
			}
			queue = more
		}
	}
}

// begin writes one pod, beside other writes.
func (r *run) begin(o *owner, w write) {
	r.turns++
	o.turn = r.turns
	w.pod.busy, w.pod.writing = true, w.cost
	r.flying++
	r.term.Go(func(ctx context.Context) {
		is, err := r.patch(ctx, o.namespace, w)
		r.pods.mu.Lock()
		defer r.pods.mu.Unlock()
		r.flying--
		r.finish(o, w, is, err)
	})
}

// patch writes the annotations of one pod, if it is as it was seen.
func (r *run) patch(ctx context.Context, namespace string, w write) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	annotations := map[string]any{stowage.ScaleDownCostAnnotation: nil}
	if w.cost < 0 {
		text := strconv.Itoa(int(w.cost))
		annotations = map[string]any{stowage.ScaleDownCostAnnotation: text, corev1.PodDeletionCost: text}
	} else if w.pod.whose == ours {
		annotations[corev1.PodDeletionCost] = nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.pod.uid, "resourceVersion": w.pod.version, "annotations": annotations}})
	if err != nil {
		return nil, err
	}
	return r.Clientset.CoreV1().Pods(namespace).Patch(ctx, w.pod.name, types.MergePatchType, body, metav1.PatchOptions{})
}

// finish notes what became of a write.
func (r *run) finish(o *owner, w write, is *corev1.Pod, err error) {
	now := r.Clock.Now()
	if p := o.pods[w.pod.uid]; p != nil {
		p.busy, p.writing = false, 0
		// A newer version of the pod comes with the watch, or that it is gone.
		p.conflicted = (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) && p.version == w.pod.version
	}
	r.pods.changed[o] = true
	switch {
	case err == nil:
		o.tries = tries{turn: o.turn}
		_ = r.pods.update(is) // it fails for other kinds alone
		r.Metrics.wrote(w, now.Sub(w.pod.bound))
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		r.Metrics.writes.WithLabelValues(outcomeConflict).Inc()
	default:
		r.Metrics.writes.WithLabelValues(outcomeRefused).Inc()
		o.failures++
		o.retry = now.Add(min(lastRetry, firstRetry<<min(o.failures-1, 16)))
		if text := fmt.Sprintf("pod %s/%s: %s", o.namespace, w.pod.name, bounded.Text(err.Error(), maxRefusal)); o.refusal != text {
			o.refusal = text
			r.Log.Info("the deletion cost of a pod was not written; this is tried again", "namespace", o.namespace, "pod", w.pod.name, "error", bounded.Text(err.Error(), maxRefusal))
		}
	}
}
