package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
)

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
		Use:   "status [KIND/NAME...]",
		Short: "Show how workloads are spread, DaemonSets sized and VMs used",
		Long: `Compare what there is in a cluster with what should be. The report begins with Stowage
itself: its replicas, its leader and its certificate. Then it lists problems, each
with what to do about it. Problems are pods that bypassed the webhook or wait for
room, policies that concern nothing, and nodes with another number of VMs. Then it
shows each workload with a strategy and its pools, each FlexDaemonsetTemplate and its
pods, and the VMs of nodes.

Templates and nodes are those of the whole cluster. A user who may not list them sees
the rest. The settings of Stowage are read from its Deployment and from the ConfigMap
stowage-config; flags override them. The command only reads.

With names, such as deployment/web, it shows those workloads alone.

In a bar, █ is a pod that should be there, ░ one that is missing and ▒ one too many.

The exit status is 0 if everything is as it should be, and 3 if not. It is 1 if that
could not be found out, and 2 if the command was called in a wrong way.`,
		Example: `  # The workloads of the current namespace
  kubectl stowage status

  # One of them
  kubectl stowage status deployment/web

  # Those of all namespaces, with policies and node labels
  stowage status -A -o wide

  # Follow a rollout
  stowage status -n shop -w

  # In a script: wait until pods are where they should be
  stowage status -n shop --wait --timeout 2m`,
		Args: workloadNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			if all && len(args) > 0 {
				errs = append(errs, errors.New("names are of one namespace; -A looks at all of them"))
			}
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
				return config.NewUsageError(err)
			}
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			return runStatus(cmd.Context(), s, i, statusRun{namespace: namespace, names: args, output: output, watch: watch, wait: wait, timeout: timeout})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&output, "output", "o", output, strings.Join(inspect.Formats, ", "))
	fs.BoolVarP(&all, "all-namespaces", "A", all, "Look at the workloads of all namespaces")
	fs.BoolVarP(&watch, "watch", "w", watch, "Look again every two seconds, and print what changed")
	fs.BoolVar(&wait, "wait", wait, "Wait until everything is as it should be")
	fs.DurationVar(&timeout, "timeout", timeout, "How long --wait waits")
	configuration = newInspectOptions(cmd)
	cmd.ValidArgsFunction = configuration.completeObjects(false, "pod", "node", "replicaset")
	completeFormats(cmd, inspect.Formats)
	return cmd
}

// statusRun is how the status is to be shown.
type statusRun struct {
	namespace, output string
	names             []string
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
	last, printed := "", ""
	for {
		stop := progress(s.Err, i)
		r, err := i.Status(bounded, o.namespace)
		stop()
		switch {
		case err == nil:
		case errors.Is(err, inspect.ErrNoNamespace):
			return config.NewUsageError(err)
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
		if err == nil && len(o.names) > 0 {
			if unknown := r.Only(o.names); len(unknown) > 0 {
				return config.NewUsageError(fmt.Errorf("namespace %s has no workload with a strategy, a template or a problem named %s", o.namespace, strings.Join(unknown, ", ")))
			}
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
			if now := r.Verdict(); now != printed {
				fmt.Fprintln(s.Err, now)
				printed = now
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

// workloadNames accepts names such as deployment/web.
func workloadNames(_ *cobra.Command, args []string) error {
	for _, a := range args {
		if kind, name, ok := strings.Cut(a, "/"); !ok || kind == "" || name == "" || strings.Contains(name, "/") {
			return config.NewUsageError(fmt.Errorf("%q is not a workload; write KIND/NAME, such as deployment/web", a))
		}
	}
	return nil
}
