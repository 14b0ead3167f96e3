package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
)

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
				return config.NewUsageError(err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(inspect.ExplainFormats, output) {
				return config.NewUsageError(fmt.Errorf("-o is %q; it must be %s", output, strings.Join(inspect.ExplainFormats, ", ")))
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
