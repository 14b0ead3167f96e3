package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=stowage-repair,verbs=get;patch,namespace=stowage-system,roleName=stowage-spread-controllers

// backoffKey is the entry of the ConfigMap that keeps the back-off for the next leader.
const backoffKey = "backoff.json"

// How many workloads the ConfigMap has at most, and how long a UID may be. Each workload has cost an eviction.
const (
	maxBackoffs = 2000
	maxUID      = 64
)

// backoff is how long removals of a workload's pods wait, after some that won nothing.
type backoff struct {
	Wait  metav1.Duration `json:"wait"`
	Until metav1.Time     `json:"until"`
}

// inherit has all budgets go on where an earlier leader left them. It asks once in a term, before a pod is removed.
func (r *run) inherit(ctx context.Context) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	if r.backoffs != nil {
		return nil
	}
	var cm corev1.ConfigMap
	if err := r.Uncached.Get(ctx, r.Backoffs, &cm); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the back-off of earlier leaders: %w", err)
	}
	found := map[string]backoff{}
	if text := cm.Data[backoffKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			r.Log.Error(err, "the back-off of earlier leaders is not readable", "namespace", r.Backoffs.Namespace, "kind", "ConfigMap", "name", r.Backoffs.Name)
			found = map[string]backoff{}
		}
	}
	r.mu.Lock()
	for key, b := range found {
		namespace, uid, _ := strings.Cut(key, "/")
		r.historyOf(ledger.OwnerKey{Namespace: namespace, UID: types.UID(uid)}).budget.restore(r.Timing, b.Wait.Duration, b.Until.Time, r.Clock.Now())
	}
	r.mu.Unlock()
	r.backoffs = found
	r.store(ctx) // at once, so that a missing permission shows early
	return nil
}

// keep keeps a workload's back-off for the next leader.
func (r *run) keep(ctx context.Context, owner ledger.OwnerKey, wait time.Duration, until time.Time) {
	r.storing.Lock()
	defer r.storing.Unlock()
	maps.DeleteFunc(r.backoffs, func(_ string, b backoff) bool { return r.Clock.Since(b.Until.Time) > 2*r.Timing.MaxBackoff })
	key := owner.Namespace + "/" + string(owner.UID)
	if _, known := r.backoffs[key]; len(owner.UID) > maxUID || !known && len(r.backoffs) >= maxBackoffs {
		return
	}
	r.backoffs[key] = backoff{metav1.Duration{Duration: wait}, metav1.NewTime(until)}
	r.store(ctx)
}

// store writes the ConfigMap. The lock r.storing is held.
func (r *run) store(ctx context.Context) {
	text, err := json.Marshal(r.backoffs)
	var patch []byte
	if err == nil {
		patch, err = json.Marshal(map[string]any{"data": map[string]string{backoffKey: string(text)}})
	}
	if err == nil {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Backoffs.Namespace, Name: r.Backoffs.Name}}
		err = r.Uncached.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Error(err, "the back-off of repair was not stored, and the next leader begins anew", "namespace", r.Backoffs.Namespace, "kind", "ConfigMap", "name", r.Backoffs.Name)
	}
}
