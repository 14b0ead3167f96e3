//go:build !offline

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/platform/version"
	"github.com/stowage-dev/stowage/internal/server"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
)

// connection is kubectl's own settings: which cluster, which namespace.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	heard     rest.WarningHandler // of the API server's warnings; nil drops them
	context   string              // that a client was made for, or empty
	cluster   string              // the same with its server
}

func newConnection() connection {
	return connection{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
}

// addFlags adds kubectl's flags.
func (o *connection) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.rules.ExplicitPath, "kubeconfig", "", "Path of a kubeconfig; empty is the usual one")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.ContextOverrideFlags.Namespace.ShortName = "n"
	clientcmd.BindOverrideFlags(&o.overrides, fs, flags)
	o.completeNamespaces(cmd, "namespace")
}

// inspectOptions are the settings of the commands that look at a cluster: kubectl's own,
// and those of the Stowage that runs there.
type inspectOptions struct {
	connection
	namespace string              // that Stowage runs in
	spread    spreadadmit.Options // these three are the user's, and else the server's
	sizing    sizeadmit.Options
	peerPods  vmadmit.Options
}

func newInspectOptions(cmd *cobra.Command) *inspectOptions {
	d := server.DefaultOptions()
	o := &inspectOptions{connection: newConnection(), namespace: d.Namespace, spread: d.Spread.Feature, sizing: d.Size.Feature, peerPods: d.VM.Feature}
	fs := cmd.Flags()
	fs.StringVar(&o.namespace, "stowage-namespace", o.namespace, "Namespace that Stowage runs in")
	o.spread.AddFlags(fs)
	o.sizing.AddFlags(fs)
	o.peerPods.AddFlags(fs)
	o.addFlags(cmd)
	o.completeNamespaces(cmd, "stowage-namespace")
	return o
}

// inspector checks the settings and returns what looks at the cluster, and the namespace
// that was asked for.
func (o *inspectOptions) inspector(cmd *cobra.Command, s Streams) (*inspect.Inspector, string, error) {
	wrong := config.ApplyEnv(cmd.Flags(), s.LookupEnv) // before the settings are looked at
	if err := errors.Join(wrong, o.spread.Validate(), o.peerPods.Validate(),
		errorIf(len(validation.IsDNS1123Label(o.namespace)) > 0, "--stowage-namespace is %q; it must be a namespace's name", o.namespace),
	); err != nil {
		return nil, "", config.NewSettingsError(cmd.Flags(), err)
	}
	var heard warnings
	o.heard = &heard
	c, discover, namespace, err := o.client()
	if err != nil {
		return nil, "", err
	}
	settings, invalid, err := o.fromCluster(cmd.Context(), c, cmd.Flags(), s.Err)
	if err != nil {
		return nil, "", err
	}
	capacity, err := o.capacity(settings)
	if err != nil {
		return nil, "", err
	}
	return &inspect.Inspector{
		Client: c, Heard: heard.take, Discovery: discover, Context: o.context, Clock: clock.RealClock{}, Capacity: capacity, Namespace: o.namespace,
		Registration: server.Registration, Deployment: server.Deployment, Controllers: server.ControllersDeployment, Lease: server.LeaderLease, CertDir: settings.CertDir, ConfigMap: server.ConfigMapName, InvalidConfig: invalid,
		ExcludedNamespaces: o.spread.ExcludedNamespaces, NamespaceLabel: o.spread.NamespaceLabel, PeerPods: o.peerPods.Config,
		Paused: settings.Paused, Spread: o.spread.Enabled, Sizing: o.sizing.Enabled, VMs: o.peerPods.Enabled,
	}, namespace, nil
}

// client returns clients for the cluster that the flags name, and the namespace that they name.
func (o *connection) client() (client.Client, discovery.DiscoveryInterface, string, error) {
	kube := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides)
	namespace, _, err := kube.Namespace()
	if err != nil {
		return nil, nil, "", o.unusable(err)
	}
	cfg, err := kube.ClientConfig()
	if err != nil {
		return nil, nil, "", o.unusable(err)
	}
	raw, err := kube.RawConfig()
	if err != nil {
		return nil, nil, "", o.unusable(err)
	}
	o.context = cmp.Or(o.overrides.CurrentContext, raw.CurrentContext)
	o.cluster = strings.TrimPrefix(o.context+", "+withoutPassword(cfg.Host), ", ")
	cfg.QPS = -1 // priority and fairness protects the server
	cfg.UserAgent = "kubectl-stowage/" + version.String()
	cfg.WarningHandler = rest.NoWarnings{}
	if o.heard != nil {
		cfg.WarningHandler = o.heard
	}
	scheme, err := api.NewScheme()
	if err != nil {
		return nil, nil, "", err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, "", err
	}
	discover, err := discovery.NewDiscoveryClientForConfig(cfg)
	return c, discover, namespace, err
}

// unusable says what is wrong with the kubeconfig, and what to do.
func (o *connection) unusable(err error) error {
	const another = "name another one with --kubeconfig or $KUBECONFIG"
	path, text := (*fs.PathError)(nil), err.Error()
	switch {
	case clientcmd.IsEmptyConfig(err):
		err = fmt.Errorf("there is no kubeconfig (%s), so no cluster is known; name one with --kubeconfig or $KUBECONFIG, or write it to ~/.kube/config", strings.Join(o.rules.GetLoadingPrecedence(), ", "))
	case clientcmd.IsContextNotFound(err):
		err = errors.New("the kubeconfig has no such context; kubectl config get-contexts lists those that it has")
		if m := unknownContext.FindStringSubmatch(text); m != nil {
			err = fmt.Errorf("the kubeconfig has no context %q; kubectl config get-contexts lists those that it has", m[1])
		}
	case strings.HasPrefix(text, "error loading config file"):
		err = fmt.Errorf("the kubeconfig cannot be used: %s; %s", strings.TrimPrefix(text, "error loading config file "), another)
	case errors.As(err, &path):
		err = fmt.Errorf("%w; %s", err, another)
	}
	return fmt.Errorf("find the API server: %w", err)
}

// unknownContext finds the name of a context that a kubeconfig does not have.
var unknownContext = regexp.MustCompile(`specified context: ([^,\]]+)`)

// fromCluster takes the settings that the user has not given from the Deployment of Stowage and from its ConfigMap,
// where the user may read them. While the ConfigMap is invalid, the leader's lease has what holds. It returns the settings of the
// Deployment, and why the ConfigMap is invalid, if it is.
func (o *inspectOptions) fromCluster(ctx context.Context, c client.Client, fs *pflag.FlagSet, warnings io.Writer) (settings server.Options, invalid, err error) {
	var d appsv1.Deployment
	if err := c.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: server.Deployment}, &d); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return server.Options{}, nil, fmt.Errorf("read the settings of Stowage: %w", err)
	}
	var cm corev1.ConfigMap
	if err := c.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: server.ConfigMapName}, &cm); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return server.Options{}, nil, fmt.Errorf("read the settings of Stowage: %w", err)
	}
	if settings, invalid, err = server.Deployed(&d, cm.Data); err != nil {
		fmt.Fprintf(warnings, "Warning: the settings of Deployment %s in namespace %s are not understood, and the defaults are used: %v\n", server.Deployment, o.namespace, err)
		settings = server.DefaultOptions()
	}
	if invalid != nil {
		var lease coordinationv1.Lease
		if err := c.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: server.LeaderLease}, &lease); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return server.Options{}, nil, fmt.Errorf("read the settings of Stowage: %w", err)
		}
		if blocked := lease.Annotations[stowage.BlocklistAnnotation]; blocked != "" {
			settings.Spread.Feature.ExcludedNamespaces = strings.Split(blocked, ",")
		}
	}
	// The user's own settings win.
	deployed := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.Spread.Feature.AddFlags(deployed)
	settings.Size.Feature.AddFlags(deployed)
	settings.VM.Feature.AddFlags(deployed)
	var errs []error
	deployed.VisitAll(func(f *pflag.Flag) {
		mine := fs.Lookup(f.Name)
		list, isList := f.Value.(pflag.SliceValue)
		switch {
		case mine.Changed:
		case isList:
			errs = append(errs, mine.Value.(pflag.SliceValue).Replace(list.GetSlice()))
		default:
			errs = append(errs, mine.Value.Set(f.Value.String()))
		}
	})
	return settings, invalid, errors.Join(errs...)
}

// capacity returns how Stowage advertises VMs, or nil where it does not.
func (o *inspectOptions) capacity(settings server.Options) (*inspect.Capacity, error) {
	if !settings.VM.Advertises() {
		return nil, nil
	}
	nodes, err := labels.Parse(settings.VM.Capacity.NodeSelector)
	if err != nil {
		return nil, err
	}
	daemons, err := labels.Parse(settings.VM.Capacity.DaemonSelector)
	if err != nil {
		return nil, err
	}
	return &inspect.Capacity{
		ConfigMap: types.NamespacedName{Namespace: cmp.Or(settings.VM.Capacity.ConfigMapNamespace, o.namespace), Name: stowage.PeerPodsConfigMap},
		Default:   settings.VM.Capacity.Default, Nodes: nodes,
		Mode: settings.VM.Capacity.Mode, Daemons: daemons, DaemonNamespace: settings.VM.Capacity.DaemonNamespace,
	}, nil
}
