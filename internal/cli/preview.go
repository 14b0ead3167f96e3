package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/preview"
)

func newPreviewCommand(s Streams) *cobra.Command {
	var (
		files     []string
		output    = preview.Formats[0]
		plot      bool
		replicas  int32
		namespace = "default"
		stowageNS = config.DefaultOptions().Namespace
		spread    = config.DefaultOptions().Spread
		sizing    = config.DefaultOptions().Sizing
		peerPods  = config.DefaultOptions().PeerPods
	)
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "Show what Stowage would decide about manifests",
		Long: `Make the webhook's decisions over manifests, without a cluster.

The input is any mix of pods, workloads (Deployments, StatefulSets, DaemonSets,
Jobs and so on), and what decisions depend on: PodDistributors,
FlexDaemonsetTemplates, Namespaces, RuntimeClasses, LimitRanges, ResourceQuotas and
Nodes. Other objects are ignored. A DaemonSet has a pod for each of the Nodes.

The exit status is 0 if all is well, 1 if an input is wrong, 2 if the command is.`,
		Example: `  # What happens to the pods of these workloads
  stowage preview -f deploy/

  # The pods themselves, with the cluster's own RuntimeClasses
  kubectl get runtimeclass -o yaml | stowage preview -f - -f web.yaml -o yaml

  # How big an agent is on each of the cluster's own nodes
  kubectl get nodes,flexdaemonsettemplates -o yaml | stowage preview -f - -f agent.yaml

  # The same for ten replicas
  stowage preview -f web.yaml --replicas 10

  # How the spread grows up to 25 replicas, in the terminal and as a picture
  stowage preview -f web.yaml --replicas 25 --plot
  stowage preview -f web.yaml --replicas 25 -o svg > plan.svg`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// 1. Check how we were called.
			errs := []error{config.ApplyEnv(cmd.Flags(), s.LookupEnv), spread.Validate(), peerPods.Validate()}
			if len(files) == 0 {
				errs = append(errs, errors.New("name an input with -f: a file, a directory, or - for standard input"))
			}
			if n := len(slices.DeleteFunc(slices.Clone(files), func(f string) bool { return f != "-" })); n > 1 {
				errs = append(errs, errors.New("-f - was given more than once; standard input can be read only once"))
			}
			if !slices.Contains(preview.Formats, output) {
				errs = append(errs, fmt.Errorf("-o is %q; it must be %s", output, strings.Join(preview.Formats, ", ")))
			}
			if !cmd.Flags().Changed("replicas") {
				replicas = -1
			} else if replicas < 0 || replicas > preview.MaxPods {
				errs = append(errs, fmt.Errorf("--replicas is %d; it must be between 0 and %d", replicas, preview.MaxPods))
			}
			if plot && cmd.Flags().Changed("output") {
				errs = append(errs, errors.New("--plot and -o exclude each other"))
			}
			if (plot || output == "svg") && !spread.Enabled {
				errs = append(errs, errors.New("--plot and -o svg draw the spread, which --spread=false leaves out"))
			}
			if err := errors.Join(errs...); err != nil {
				return config.NewUsageError(err)
			}

			// 2. Read, decide, print.
			in, err := preview.Load(files, s.In, namespace)
			if err != nil {
				return err
			}
			p := preview.New(in, preview.Settings{
				Namespace: stowageNS, Spread: spread.Enabled, ExcludedNamespaces: spread.ExcludedNamespaces, NamespaceLabel: spread.NamespaceLabel,
				Sizing: sizing.Enabled, PeerPods: peerPods.Enabled, PeerPodConfig: peerPods.Config,
			})
			pods, warnings, err := p.Admit(cmd.Context(), replicas)
			if err != nil {
				return err
			}
			for _, w := range warnings {
				fmt.Fprintf(s.Err, "Warning: %s\n", w)
			}
			if plot || output == "svg" {
				plans, err := p.Plans(cmd.Context(), pods)
				if err != nil {
					return err
				}
				if plot {
					return preview.Plot(s.Out, plans)
				}
				return preview.SVG(s.Out, plans)
			}
			return preview.Print(s.Out, output, pods, peerPods.Config.VMResource)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&files, "filename", "f", files, "File or directory of manifests, or - for standard input; may be repeated")
	fs.StringVarP(&output, "output", "o", output, "table, yaml, json or svg; yaml and json are a List of the pods, svg is a picture of where they go")
	fs.BoolVar(&plot, "plot", plot, "Draw how the spread grows with the replica count")
	fs.Int32Var(&replicas, "replicas", replicas, "Replicas to assume for every workload that has a replica count")
	fs.StringVarP(&namespace, "namespace", "n", namespace, "Namespace of objects that name none")
	fs.StringVar(&stowageNS, "stowage-namespace", stowageNS, "Namespace that Stowage runs in")
	spread.AddFlags(fs)
	sizing.AddFlags(fs)
	peerPods.AddFlags(fs)
	return cmd
}
