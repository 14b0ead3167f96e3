//go:build !offline

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
)

func newCheckCommand(s Streams) *cobra.Command {
	var (
		output        = "text"
		wait          bool
		timeout       = 5 * time.Minute
		configuration *inspectOptions
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Ask the API server for a pod in a dry run, to see whether the webhook answers",
		Long: `Have the API server admit a pod of the namespace in a dry run, as it would admit one
that a ReplicaSet creates. Nothing is created. An answer proves the whole way: the
registration of the webhook, its certificate, its Service, the network and a replica.
Without an answer, the command says what is wrong, as far as the user may see it.

With an answer, it also compares the kinds (CustomResourceDefinitions) of the cluster
with its own, because an API server drops fields that its kinds lack without a word. If
a policy names a kind that Stowage may not read, it prints the ClusterRole to add. And
the API server is asked for pods of the namespace's workloads, the first 20 by name, with
and without what Stowage adds to them. If it refuses only those with it, the command
says so.

The user must be allowed to create pods in the namespace.

Where Stowage is installed without its webhook, the command looks whether a leader runs.

The exit status is 0 if the webhook answered, may read what it needs and adds nothing
that is refused, and if no kind is missing or older. Otherwise it is 3.`,
		Example: `  # Does the webhook answer for the current namespace?
  kubectl stowage check

  # In a script, after an installation
  kubectl stowage check -n shop --wait --timeout 2m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(
				checkFormat(output, inspect.ExplainFormats),
				errorIf(timeout < 0, "--timeout is %v; it must not be negative", timeout),
				errorIf(cmd.Flags().Changed("timeout") && !wait, "--timeout is for --wait"),
			); err != nil {
				return config.NewUsageError(err)
			}
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			return runCheck(cmd.Context(), s, i, namespace, output, wait, timeout)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&output, "output", "o", output, strings.Join(inspect.ExplainFormats, ", "))
	fs.BoolVar(&wait, "wait", wait, "Wait until the webhook answers")
	fs.DurationVar(&timeout, "timeout", timeout, "How long --wait waits")
	configuration = newInspectOptions(cmd)
	completeFormats(cmd, inspect.ExplainFormats)
	return cmd
}

func runCheck(ctx context.Context, s Streams, i *inspect.Inspector, namespace, output string, wait bool, timeout time.Duration) error {
	end := i.Clock.Now().Add(timeout)
	for first := true; ; first = false {
		answer, err := i.Check(ctx, namespace)
		switch {
		case errors.Is(err, inspect.ErrNoNamespace):
			return config.NewUsageError(err)
		case err != nil:
			return err
		case !answer.OK && wait && i.Clock.Now().Before(end):
			if first {
				fmt.Fprintln(s.Err, "The webhook does not answer yet; asking again every 2 seconds")
			}
			if err := pause(ctx); err != nil {
				return err
			}
			continue
		}
		if answer.OK && answer.LeftAlone == "" {
			printWarnings(s.Err, askRefused(ctx, i, namespace, answer))
		}
		return cmp.Or(answer.Print(s.Out, output), verdict(answer.Sound()))
	}
}

// askRefused adds the workloads of a namespace whose pods are refused because of what Stowage adds. The warnings say what is not known.
func askRefused(ctx context.Context, i *inspect.Inspector, namespace string, answer *inspect.Answer) []string {
	of := impactOf(i)
	of.Namespace = namespace
	found, warnings, err := of.Refused(ctx)
	if err != nil { // such as for the lack of rights that the check itself does not need
		return []string{fmt.Sprintf("whether the API server refuses pods because of what Stowage adds is not known: %v", err)}
	}
	answer.AddRefused(found)
	return warnings
}

// warnings collects the warnings of an API server.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.texts
	w.texts = nil
	return out
}
