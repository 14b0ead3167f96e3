package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/preview/crds"
	"github.com/stowage-dev/stowage/internal/report"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
)

const previewHelp = `Make the webhook's decisions over manifests, without a cluster.

The input is any mix of pods, of workloads (Deployments, StatefulSets, DaemonSets,
Jobs and so on), and of what decisions depend on. These are PodDistributors,
SpreadPolicies, ClusterSpreadPolicies, FlexDaemonsetTemplates, Namespaces, LimitRanges,
ResourceQuotas, RuntimeClasses, PriorityClasses, HorizontalPodAutoscalers and Nodes. Argo Rollouts and OpenKruise's CloneSets, StatefulSets and DaemonSets are
workloads too. Other objects are ignored. A DaemonSet has a pod for each of the Nodes.

Stowage's own kinds are checked as the API server checks them. What is merely absent,
such as the target of a PodDistributor, is a warning.

The exit status is 0 if all is well and 2 if the command was called in a wrong way. It
is 1 if an input is wrong or, with --strict, if there is a warning.`

// previewOptions are the settings of the command preview.
type previewOptions struct {
	files             []string
	output            string
	plot              bool
	recursive, strict bool
	replicas          int32    // -1 is as the manifests say
	exhausted         []string // pools without room, with the pods that they keep
	namespace         string   // of objects that name none
	stowageNamespace  string
	spread            spreadadmit.Options
	sizing            sizeadmit.Options
	peerPods          vmadmit.Options
}

func newPreviewOptions() *previewOptions {
	return &previewOptions{
		output: preview.Formats[0], replicas: -1, namespace: "default", stowageNamespace: config.DefaultProcess().Namespace,
		spread: spreadadmit.DefaultOptions(), sizing: sizeadmit.DefaultOptions(), peerPods: vmadmit.DefaultOptions(),
	}
}

func newPreviewCommand(s Streams) *cobra.Command {
	o := newPreviewOptions()
	cmd := &cobra.Command{
		Use:   "preview FILE...",
		Short: "Show what Stowage would decide about manifests",
		Long:  previewHelp,
		Example: `  # What happens to the pods of these workloads
  stowage preview deploy/

  # In CI: every directory below, and no warning either
  stowage preview -R --strict manifests/

  # The pods themselves, with the cluster's own RuntimeClasses
  kubectl get runtimeclass -o yaml | stowage preview - web.yaml -o yaml

  # How big an agent is on each of the cluster's own nodes
  kubectl get nodes,flexdaemonsettemplates -o yaml | stowage preview - agent.yaml

  # The same for ten replicas
  stowage preview web.yaml --replicas 10

  # Where the pods go while the pool spot has room for four
  stowage preview web.yaml --replicas 10 --exhausted spot=4

  # How the spread grows up to 25 replicas, in the terminal and as a picture
  stowage preview web.yaml --replicas 25 --plot
  stowage preview web.yaml --replicas 25 -o svg > plan.svg`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = append(o.files, args...)
			if err := errors.Join(config.ApplyEnv(cmd.Flags(), s.LookupEnv), o.validate(cmd.Flags())); err != nil {
				return config.NewSettingsError(cmd.Flags(), err)
			}
			s.Out = page(cmd, s.Out, clock.RealClock{}.Now(), "")
			return o.run(cmd.Context(), s)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", o.files, "File or directory of manifests, or - for standard input; may be repeated, and -f may be left out")
	fs.BoolVarP(&o.recursive, "recursive", "R", o.recursive, "Read the directories in a directory, too")
	fs.StringVarP(&o.output, "output", "o", o.output, "table, yaml, json, svg or html; yaml and json are a List of the pods, svg is a picture of where they go, html is a page with both")
	fs.BoolVar(&o.plot, "plot", o.plot, "Draw how the spread grows with the replica count")
	fs.BoolVar(&o.strict, "strict", o.strict, "Exit with status 1 if there is a warning")
	o.addDecisionFlags(fs)
	completeFormats(cmd, preview.Formats)
	return cmd
}

// addDecisionFlags adds the flags that change decisions.
func (o *previewOptions) addDecisionFlags(fs *pflag.FlagSet) {
	fs.Int32Var(&o.replicas, "replicas", o.replicas, "Replicas to assume for every workload that has a replica count; its own unless set")
	fs.StringSliceVar(&o.exhausted, "exhausted", o.exhausted, "Pool without room, or a domain of one, as NAME, NAME=PODS that it has room for, or NAME/DOMAIN; a pool without a name is named by its place, from 0")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "Namespace of objects that name none")
	fs.StringVar(&o.stowageNamespace, "stowage-namespace", o.stowageNamespace, "Namespace that Stowage runs in")
	o.spread.AddFlags(fs)
	o.sizing.AddFlags(fs)
	o.peerPods.AddFlags(fs)
}

// validate returns what is wrong with how the command was called.
func (o *previewOptions) validate(fs *pflag.FlagSet) error {
	_, err := preview.ParseExhausted(o.exhausted)
	return errors.Join(
		o.spread.Validate(), o.peerPods.Validate(), checkFiles(o.files), checkFormat(o.output, preview.Formats),
		errorIf(fs.Changed("replicas") && (o.replicas < 0 || o.replicas > preview.MaxPods), "--replicas is %d; it must be between 0 and %d", o.replicas, preview.MaxPods),
		errorIf(o.plot && fs.Changed("output"), "--plot and -o exclude each other"),
		errorIf((o.plot || o.output == "svg") && !o.spread.Enabled, "--plot and -o svg draw the spread, which --spread=false leaves out"),
		err,
	)
}

// checkFiles returns what is wrong with the names of inputs.
func checkFiles(files []string) error {
	dashes := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return f != "-" })
	return cmp.Or(
		errorIf(len(files) == 0, "name an input: a file, a directory, or - for standard input"),
		errorIf(len(dashes) > 1, "- was given more than once; standard input can be read only once"),
	)
}

// run reads, decides and prints.
func (o *previewOptions) run(ctx context.Context, s Streams) error {
	out := previewOutput{options: o, summary: preview.NewSummary(o.peerPods.Config.VMResource), list: preview.NewPodList(o.output)}
	if !o.listsPods() { // few of the objects live on, and to look for them takes a third of the time
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	var decided atomic.Int64
	stop := progress(s.Err, look, func() string {
		if n := decided.Load(); n > 0 {
			return fmt.Sprintf("deciding: %d pods so far", n)
		}
		return "reading the manifests"
	})
	warnings, err := o.decide(ctx, s.In, func(p *preview.Preview) func(*preview.Admitted) {
		out.planner, out.summary.ScaleDowns = p.Planner(), p.ScaleDowns()
		return func(a *preview.Admitted) {
			decided.Add(1)
			out.add(ctx, a)
		}
	})
	stop()
	if err = cmp.Or(err, out.err); err != nil {
		return err
	}
	printWarnings(s.Err, warnings)
	if err := out.print(s.Out, warnings); err != nil {
		return err
	}
	if o.strict && len(warnings) > 0 {
		return errStrict
	}
	return nil
}

// gcPercent is how much may be allocated before a collection, in percent of what is in use: 100,000 pods take less than 80 MiB.
const gcPercent = 300

// decide reads the inputs and makes the decisions. What start returns gets each pod. Where there is an error, the pods do not count.
func (o *previewOptions) decide(ctx context.Context, stdin io.Reader, start func(*preview.Preview) (use func(*preview.Admitted))) (warnings []string, err error) {
	defer func() {
		if ctx.Err() != nil {
			warnings, err = nil, errInterrupted
		}
	}()
	in, err := preview.Load(ctx, preview.Source{Names: o.files, In: stdin, Namespace: o.namespace, Recursive: o.recursive, Schemas: crds.Schemas{}})
	if err != nil {
		return nil, err
	}
	p := preview.New(in, preview.Settings{
		Namespace: o.stowageNamespace, Spread: o.spread.Enabled, ExcludedNamespaces: o.spread.ExcludedNamespaces, NamespaceLabel: o.spread.NamespaceLabel,
		Sizing: o.sizing.Enabled, PeerPods: o.peerPods.Enabled, PeerPodConfig: o.peerPods.Config,
	})
	var waiting []string
	use := start(p)
	if len(o.exhausted) > 0 {
		exhausted, err := preview.ParseExhausted(o.exhausted)
		if err != nil {
			return nil, err
		}
		if waiting, err = p.Exhaust(ctx, exhausted, o.replicas); err != nil {
			return nil, err
		}
	}
	warnings, err = p.AdmitAll(ctx, o.replicas, use)
	return append(warnings, waiting...), err
}

// errStrict means that there are warnings, which --strict does not allow.
var errStrict = errors.New("there are warnings, which --strict does not allow")

// previewOutput is what is printed of the decisions. It keeps no pods.
type previewOutput struct {
	options *previewOptions
	summary *preview.Summary
	planner *preview.Planner
	list    *preview.PodList
	err     error
}

// add adds the next pod.
func (p *previewOutput) add(ctx context.Context, a *preview.Admitted) {
	if p.options.listsPods() {
		p.err = cmp.Or(p.err, p.list.Add(a.Pod))
		return
	}
	p.summary.Add(a)
	if p.options.draws() {
		p.err = cmp.Or(p.err, p.planner.Add(ctx, a))
	}
}

// listsPods reports whether the pods themselves are printed.
func (o *previewOptions) listsPods() bool {
	return !o.plot && (o.output == "yaml" || o.output == "json")
}

// draws reports whether the plans of workloads are printed.
func (o *previewOptions) draws() bool {
	return o.plot || o.output == "svg" || o.output == "html"
}

func (p *previewOutput) print(out io.Writer, warnings []string) error {
	o := p.options
	switch {
	case o.listsPods():
		return p.list.Print(out)
	case !o.draws():
		return p.summary.Print(out)
	}
	plans, err := p.planner.Plans()
	if !o.plot && o.output == "html" {
		if err != nil && !errors.Is(err, preview.ErrNoPlan) {
			return err
		}
		return preview.HTML(out, p.summary, plans, report.Counted(warnings))
	}
	if err != nil {
		return err
	}
	if o.plot {
		return preview.Plot(out, plans)
	}
	return preview.SVG(out, plans)
}
