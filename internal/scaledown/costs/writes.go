package costs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

const (
	// writeRate is how many pods are written in a second, in the whole cluster, and atOnce how many writes may be on their way. Those of one namespace have a
	// part of them, because webhooks of others may delay writes.
	writeRate    = 100
	atOnce       = 20
	ofNamespace  = 4
	writeTimeout = 5 * time.Second
	// notFresh: of so many writes, one is of a pod that is not fresh, if there is any. Who makes pods all the time does not keep others waiting.
	notFresh = 5
	// The waits of a pod after a write that was refused, and after one that came too late if nothing newer is seen.
	firstRetry   = time.Second
	lastRetry    = 5 * time.Minute
	conflictWait = 5 * time.Second
	// mostFailing is how many pods of an owner may fail, each by itself, before the owner is tried with one pod at a time.
	mostFailing = 3
	maxRefusal  = 512 // bytes of why
)

// send begins to write what is due, as far as the rate allows.
func (r *run) send(ctx context.Context, now time.Time) {
	paused := map[string]bool{}
	for len(r.writing) > 0 && r.flown() < atOnce && r.limit.TokensAt(now) >= 1 {
		fresh := r.turns%notFresh != 0
		o := r.pick(ctx, now, fresh, paused)
		if o == nil {
			fresh = !fresh
			o = r.pick(ctx, now, fresh, paused)
		}
		if o == nil {
			return
		}
		r.limit.AllowN(now, 1)
		r.begin(o, o.next(fresh))
	}
	if len(r.writing) == 0 {
		clear(r.turnOf)
	}
}

// pick returns an owner with a write of a fresh pod, or of another one, that may be done now: of the namespace that was written longest ago, the owner that
// was. It returns nil if there is none. Paused remembers which namespaces are paused.
func (r *run) pick(ctx context.Context, now time.Time, fresh bool, paused map[string]bool) (best *owner) {
	for o := range r.writing {
		is, known := paused[o.namespace]
		if !known {
			is = r.Scope.Paused(ctx, o.namespace)
			paused[o.namespace] = is
		}
		if is || r.flying[o.namespace] >= ofNamespace || o.probing && o.flying > 0 || now.Before(o.retry) || o.next(fresh) < 0 {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(r.turnOf[o.namespace], r.turnOf[best.namespace]), cmp.Compare(o.turn, best.turn)) < 0 {
			best = o
		}
	}
	return best
}

// flown is how many writes are on their way.
func (r *run) flown() (sum int) {
	for _, n := range r.flying {
		sum += n
	}
	return sum
}

// next returns the place of the next write of an owner that is of a fresh pod, or of none, or -1.
func (o *owner) next(fresh bool) int {
	return slices.IndexFunc(o.writes, func(w write) bool { return w.fresh == fresh })
}

// begin writes one pod, beside other writes.
func (r *run) begin(o *owner, at int) {
	w := o.writes[at]
	if o.writes = slices.Delete(o.writes, at, at+1); len(o.writes) == 0 {
		delete(r.writing, o)
	}
	r.turns++
	o.turn, r.turnOf[o.namespace] = r.turns, r.turns
	w.pod.busy, w.pod.writing = true, w.cost
	o.flying++
	r.flying[o.namespace]++
	r.term.Go(func(ctx context.Context) {
		is, err := r.patch(ctx, o.namespace, w)
		r.pods.mu.Lock()
		defer r.pods.mu.Unlock()
		o.flying--
		if r.flying[o.namespace]--; r.flying[o.namespace] == 0 {
			delete(r.flying, o.namespace)
		}
		r.finish(o, w, is, err)
		r.send(ctx, r.Clock.Now())
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
	} else if w.was == ours {
		annotations[corev1.PodDeletionCost] = nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.pod.uid, "resourceVersion": w.version, "annotations": annotations}})
	if err != nil {
		return nil, err
	}
	return r.Clientset.CoreV1().Pods(namespace).Patch(ctx, w.pod.name, types.MergePatchType, body, metav1.PatchOptions{})
}

// finish notes what became of a write.
func (r *run) finish(o *owner, w write, is *corev1.Pod, err error) {
	if err == nil {
		_ = r.pods.update(is) // it fails for other kinds alone
	}
	now, p := r.Clock.Now(), o.pods[w.pod.uid]
	if p == nil {
		p = &pod{} // it is gone
	}
	p.busy, p.writing = false, 0
	r.pods.changed[o] = true
	switch {
	case err == nil:
		r.Metrics.wrote(w, now.Sub(w.pod.bound))
		if p.uid != "" && !w.done(p) {
			r.contests.Written(p.uid, now) // somebody has changed it within the request
		}
		o.wrote()
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		r.Metrics.writes.WithLabelValues(outcomeConflict).Inc()
		if p.version == w.version { // a newer version comes with the watch, or that the pod is gone
			p.retry = now.Add(conflictWait)
		}
	default:
		r.Metrics.writes.WithLabelValues(outcomeRefused).Inc()
		o.failed(p, now, bounded.Text(err.Error(), maxRefusal))
		r.Log.V(1).Info("the deletion cost of a pod was not written; this is tried again", "namespace", o.namespace, "pod", w.pod.name, "error", bounded.Text(err.Error(), maxRefusal))
	}
}

// done reports whether a pod has what was written.
func (w *write) done(p *pod) bool {
	if w.cost == 0 {
		return !p.marked
	}
	return p.whose == ours && p.cost == w.cost
}

// wrote notes that a pod of the owner was written: others are tried again at once.
func (o *owner) wrote() {
	o.retry, o.probing, o.rounds = time.Time{}, false, 0
	for _, p := range o.pods {
		if p.failures > 0 {
			p.retry = time.Time{}
		}
	}
}

// failed notes that a write of a pod was refused.
func (o *owner) failed(p *pod, now time.Time, why string) {
	p.failures++
	p.retry = now.Add(min(lastRetry, firstRetry<<min(p.failures-1, 16)))
	if o.refusal == "" {
		o.refused, o.refusal = p.uid, fmt.Sprintf("pod %s/%s: %s", o.namespace, p.name, why)
	}
	failing := 0
	for _, other := range o.pods {
		if other.failures > 0 {
			failing++
		}
	}
	if failing >= mostFailing && !now.Before(o.retry) { // else it was on its way with others
		o.probing = true
		o.rounds++
		o.retry = now.Add(min(lastRetry, firstRetry<<min(o.rounds-1, 16)))
	}
}
