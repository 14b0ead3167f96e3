//go:build !offline

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/report"
)

// lastLook is how long a look that began within --timeout may take.
const lastLook = 30 * time.Second

func newStatusCommand(s Streams) *cobra.Command {
	var (
		output        = inspect.Formats[0]
		allNamespaces bool
		all           bool
		watch, wait   bool
		timeout       = 5 * time.Minute
		configuration *inspectOptions
	)
	cmd := &cobra.Command{
		Use:   "status [KIND/NAME...]",
		Short: "Show how workloads are spread, DaemonSets sized and VMs used",
		Long: `Compare what there is in a cluster with what should be. The report begins with Stowage
itself: its replicas, its leader and its certificate. Then it lists each problem: the
object, the cause, and after → what to do. Then it shows each workload with a strategy
and its pools, each FlexDaemonsetTemplate and its pods, and the VMs of nodes. If there
are many workloads, those that are as they should be are only counted; --all shows them.

Templates and nodes are those of the whole cluster. A user who may not list them sees
the rest. The settings of Stowage are read from its Deployment and from the ConfigMap
stowage-config; flags override them. The command only reads.

With names, it shows those objects alone, with the problems of what belongs to them. A
name is of a workload, a DaemonSet, a PodDistributor or a FlexDaemonsetTemplate, such as
deployment/web or pd/web.

On a terminal, the report has colors, unless the variable NO_COLOR is set.

The exit status is 0 if everything is as it should be, and 3 if not, or if Stowage is
not installed in the cluster of the context. It is 1 if that could not be found out, and 2 if the command was called in a wrong way.`,
		Example: `  # The workloads of the current namespace
  kubectl stowage status

  # One of them, with its ReplicaSets, its pods and its policy
  kubectl stowage status deployment/web

  # Those of all namespaces, with policies and node labels
  stowage status -A -o wide

  # Follow a rollout
  stowage status -n shop -w

  # In a script: wait until pods are where they should be
  stowage status -n shop --wait --timeout 2m`,
		Args: workloadNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(
				errorIf(allNamespaces && len(args) > 0, "names are of one namespace; -A looks at all of them"),
				checkFormat(output, inspect.Formats),
				errorIf(watch && output == "html", "-o html is a page, and -w shows one report after the other"),
				errorIf(watch && wait, "-w and --wait exclude each other"),
				errorIf(cmd.Flags().Changed("timeout") && !wait, "--timeout is for --wait"),
				errorIf(timeout < 0, "--timeout is %v; it must not be negative", timeout),
			); err != nil {
				return config.NewUsageError(err)
			}
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			if allNamespaces {
				namespace = ""
			}
			layout := inspect.Layout{Format: output, AllNamespaces: allNamespaces, All: all}
			layout.Width, layout.Color = s.terminal()
			return runStatus(cmd.Context(), s, i, statusRun{
				namespace: namespace, names: args, layout: layout, watch: watch, wait: wait, timeout: timeout,
				page: func(out io.Writer) io.Writer { return page(cmd, out, i.Clock.Now(), configuration.cluster) },
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&output, "output", "o", output, strings.Join(inspect.Formats, ", "))
	fs.BoolVarP(&allNamespaces, "all-namespaces", "A", allNamespaces, "Look at the workloads of all namespaces")
	fs.BoolVar(&all, "all", all, "Show every problem, and the rows of every workload, however many there are")
	fs.BoolVarP(&watch, "watch", "w", watch, "Look again every two seconds. On a terminal, the new report replaces the old one; elsewhere, it follows if it differs")
	fs.BoolVar(&wait, "wait", wait, "Wait until everything is as it should be")
	fs.DurationVar(&timeout, "timeout", timeout, "How long --wait waits")
	configuration = newInspectOptions(cmd)
	cmd.ValidArgsFunction = configuration.completeObjects(false, "pod", "node", "replicaset")
	completeFormats(cmd, inspect.Formats)
	return cmd
}

// statusRun is how the status is to be shown.
type statusRun struct {
	namespace   string
	names       []string
	layout      inspect.Layout
	watch, wait bool
	timeout     time.Duration
	page        func(io.Writer) io.Writer // the output of a page
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
	l := &statusLoop{Streams: s, statusRun: o, inspector: i}
	for {
		r, err := l.look(ctx, bounded)
		done := false
		if r != nil {
			done = !o.wait || r.OK() || expired.Err() != nil
			err = l.show(r, done)
		}
		switch {
		case o.watch && ctx.Err() != nil:
			return nil // that is how a watch ends
		case err != nil:
			return err
		case done && !o.watch:
			return verdict(r.OK())
		}
		if err := pause(ctx); err != nil && !o.watch {
			return err
		}
	}
}

// verdict is the error of a command whose work is done, by whether what it looked at is as it should be.
func verdict(ok bool) error {
	if !ok {
		return errNotOK
	}
	return nil
}

// pause waits until it is time to look again. It returns an error if ctx ends before.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(look):
	}
	return ctx.Err()
}

// statusLoop is what a status that is printed more than once remembers.
type statusLoop struct {
	Streams
	statusRun
	inspector *inspect.Inspector
	last      string // that was looked at
	waits     string // that it waits, as it was printed last
}

// look returns the status, or nil if it is to be looked at again: an API server that was there may come back.
func (l *statusLoop) look(ctx, bounded context.Context) (*inspect.Report, error) {
	stop := progress(l.Err, look, objectsRead(l.inspector))
	r, err := l.inspector.Status(bounded, l.namespace)
	stop()
	switch {
	case errors.Is(err, inspect.ErrNoNamespace):
		return nil, config.NewUsageError(err)
	case err != nil && (l.last == "" || ctx.Err() != nil || bounded.Err() != nil):
		return nil, err
	case err != nil:
		fmt.Fprintf(l.Err, "Warning: %s; looking again\n", report.Plain(err.Error()))
		return nil, nil
	}
	if len(l.names) > 0 && !r.NotInstalled() {
		if unknown := r.Only(l.names); len(unknown) > 0 {
			return nil, config.NewUsageError(fmt.Errorf("there is no %s with a policy or a problem in namespace %s%s", strings.Join(unknown, ", "), l.namespace, didYouMean(likeKinds(unknown)...)))
		}
	}
	if l.last == "" {
		printWarnings(l.Err, r.Warnings)
	}
	return r, nil
}

// show prints a status, or while it waits one line if that is another one than before.
func (l *statusLoop) show(r *inspect.Report, done bool) error {
	var text strings.Builder
	if err := r.Print(l.page(&text), l.layout); err != nil {
		return err
	}
	first := l.last == ""
	changed := text.String() != l.last
	l.last = text.String()
	switch {
	case l.wait && !done:
		if now := r.Verdict(); now != l.waits {
			fmt.Fprintln(l.Err, "Waiting. "+now)
			l.waits = now
		}
	case changed || l.wait || l.watch && l.layout.Width > 0:
		if l.watch && l.layout.Width > 0 {
			if err := l.clear(); err != nil {
				return err
			}
		}
		_, err := io.WriteString(l.Out, l.heading(first, l.inspector.Clock.Now())+text.String())
		return err
	}
	return nil
}

// heading is what comes before a report: in a watch, the time, and what sets the report off from the one before.
func (o statusRun) heading(first bool, now time.Time) string {
	switch {
	case !o.watch || o.layout.Format == "json":
		return ""
	case o.layout.Format == "yaml":
		return map[bool]string{false: "---\n"}[first]
	case o.layout.Width > 0:
		return now.Format(time.TimeOnly) + ", every 2 seconds\n\n"
	case first:
		return now.Format(time.TimeOnly) + "\n"
	}
	return "\n" + now.Format(time.TimeOnly) + "\n"
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
