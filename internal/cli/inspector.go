package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/internal/version"
)

// inspectOptions are the settings of the commands that look at a cluster: kubectl's own,
// and those of the Stowage that runs there.
type inspectOptions struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	namespace string // that Stowage runs in
	spread    config.SpreadOptions
	sizing    config.SizingOptions
	peerPods  config.PeerPodOptions
}

func newInspectOptions(cmd *cobra.Command) *inspectOptions {
	d := config.DefaultOptions()
	o := &inspectOptions{rules: clientcmd.NewDefaultClientConfigLoadingRules(), namespace: d.Namespace, spread: d.Spread, sizing: d.Sizing, peerPods: d.PeerPods}
	fs := cmd.Flags()
	fs.StringVar(&o.namespace, "stowage-namespace", o.namespace, "Namespace that Stowage runs in")
	o.spread.AddFlags(fs)
	o.sizing.AddFlags(fs)
	o.peerPods.AddFlags(fs)
	fs.StringVar(&o.rules.ExplicitPath, "kubeconfig", "", "Path of a kubeconfig; empty is the usual one")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.ContextOverrideFlags.Namespace.ShortName = "n"
	clientcmd.BindOverrideFlags(&o.overrides, fs, flags)
	return o
}

// inspector checks the settings and returns what looks at the cluster, and the namespace
// that was asked for.
func (o *inspectOptions) inspector(cmd *cobra.Command, s Streams) (*inspect.Inspector, string, error) {
	errs := []error{config.ApplyEnv(cmd.Flags(), s.LookupEnv), o.spread.Validate(), o.peerPods.Validate()}
	if len(validation.IsDNS1123Label(o.namespace)) > 0 {
		errs = append(errs, fmt.Errorf("--stowage-namespace is %q; it must be a namespace's name", o.namespace))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, "", config.NewUsageError(err)
	}
	kube := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides)
	namespace, _, err := kube.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("find the API server: %w", err)
	}
	cfg, err := kube.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("find the API server: %w; name a kubeconfig with --kubeconfig or $KUBECONFIG", err)
	}
	cfg.QPS = -1 // priority and fairness protects the server
	cfg.UserAgent = "kubectl-stowage/" + version.String()
	cfg.WarningHandler = rest.NoWarnings{}
	scheme, err := api.NewScheme()
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", err
	}
	return &inspect.Inspector{
		Client: c, Namespace: o.namespace, Registration: server.Registration,
		ExcludedNamespaces: o.spread.ExcludedNamespaces, NamespaceLabel: o.spread.NamespaceLabel, PeerPods: o.peerPods.Config,
		Spread: o.spread.Enabled, Sizing: o.sizing.Enabled, VMs: o.peerPods.Enabled,
	}, namespace, nil
}
