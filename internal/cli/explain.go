//go:build !offline

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/world"
)

func newExplainCommand(s Streams) *cobra.Command {
	var (
		output        = inspect.ExplainFormats[0]
		configuration *inspectOptions
	)
	cmd := &cobra.Command{
		Use:   "explain KIND NAME",
		Short: "Say why a pod, a workload's pods or a node look the way they do",
		Long: `Say in sentences what Stowage changed in a pod and why (the policy, the rule and the
arithmetic), and what it left alone and why. For a pod that it did not touch, give the
first reason why not. For a pod that waits, give the cause and what to do.

Of a workload, such as a Deployment or a DaemonSet, pods that look alike are explained
by one of them. Of a PodDistributor it explains the pods of its target, and of a policy
what it divides. Of a node, the explanation is about its VMs and the pods on it.

The command reads only, and needs no running Stowage.`,
		Example: `  # Why is this pod here, and so big?
  kubectl stowage explain pod web-7d9f6c-x2k5j -n shop

  # The pods of a Deployment, and what is wrong with them
  kubectl stowage explain deployment/web -n shop

  # How many VMs does this node have, and why?
  kubectl stowage explain node worker-3

  # For a script
  stowage explain pod/web-7d9f6c-x2k5j -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			_, _, err := objectArgument(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output, inspect.ExplainFormats); err != nil {
				return config.NewUsageError(err)
			}
			kind, name, _ := objectArgument(args) // checked above
			i, namespace, err := configuration.inspector(cmd, s)
			if err != nil {
				return err
			}
			e, err := explain(cmd.Context(), i, namespace, kind, name)
			if errors.Is(err, inspect.ErrNotFound) || apierrors.IsNotFound(err) {
				return config.NewUsageError(fmt.Errorf("%w%s", err, didYouMean(likeKinds([]string{kind + "/" + name})...)))
			}
			if err != nil {
				return err
			}
			return e.Print(s.Out, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, strings.Join(inspect.ExplainFormats, ", "))
	configuration = newInspectOptions(cmd)
	cmd.ValidArgsFunction = configuration.completeObjects(true)
	completeFormats(cmd, inspect.ExplainFormats)
	return cmd
}

// explanation is of a pod, a workload or a node.
type explanation interface {
	Print(out io.Writer, format string) error
}

func explain(ctx context.Context, i *inspect.Inspector, namespace, kind, name string) (explanation, error) {
	switch {
	case world.SameKind("Pod", kind):
		return i.Explain(ctx, namespace, name)
	case world.SameKind("Node", kind):
		return i.ExplainNode(ctx, name)
	}
	return i.ExplainWorkload(ctx, namespace, kind, name)
}

// objectArgument returns the kind and the name in "KIND NAME" or "KIND/NAME".
func objectArgument(args []string) (kind, name string, err error) {
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return "", "", config.NewUsageError(errors.New("name an object: explain KIND NAME, such as explain pod web-x2k5j"))
	}
	return args[0], args[1], nil
}
