// Package inspect shows people what Stowage has decided in a cluster. It shows how Stowage spreads each workload, how
// it sizes DaemonSets and how many VMs are in use. It also explains why one pod looks the way it does. It only reads,
// needs nothing from a running Stowage, and asks for no more than the ClusterRoles view and stowage-inspect allow
// (config/rbac).
package inspect

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Inspector looks at a cluster. Its settings should be those of the Stowage that runs
// there.
type Inspector struct {
	// Client reads from the API server.
	Client client.Client
	// Namespace is the one that Stowage runs in.
	Namespace string
	// Registration, Deployment, Controllers and Lease are the names of its webhook registration, of its
	// Deployments, and of the lease of its leader.
	Registration, Deployment, Controllers, Lease string
	// ConfigMap is the name of the one with settings that change without a restart. InvalidConfig is why it is invalid, or nil.
	ConfigMap     string
	InvalidConfig error
	// CertDir is where Stowage reads its certificate, or empty where it makes its own.
	CertDir string
	// ExcludedNamespaces are what [policy.Finder.Exclude] takes, NamespaceLabel is the
	// Finder's.
	ExcludedNamespaces []string
	NamespaceLabel     string
	PeerPods           peerpod.Config
	// Paused: the whole cluster is paused.
	Paused bool
	// Spread, Sizing and VMs are which features are on.
	Spread, Sizing, VMs bool
	// Capacity is nil where Stowage advertises no VMs.
	Capacity *Capacity
	Clock    clock.PassiveClock
	// Heard returns what the API server has warned of since it was called last. Where it is nil, nobody asks whether the webhook answers.
	Heard func() []string
	// Discovery is asked for what the API server lacks; nil where nothing is to be said of that.
	Discovery discovery.DiscoveryInterface
	// Context is the name of the kubeconfig's context that is looked at, and empty where there is none.
	Context string

	read atomic.Int64
	// kinds are those that the API server had at the beginning of the last status.
	kinds served
	// olderKinds are the kinds that lacked fields at olderAt.
	olderKinds []finding.Finding
	olderAt    time.Time
}

// Read returns how many objects were read so far.
func (i *Inspector) Read() int64 { return i.read.Load() }

// finder returns a finder of policies that reads from r.
func (i *Inspector) finder(r world.Snapshot) *policy.Finder {
	return policy.NewFinder(r, policy.Settings{NamespaceLabel: i.NamespaceLabel, ExcludedNamespaces: i.ExcludedNamespaces})
}

// each calls a function with every object of a kind, read in pages. A kind that the
// cluster does not have has no objects.
func each[T client.Object](ctx context.Context, i *Inspector, list client.ObjectList, use func(T), opts ...client.ListOption) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := list.DeepCopyObject().(client.ObjectList)
		err := i.Client.List(ctx, page, append(opts, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})...)
		i.read.Add(int64(meta.LenList(page)))
		return page, err
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		use(obj.(T))
		return nil
	})
	if absent(err) || apierrors.IsForbidden(err) && i.unserved(list) {
		return nil
	}
	return err
}

// unserved reports whether the API server is known not to have a kind of Stowage. It refuses to list such a kind to a user whose roles do not have it.
func (i *Inspector) unserved(list client.ObjectList) bool {
	if len(i.kinds.missing) == 0 {
		return false
	}
	gvk, err := i.Client.GroupVersionKindFor(list)
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	return err == nil && i.kinds.lacks(gvk)
}

// live returns the world as the API server has it at each question.
func (i *Inspector) live() worldapi.Live { return worldapi.NewLive(i.Client) }

// absent reports whether an error says that the cluster does not have a kind.
func absent(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// readable returns an error, unless it says that the user may not read something.
func readable(err error) error {
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// forbidden explains an error about permissions to whoever may not know the role.
func forbidden(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w\nask for the ClusterRoles view in the namespace, and stowage-inspect for what is not of a namespace", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
