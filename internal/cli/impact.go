//go:build !offline

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/impact"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/preview/crds"
)

const impactHelp = `Read a live cluster, lay a change over it, and show what would become of the pods.
Nothing is changed.

A change is manifests (-f) that would be applied, or objects that would be removed. It
is also another replica count, a pool without room, or policies in Audit that would
enforce. Without a change, the report is about the next rollout of each workload.

The report has the pods of each policy, pool and workload, now and then.

  IN PLACE: they run in the pool that is to have them.
  MOVED: they are in another pool or domain after the next rollout.
  EVICTED: they go before it, by rebalance or because they run in no pool.
  ADOPTED: they get a seat where they run, without a restart.
  KEPT: they stay where their volumes may be.
  WAITING: no present node has room for them.

For the first 20 workloads by name, the API server is asked for pods with and without
what Stowage would add to them, in a dry run. If it refuses only those with it, the
report has its answer. That takes the right to create pods.

Policies of scale-downs move no pod, and are not in the report: preview shows which
workloads they select, and their status in mode Audit what the next step would keep.

The counts are those of the webhook's own decisions. A workload marked unsure may come
out otherwise, and the note says why. What it takes in nodes, pods without room, and
money is an estimate.

The exit status is 0 if nothing changes, and 3 if something does. With --fail-on, it is
3 only if one of its limits is exceeded. It is 1 if that could not be found out, and 2
if the command was called in a wrong way.`

// impactOptions are the settings of the command impact.
type impactOptions struct {
	files     []string
	recursive bool
	remove    []string
	replicas  []string
	exhausted []string
	enforce   bool
	prices    string
	failOn    []string
	output    string
	all       bool
	cluster   *inspectOptions
}

func newImpactCommand(s Streams) *cobra.Command {
	o := &impactOptions{output: impact.Formats[0]}
	cmd := &cobra.Command{
		Use:   "impact [FILE...]",
		Short: "Show what a change would do to the workloads of a cluster",
		Long:  impactHelp,
		Example: `  # What does this policy do, if it is applied?
  kubectl stowage impact -f policy.yaml

  # What would the policies do that are in Audit?
  kubectl stowage impact --enforce

  # What if the pool spot had no room, and on-demand cost this much?
  kubectl stowage impact --exhausted spot --prices prices.yaml

  # In a pipeline: at most a tenth of the pods may move, and none may lack room
  stowage impact -f deploy/ --fail-on moved=10%,waiting=0

  # Another replica count, without a policy, in one namespace
  stowage impact -n shop --replicas deployment/web=30 --remove spreadpolicy/web`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = append(o.files, args...)
			return o.run(cmd, s)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", o.files, "File or directory of manifests that would be applied, or - for standard input; may be repeated")
	fs.BoolVarP(&o.recursive, "recursive", "R", o.recursive, "Read the directories in a directory, too")
	fs.StringSliceVar(&o.remove, "remove", o.remove, "Object that would be removed, as KIND/NAME or KIND/NAMESPACE/NAME: a policy, PodDistributor, FlexDaemonsetTemplate, node or workload; a kind may have its group, as in statefulset.apps.kruise.io/web; may be repeated")
	fs.StringSliceVar(&o.replicas, "replicas", o.replicas, "Replica count that a workload would have, as KIND/NAME=N; may be repeated")
	fs.StringSliceVar(&o.exhausted, "exhausted", o.exhausted, "Pool without room, or a domain of one, as NAME, NAME=PODS that it has room for, or NAME/DOMAIN; may be repeated")
	fs.BoolVar(&o.enforce, "enforce", o.enforce, "Take all policies in Audit as if they enforced")
	fs.StringVar(&o.prices, "prices", o.prices, "File with the prices of nodes, by their labels")
	fs.StringSliceVar(&o.failOn, "fail-on", o.failOn, "Limits beyond which the exit status is 3, as NAME=N or NAME=N% of the pods or workloads: "+strings.Join(limitNames(), ", "))
	fs.StringVarP(&o.output, "output", "o", o.output, strings.Join(impact.Formats, ", "))
	fs.BoolVar(&o.all, "all", o.all, "List every workload with a policy, those that the change does not concern, too")
	o.cluster = newInspectOptions(cmd)
	completeFormats(cmd, impact.Formats)
	return cmd
}

func (o *impactOptions) run(cmd *cobra.Command, s Streams) error {
	// 1. What is asked?
	var errs []error
	if len(o.files) > 0 {
		errs = append(errs, checkFiles(o.files))
	}
	limits, err := parseLimits(o.failOn)
	errs = append(errs, checkFormat(o.output, impact.Formats), err)
	exhausted, err := preview.ParseExhausted(o.exhausted)
	errs = append(errs, err)
	if _, _, err := o.names(metav1.NamespaceDefault); err != nil { // before a cluster is asked for its own
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return config.NewUsageError(err)
	}
	i, namespace, err := o.cluster.inspector(cmd, s)
	if err != nil {
		return err
	}
	change := impact.Change{Exhausted: exhausted, Enforce: o.enforce}
	if change.Remove, change.Replicas, err = o.names(namespace); err != nil {
		return config.NewUsageError(err)
	}
	if len(o.files) > 0 {
		if change.Manifests, err = preview.LoadChange(cmd.Context(), preview.Source{Names: o.files, In: s.In, Namespace: namespace, Recursive: o.recursive, Schemas: crds.Schemas{}}); err != nil {
			return err
		}
	}
	var prices *impact.Prices
	if o.prices != "" {
		if prices, err = impact.ReadPrices(o.prices); err != nil {
			return err
		}
	}

	// 2. Answer it.
	of := impactOf(i)
	if cmd.Flags().Changed("namespace") {
		of.Namespace = namespace
	}
	stop := progress(s.Err, look, objectsRead(of))
	r, err := of.Of(cmd.Context(), change, prices)
	stop()
	if err != nil {
		return err
	}
	return o.print(s, page(cmd, s.Out, i.Clock.Now(), o.cluster.cluster), r, limits)
}

// impactOf returns the options of package impact for a cluster.
func impactOf(i *inspect.Inspector) *impact.Options {
	return &impact.Options{
		Client: i.Client, Registration: i.Registration, Clock: i.Clock,
		DryRun: func(ctx context.Context, pod *corev1.Pod) error { return i.Client.Create(ctx, pod, client.DryRunAll) },
		Settings: preview.Settings{
			Namespace: i.Namespace, Spread: i.Spread, Sizing: i.Sizing, PeerPods: i.VMs,
			ExcludedNamespaces: i.ExcludedNamespaces, NamespaceLabel: i.NamespaceLabel, PeerPodConfig: i.PeerPods,
		},
	}
}

func (o *impactOptions) print(s Streams, out io.Writer, r *impact.Report, limits []limit) error {
	if o.output == "text" {
		printWarnings(s.Err, r.Warnings)
	}
	if err := r.Print(out, o.output, o.all); err != nil {
		return err
	}
	exceeded := len(limits) == 0 && r.Changes()
	for _, l := range limits {
		if n := l.field.of(r); n > l.most(r) {
			exceeded = true
			fmt.Fprintf(s.Err, "--fail-on: %s is %d, and at most %s are allowed\n", l.name, n, l.text)
		}
	}
	return verdict(!exceeded)
}

// names reads the objects that flags name.
func (o *impactOptions) names(namespace string) (remove []impact.Name, replicas map[impact.Name]int32, err error) {
	var errs []error
	for _, text := range o.remove {
		n, err := impact.ParseName(text, namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("--remove: %w", err))
		}
		remove = append(remove, n)
	}
	replicas = map[impact.Name]int32{}
	for _, text := range o.replicas {
		name, count, _ := strings.Cut(text, "=")
		n, err := impact.ParseName(name, namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("--replicas is %q; it must be KIND/NAME=N: %w", text, err))
			continue
		}
		number, err := strconv.ParseInt(count, 10, 32)
		if err != nil || number < 0 || number > preview.MaxPods {
			errs = append(errs, fmt.Errorf("--replicas is %q; it must be KIND/NAME=N, with N from 0 to %d", text, preview.MaxPods))
		}
		replicas[n] = int32(number)
	}
	return remove, replicas, errors.Join(errs...)
}

// limit is a part of --fail-on.
type limit struct {
	name, text string
	value      float64
	percent    bool
	field      limitField
}

// limitField is a number of a report, and what a percentage of it is of.
type limitField struct{ of, whole func(*impact.Report) int64 }

var (
	pods      = func(r *impact.Report) int64 { return r.Cluster.Pods }
	workloads = func(r *impact.Report) int64 { return int64(r.Cluster.Workloads) }
)

// limitFields are what --fail-on may name.
var limitFields = map[string]limitField{
	"moved":   {func(r *impact.Report) int64 { return r.Cluster.Moved }, pods},
	"evicted": {func(r *impact.Report) int64 { return r.Cluster.Evicted }, pods},
	"waiting": {func(r *impact.Report) int64 { return r.Cluster.Waiting }, pods},
	"unsure":  {func(r *impact.Report) int64 { return int64(r.Cluster.Unsure) }, workloads},
	"refused": {func(r *impact.Report) int64 { return int64(r.Cluster.Refused) }, workloads},
}

func limitNames() []string {
	return slices.Sorted(maps.Keys(limitFields))
}

// parseLimits reads the limits of --fail-on.
func parseLimits(texts []string) (out []limit, err error) {
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		l := limit{name: name, text: value}
		number, percent := strings.CutSuffix(value, "%")
		l.percent = percent
		var known bool
		l.field, known = limitFields[name]
		l.value, err = strconv.ParseFloat(number, 64)
		finite := l.value >= 0 && l.value <= math.MaxFloat64
		if !known || err != nil || !finite {
			return nil, fmt.Errorf("--fail-on has %q; it must be NAME=N or NAME=N%%, and the names are %s", text, strings.Join(limitNames(), ", "))
		}
		out = append(out, l)
	}
	return out, nil
}

// most is how many are allowed.
func (l *limit) most(r *impact.Report) int64 {
	if l.percent {
		return int64(l.value * float64(l.field.whole(r)) / 100)
	}
	return int64(l.value)
}
