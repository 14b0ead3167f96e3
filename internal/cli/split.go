package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/preview/crds"
)

const splitHelp = `Print one DaemonSet for each class of nodes, for DaemonSets that Stowage sizes.

Karpenter plans with one size for all pods of a DaemonSet. Where Stowage gives the pods
of one DaemonSet another size on each instance type, Karpenter makes nodes that are too
small, or too large. With one DaemonSet for each instance type the plan is right.

The input needs the DaemonSets, their FlexDaemonsetTemplates and a Node of each class.
The command prints, for each DaemonSet:

  - one DaemonSet for each class. It selects the class by the label of --by, and its
    template has the size of the pods there. Its pods are still sized by Stowage.
  - the DaemonSet itself, which leaves these classes out. It serves all other nodes.

When the DaemonSet stops selecting a class, its controller deletes the pods on all
nodes of that class at once. Then the new DaemonSets create theirs. Keep the printed
file as the source from then on. A second run adds DaemonSets for new classes only.`

// splitOptions are the settings of the command split.
type splitOptions struct {
	files            []string
	recursive        bool
	by               string
	namespace        string // of objects that name none
	stowageNamespace string
}

func newSplitCommand(s Streams) *cobra.Command {
	o := &splitOptions{by: corev1.LabelInstanceTypeStable, namespace: "default", stowageNamespace: config.DefaultProcess().Namespace}
	cmd := &cobra.Command{
		Use:   "split FILE...",
		Short: "Print one DaemonSet for each class of nodes, for Karpenter",
		Long:  splitHelp,
		Example: `  # Split a DaemonSet of the cluster by the instance types that the cluster has
  { kubectl get nodes,flexdaemonsettemplates -o yaml; echo ---; kubectl get daemonset agent -o yaml; } |
    stowage split - > agent-split.yaml
  kubectl apply -f agent-split.yaml

  # The same from files, by a label of your own
  stowage split agent.yaml nodes.yaml --by example.com/node-class`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = append(o.files, args...)
			errs := []error{checkFiles(o.files)}
			if o.by == "" {
				errs = append(errs, errors.New("--by is empty; it must be a label of the nodes"))
			} else if wrong := validation.IsQualifiedName(o.by); len(wrong) > 0 {
				errs = append(errs, fmt.Errorf("--by is %q; it must be the key of a label: %s", o.by, wrong[0]))
			}
			if err := errors.Join(errs...); err != nil {
				return config.NewUsageError(err)
			}
			in, err := preview.Load(cmd.Context(), preview.Source{Names: o.files, In: s.In, Namespace: o.namespace, Recursive: o.recursive, Schemas: crds.Schemas{}})
			if err != nil {
				return err
			}
			p := preview.New(in, preview.Settings{Namespace: o.stowageNamespace, Sizing: true})
			sets, warnings, err := p.Split(cmd.Context(), o.by)
			printWarnings(s.Err, warnings)
			if err != nil {
				return err
			}
			return preview.PrintSets(s.Out, sets)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", o.files, "File or directory of manifests, or - for standard input; may be repeated, and -f may be left out")
	fs.BoolVarP(&o.recursive, "recursive", "R", o.recursive, "Read the directories in a directory, too")
	fs.StringVar(&o.by, "by", o.by, "Label of nodes whose values are the classes")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "Namespace of objects that name none")
	fs.StringVar(&o.stowageNamespace, "stowage-namespace", o.stowageNamespace, "Namespace that Stowage runs in")
	return cmd
}
