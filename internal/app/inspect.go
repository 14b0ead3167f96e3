package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/inspect"
)

// inspectOptions are the settings of the commands that look at a cluster: kubectl's own,
// and those of the Stowage that runs there.
type inspectOptions struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	namespace string // that Stowage runs in
	spread    SpreadOptions
	sizing    SizingOptions
	peerPods  PeerPodOptions
}

func newInspectOptions(cmd *cobra.Command) *inspectOptions {
	d := DefaultOptions()
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
	errs := []error{applyEnv(cmd.Flags(), s.LookupEnv), o.spread.Validate(), o.peerPods.Validate()}
	if len(validation.IsDNS1123Label(o.namespace)) > 0 {
		errs = append(errs, fmt.Errorf("--stowage-namespace is %q; it must be a namespace's name", o.namespace))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, "", usageError{err}
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
	cfg.UserAgent = "kubectl-stowage/" + version()
	cfg.WarningHandler = rest.NoWarnings{}
	scheme, err := newScheme()
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", err
	}
	return &inspect.Inspector{
		Client: c, Namespace: o.namespace, Registration: registration,
		ExcludedNamespaces: o.spread.ExcludedNamespaces, NamespaceLabel: o.spread.NamespaceLabel, PeerPods: o.peerPods.Config,
		Spread: o.spread.Enabled, Sizing: o.sizing.Enabled, VMs: o.peerPods.Enabled,
	}, namespace, nil
}

// errNotOK means that the command did its work, and that what it looked at is not as it
// should be.
var errNotOK = errors.New("not everything is as it should be")

// look is how often the commands that wait look again.
const look = 2 * time.Second

// lastLook is how long a look that began within --timeout may take.
const lastLook = 30 * time.Second

func newStatusCommand(s Streams) *cobra.Command {
	var (
		output        = inspect.Formats[0]
		all           bool
		watch, wait   bool
		timeout       = 5 * time.Minute
		configuration *inspectOptions
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how workloads are spread, DaemonSets sized and VMs used",
		Long: `Compare what there is in a cluster with what should be: for each workload with a
strategy its pools, for each FlexDaemonsetTemplate its pods, and for peer pods the VMs
of the nodes. Templates and nodes are of the whole cluster; who may not list them sees
the rest. It reads only, and needs no running Stowage.

In a bar, █ is a pod that should be there, ░ one that is missing and ▒ one too many.

The exit status is 0 if everything is as it should be, 3 if not, 1 if that could not
be found out, and 2 if the command was called in a wrong way.`,
		Example: `  # The workloads of the current namespace
  kubectl stowage status

  # Those of all namespaces, with policies and node labels
  stowage status -A -o wide

  # Follow a rollout
  stowage status -n shop -w

  # In a script: wait until pods are where they should be
  stowage status -n shop --wait --timeout 2m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var errs []error
			if !slices.Contains(inspect.Formats, output) {
				errs = append(errs, fmt.Errorf("-o is %q; it must be %s", output, strings.Join(inspect.Formats, ", ")))
			}
			if watch && wait {
				errs = append(errs, errors.New("-w and --wait exclude each other"))
			}
			if cmd.Flags().Changed("timeout") && !wait {
				errs = append(errs, errors.New("--timeout is for --wait"))
			}
			if err := errors.Join(errs...); err != nil {
				return usageError{err}
			}
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			return runStatus(cmd.Context(), s, i, statusRun{namespace: namespace, output: output, watch: watch, wait: wait, timeout: timeout})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&output, "output", "o", output, strings.Join(inspect.Formats, ", "))
	fs.BoolVarP(&all, "all-namespaces", "A", all, "Look at the workloads of all namespaces")
	fs.BoolVarP(&watch, "watch", "w", watch, "Look again every two seconds, and print what changed")
	fs.BoolVar(&wait, "wait", wait, "Wait until everything is as it should be")
	fs.DurationVar(&timeout, "timeout", timeout, "How long --wait waits")
	configuration = newInspectOptions(cmd)
	return cmd
}

// statusRun is how the status is to be shown.
type statusRun struct {
	namespace, output string
	watch, wait       bool
	timeout           time.Duration
}

func runStatus(ctx context.Context, s Streams, i *inspect.Inspector, o statusRun) error {
	expired, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	bounded := ctx
	if o.wait {
		// There is time for a last look.
		var last context.CancelFunc
		bounded, last = context.WithTimeout(ctx, o.timeout+lastLook)
		defer last()
	}
	last, said := "", ""
	for {
		stop := progress(s.Err, i)
		r, err := i.Status(bounded, o.namespace)
		stop()
		switch {
		case err == nil:
		case o.watch && ctx.Err() != nil:
			return nil // that is how a watch ends
		case last == "" || ctx.Err() != nil || bounded.Err() != nil:
			return err
		default:
			// An API server that was there may come back.
			fmt.Fprintf(s.Err, "Warning: %v; looking again\n", err)
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
			continue
		}
		if last == "" {
			for _, w := range r.Warnings {
				fmt.Fprintf(s.Err, "Warning: %s\n", w)
			}
		}
		var text strings.Builder
		if err := r.Print(&text, o.output, o.namespace == ""); err != nil {
			return err
		}
		done := !o.wait || r.OK() || expired.Err() != nil
		switch {
		case o.wait && !done:
			if now := r.Verdict(); now != said {
				fmt.Fprintln(s.Err, now)
				said = now
			}
			last = text.String()
		case text.String() != last || o.wait:
			if o.watch && last != "" {
				fmt.Fprintln(s.Out, separator(o.output))
			}
			if _, err := io.WriteString(s.Out, text.String()); err != nil {
				return err
			}
			last = text.String()
		}
		if done && !o.watch {
			if !r.OK() {
				return errNotOK
			}
			return nil
		}
		select {
		case <-ctx.Done():
			if o.watch {
				return nil
			}
			return ctx.Err()
		case <-time.After(look):
		}
	}
}

// separator is what comes between two reports of a watch.
func separator(format string) string {
	if format == "yaml" {
		return "---"
	}
	return ""
}

// progress says now and then how far a look at a large cluster has come, until stop is
// called.
func progress(out io.Writer, i *inspect.Inspector) (stop func()) {
	before, ended, all := i.Read(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(all)
		tick := time.NewTicker(look)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				fmt.Fprintf(out, "reading the cluster: %d objects so far\n", i.Read()-before)
			}
		}
	}()
	return func() {
		close(ended)
		<-all
	}
}

func newExplainCommand(s Streams) *cobra.Command {
	var (
		output        = inspect.ExplainFormats[0]
		configuration *inspectOptions
	)
	cmd := &cobra.Command{
		Use:   "explain pod NAME",
		Short: "Say why a pod looks the way it does",
		Long: `Say in sentences what Stowage changed in a pod and why (the policy, the rule and the
arithmetic), what it left alone and why; and of a pod that it did not touch, the first
reason why not. It reads only, and needs no running Stowage.`,
		Example: `  # Why is this pod here, and so big?
  kubectl stowage explain pod web-7d9f6c-x2k5j -n shop

  # For a script
  stowage explain pod/web-7d9f6c-x2k5j -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if _, err := podArgument(args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(inspect.ExplainFormats, output) {
				return usageError{fmt.Errorf("-o is %q; it must be %s", output, strings.Join(inspect.ExplainFormats, ", "))}
			}
			name, _ := podArgument(args) // checked above
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			e, err := i.Explain(cmd.Context(), namespace, name)
			if err != nil {
				return err
			}
			return e.Print(s.Out, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, strings.Join(inspect.ExplainFormats, ", "))
	configuration = newInspectOptions(cmd)
	return cmd
}

// podArgument returns the pod's name in "pod NAME" or "pod/NAME".
func podArgument(args []string) (string, error) {
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || !slices.Contains([]string{"pod", "pods", "po"}, args[0]) || args[1] == "" {
		return "", errors.New("name a pod: explain pod NAME")
	}
	return args[1], nil
}
