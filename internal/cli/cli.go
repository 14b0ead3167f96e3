// Package cli is Stowage's command line: it parses arguments, calls the packages that do the work, and
// turns errors into exit statuses.
//
//	0  fine
//	1  the command failed, or its input is wrong
//	2  the command was called in a wrong way
//	3  the command did its work, and what it looked at is not as it should be
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/version"
)

// errNotOK means that the command did its work, and that what it looked at is not as it
// should be.
var errNotOK = errors.New("not everything is as it should be")

// Main runs a command line and returns its exit status.
func Main(ctx context.Context, args []string, s Streams) int {
	s = s.guarded(ctx.Done())
	root := NewCommand(s)
	completeRoot(root)
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNotOK):
		return 3
	}
	fmt.Fprintf(s.Err, "Error: %s\n", errorText(ctx, err))
	if usage := (config.UsageError{}); errors.As(err, &usage) {
		fmt.Fprintln(s.Err, "Run the command with --help for its usage.")
		return 2
	}
	return 1
}

// NewCommand returns the root command.
func NewCommand(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "stowage",
		Short: "Where a pod goes, how big it is and what it really consumes",
		Long: `Stowage is a Kubernetes admission system. For each new pod it decides:

  - where it goes. A workload's pods are divided over node pools by base and weight.
  - how big it is. A DaemonSet's pod gets a share of the node that it lands on.
  - what it really consumes. Peer pods run in VMs outside their node; the stock
    scheduler counts those VMs.`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,

		SuggestionsMinimumDistance: mostEdits,

		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newPreviewCommand(s), newTestCommand(s), newSplitCommand(s), newImportCommand(s), newVersionCommand())
	root.AddCommand(clusterCommands(s)...)
	return root
}

// errorIf returns an error with a text if a condition holds.
func errorIf(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// checkFormat refuses an output format that a command does not have.
func checkFormat(output string, formats []string) error {
	return errorIf(!slices.Contains(formats, output), "-o is %q; it must be %s", output, strings.Join(formats, ", "))
}

// noArgs refuses arguments as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return config.NewUsageError(fmt.Errorf("%s takes no argument, and was given %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}
