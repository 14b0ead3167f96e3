package gate

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// API is what the controller asks of the API server.
type API interface {
	// Registration returns what the registration of the webhook selects.
	Registration(ctx context.Context) (*selection.Registration, error)
	// Get returns a pod.
	Get(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Patch sends a strategic merge patch of a pod, once.
	Patch(ctx context.Context, namespace, name string, patch []byte) error
	// Verdicts returns what earlier leaders kept, and KeepVerdicts keeps it for the next one.
	Verdicts(ctx context.Context) (Verdicts, error)
	KeepVerdicts(ctx context.Context, v Verdicts) error
	// Watch tells a store of all pods without a node until ctx ends.
	Watch(ctx context.Context, store cache.ReflectorStore)
}

// Seats gives seats. seats.Service is the one on a cluster.
type Seats interface {
	admit.Seats
	// Hold is Claim for a pod that exists. It returns once the pod is in the queue. The function that it returns waits for the seat. The
	// claim may be used until the time that this function returns. See [ledger.Request] for within.
	Hold(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost, within bool) func() (ledger.Result, time.Time, error)
	// Pods are the pods that have a seat.
	Pods() *seats.Pods
}

var _ Seats = &seats.Service{}

// Cluster is the [API] of a cluster.
type Cluster struct {
	Pods     kubernetes.Interface
	Once     client.Client // sends each request once
	Uncached client.Reader
	// Registrations reads the webhook's registration.
	Registrations *selection.Reader
	// Kept is the ConfigMap in which the leader keeps things for the next one.
	Kept types.NamespacedName
}

var _ API = &Cluster{}

// Registration implements [API].
func (c *Cluster) Registration(ctx context.Context) (*selection.Registration, error) {
	return c.Registrations.Read(ctx)
}

// Get implements [API].
func (c *Cluster) Get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.Pods.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Patch implements [API].
func (c *Cluster) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return c.Once.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, client.RawPatch(types.StrategicMergePatchType, patch))
}

// verdictsKey is the entry of the ConfigMap that has the verdicts.
const verdictsKey = "gate.json"

// Verdicts implements [API]. What nobody can read is nothing.
func (c *Cluster) Verdicts(ctx context.Context) (Verdicts, error) {
	var cm corev1.ConfigMap
	if err := c.Uncached.Get(ctx, c.Kept, &cm); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	kept := Verdicts{}
	_ = json.Unmarshal([]byte(cm.Data[verdictsKey]), &kept)
	return kept, nil
}

// KeepVerdicts implements [API].
func (c *Cluster) KeepVerdicts(ctx context.Context, v Verdicts) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{verdictsKey: string(text)}})
	if err != nil {
		return err
	}
	return c.Once.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Kept.Namespace, Name: c.Kept.Name}}, client.RawPatch(types.MergePatchType, patch))
}

// Watch implements [API]. A cluster in which no pod waits for a node costs nothing.
func (c *Cluster) Watch(ctx context.Context, store cache.ReflectorStore) {
	pods := c.Pods.CoreV1().RESTClient()
	lw := cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(pods, "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", "")), pods)
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, store, cache.ReflectorOptions{Name: "pods without a node"}).RunWithContext(ctx)
}
