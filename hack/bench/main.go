// Command bench measures, on a real control plane, what Stowage adds to the creation
// of many pods at once. `make bench-cluster` calls it.
//
// The floor is a webhook that answers every pod with one constant nodeSelector and
// looks at nothing, with the same number of replicas behind the same balancer: what
// every webhook costs. The cases take turns, so that a busy machine slows all of them.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/test/controlplane"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "floor" {
		exit(serveFloor(os.Args[2:]))
	}
	var o options
	flag.IntVar(&o.pods, "pods", 500, "pods of each burst")
	flag.IntVar(&o.runs, "runs", 5, "bursts of each case")
	flag.IntVar(&o.replicas, "replicas", 1, "replicas of Stowage, and of the floor")
	flag.IntVar(&o.controllers, "controllers", 0, "processes that run the controllers, beside the replicas; with 0 the replicas run them")
	flag.IntVar(&o.tracked, "tracked", 0, "instead of bursts, grow one workload to this many pods and measure memory")
	flag.IntVar(&o.daemons, "daemons", 0, "instead of bursts, put a DaemonSet onto this many nodes")
	flag.IntVar(&o.scalePods, "scale", 0, "instead of bursts, measure a cluster with this many pods in workloads of 50")
	flag.IntVar(&o.idle, "idle", 0, "instead of bursts, measure this many workloads of one pod while nothing happens")
	flag.BoolVar(&o.full, "full", false, "with --idle, two of three pools have no room")
	flag.BoolVar(&o.policy, "policy", false, "with --idle, one ClusterSpreadPolicy divides all workloads")
	flag.IntVar(&o.minutes, "minutes", 1, "how long --idle measures")
	flag.IntVar(&o.status, "status", 0, "instead of bursts, measure the delay of a status beside this many pods of another namespace that change")
	flag.IntVar(&o.scaleNodes, "scale-nodes", 2000, "nodes of the cluster that --scale, --idle and --status measure")
	flag.IntVar(&o.scaleRate, "scale-rate", 100, "pods a second that --scale creates")
	flag.IntVar(&o.deployments, "deployments", 1, "Deployments that share the pods of each burst")
	flag.BoolVar(&o.unscheduled, "unscheduled", false, "create pods that nobody schedules: a burst is over when all are created, and no other work slows it")
	flag.Func("users", "instead of bursts, so many users at once create pods, each one after the other: numbers with commas between them", func(text string) (err error) {
		o.users, err = numbers(text)
		return err
	})
	flag.BoolVar(&o.scheduling, "scheduling", false, "instead of bursts, measure how fast pods are created and scheduled, beside gated pods and with an extended resource")
	flag.StringVar(&o.profiles, "profiles", "", "write CPU profiles of the API server and of Stowage in each burst into this directory")
	flag.StringVar(&o.service, "service", "", "have the API server call the replicas of Stowage and of the floor as the endpoints of a Service: by-request (the default of Kubernetes 1.37), by-connection (as before), or affinity (one replica gets all)")
	flag.StringVar(&o.against, "against", "", "run the same bursts with Stowage of this commit, in turns with this tree, and compare")
	only := flag.String("cases", "", "measure only the cases whose names match this expression, beside the floor and no webhook")
	flag.Parse()
	if match, err := regexp.Compile(*only); err != nil {
		exit(err)
	} else {
		others := func(c benchCase) bool { return c.webhook == "stowage" && !match.MatchString(c.name) }
		cases, daemonCases = slices.DeleteFunc(cases, others), slices.DeleteFunc(daemonCases, others)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type options struct {
	pods, runs, replicas, tracked, daemons int
	controllers                            int
	scalePods, scaleNodes, scaleRate, idle int
	full, policy                           bool
	minutes                                int
	status                                 int    // pods
	service                                string // "", by-request, by-connection or affinity
	against                                string // a commit
	deployments                            int
	unscheduled                            bool
	users                                  []int
	scheduling                             bool
	profiles                               string // a directory
}

func (o options) validate() error {
	if o.pods < 1 || o.runs < 1 || o.replicas < 1 {
		return errors.New("--pods, --runs and --replicas must be at least 1")
	}
	if o.deployments < 1 || o.pods%o.deployments != 0 {
		return fmt.Errorf("--deployments is %d; it must divide --pods, which is %d", o.deployments, o.pods)
	}
	if o.scalePods > 0 && (o.scalePods < starts*podsPerWorkload || o.scaleNodes < 1 || o.scaleRate < 1 || o.replicas < 2) {
		return fmt.Errorf("--scale must be at least %d, --scale-nodes and --scale-rate at least 1, and --replicas at least 2", starts*podsPerWorkload)
	}
	if !slices.Contains([]string{"", byRequest, byConnection, affinity}, o.service) {
		return fmt.Errorf("--service is %q; it must be %s, %s or %s", o.service, byRequest, byConnection, affinity)
	}
	if o.against != "" && (o.tracked > 0 || o.daemons > 0 || o.scalePods > 0 || o.idle > 0 || o.status > 0 || len(o.users) > 0 || o.scheduling) {
		return errors.New("--against compares bursts only")
	}
	return nil
}

// result is one burst.
type result struct {
	created, ready time.Duration      // from the scale-up to the last pod
	programs       map[string]float64 // processor time in seconds until the last pod was created, by program
	requests       float64            // API requests that Stowage made meanwhile, per pod
	call           time.Duration      // mean of the webhook's calls, as the API server sees them
	within         int                // see [callTimes.within]
	cpu            float64            // seconds that the first replica took, per pod, its removal included
}

func run(ctx context.Context, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	repo, err := controlplane.RepositoryRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stowage-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if o.against != "" {
		return compare(ctx, o, repo, dir)
	}
	b, err := start(ctx, o, repo, dir)
	if err != nil {
		return err
	}
	defer b.Stop()

	switch {
	case o.tracked > 0:
		return b.track(ctx)
	case o.daemons > 0:
		return b.daemons(ctx)
	case o.scalePods > 0:
		return b.scale(ctx)
	case o.idle > 0:
		return b.idle(ctx)
	case o.status > 0:
		return b.statusDelays(ctx)
	case len(o.users) > 0:
		return b.load(ctx)
	case o.scheduling:
		return b.scheduling(ctx)
	}
	// The first burst of each case warms up and is not counted.
	for i := range o.runs + 1 {
		if err := b.bursts(ctx, i); err != nil {
			return err
		}
	}
	if err := b.report(); err != nil {
		return err
	}
	if err := b.reportShares(); err != nil {
		return err
	}
	return b.reportSeats()
}

// start makes a cluster, and gives each case's webhook the namespaces of that case only. The caller must call Stop.
func start(ctx context.Context, o options, repo, dir string) (*bench, error) {
	binary := filepath.Join(dir, "stowage")
	if err := controlplane.BuildStowage(ctx, repo, binary); err != nil {
		return nil, err
	}
	c, err := controlplane.Start(ctx, controlplane.Config{
		Root: repo, Dir: dir, Progress: os.Stdout, APIServerArgs: o.apiServerArgs(),
	})
	if err != nil {
		return nil, err
	}
	b := &bench{Cluster: c, options: o, binary: binary, results: map[string][]result{}, last: map[string]time.Duration{}}
	if err := b.prepare(ctx, repo, dir); err != nil {
		c.Stop()
		return nil, err
	}
	return b, nil
}

// healthInterval is the period of the chart's readiness probe. A replica answers it with a TLS handshake to itself.
const healthInterval = 2 * time.Second

// stowage says how to run a build of Stowage.
func (b *bench) stowage(binary string) controlplane.StowageOptions {
	return controlplane.StowageOptions{
		Binary: binary, Replicas: b.options.replicas, Controllers: b.options.controllers, Args: b.options.stowageArgs(), Env: []string{"LOG_LEVEL="},
		Pods: b.options.service != "", Profiles: b.options.profiles != "", HealthInterval: healthInterval,
	}
}

func (b *bench) prepare(ctx context.Context, repo, dir string) error {
	if err := b.ApplyFiles(ctx, filepath.Join(repo, "hack", "nodes", "pools.yaml")); err != nil {
		return err
	}
	if err := b.StartStowage(ctx, b.stowage(b.binary)); err != nil {
		return err
	}
	if err := b.WaitForNodes(ctx, 9); err != nil {
		return err
	}
	floor, err := b.startFloor(ctx, dir)
	if err != nil {
		return err
	}
	if b.options.service != "" {
		if err := b.callStowage(ctx); err != nil {
			return err
		}
	}
	return b.setUp(ctx, floor)
}

// bursts measures one burst of each case.
func (b *bench) bursts(ctx context.Context, turn int) error {
	for _, bc := range cases {
		r, err := b.burst(ctx, bc)
		if err != nil {
			return fmt.Errorf("%s: %w", bc.name, err)
		}
		fmt.Printf("burst %d of %d, %-28s created %6.2fs, ready %6.2fs\n", turn, b.options.runs, bc.name, r.created.Seconds(), r.ready.Seconds())
		b.last[bc.name] = r.created
		if turn > 0 {
			b.results[bc.name] = append(b.results[bc.name], r)
		}
	}
	return nil
}

// report prints medians, and ratios of medians. Beside the ratio of created to the floor are the lowest and the highest of the turns, each
// of the floor of its turn.
func (b *bench) report() error {
	created := func(r result) time.Duration { return r.created }
	ready := func(r result) time.Duration { return r.ready }
	fmt.Printf("\nMedians of %d bursts of %d pods of %d Deployment(s), %d replica(s):\n\n", b.options.runs, b.options.pods, b.options.deployments, b.options.replicas)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tCREATED\tOF NO WEBHOOK\tOF THE FLOOR\tLOWEST\tHIGHEST\tREADY\tOF THE FLOOR\t99% OF CALLS WITHIN\tAPI REQUESTS OF STOWAGE PER POD")
	for _, c := range cases {
		results, floor := b.results[c.name], b.results[caseFloor]
		var turns []float64
		for i, r := range results {
			turns = append(turns, ratio(r.created, floor[i].created))
		}
		fmt.Fprintf(w, "%s\t%.2fs\t%.2f\t%.2f\t%.2f\t%.2f\t%.2fs\t%.2f\t%s\t%.3f\n", c.name, median(results, created).Seconds(),
			ratio(median(results, created), median(b.results[caseNone], created)), b.ofTheFloor(c.name, created), slices.Min(turns), slices.Max(turns),
			median(results, ready).Seconds(), b.ofTheFloor(c.name, ready),
			boundText(median(results, func(r result) int { return r.within })),
			median(results, func(r result) float64 { return r.requests }))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return b.reportPrograms()
}

// ofTheFloor returns the median of a case as a part of the floor's.
func (b *bench) ofTheFloor(name string, of func(result) time.Duration) float64 {
	return ratio(median(b.results[name], of), median(b.results[caseFloor], of))
}

func ratio(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }

func median[T cmp.Ordered](results []result, of func(result) T) T {
	values := make([]T, len(results))
	for i, r := range results {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// startFloor runs the floor's replicas, and returns how the API server calls them.
func (b *bench) startFloor(ctx context.Context, dir string) (*admissionregistrationv1.WebhookClientConfig, error) {
	if err := controlplane.WriteServingCertificate(dir, floorService+"."+controlplane.StowageNamespace+".svc"); err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "tls.crt"))
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var addrs []string
	for range b.options.replicas {
		addr, err := controlplane.FreeAddress()
		if err != nil {
			return nil, err
		}
		listen := addr
		if b.options.service != "" {
			listen = addr[strings.LastIndexByte(addr, ':'):] // an endpoint is called from outside the loopback interface
		}
		cmd := exec.CommandContext(ctx, self, "floor", listen, dir)
		cmd.Stderr = os.Stderr
		// Its input ends when we do, and it with that.
		if _, err := cmd.StdinPipe(); err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	if b.options.service != "" {
		if b.options.service == affinity {
			addrs = addrs[:1]
		}
		return &admissionregistrationv1.WebhookClientConfig{
			Service: &admissionregistrationv1.ServiceReference{Namespace: controlplane.StowageNamespace, Name: floorService}, CABundle: ca,
		}, b.Serve(ctx, floorService, addrs, nil)
	}
	port, err := controlplane.Balance(ctx, addrs...)
	if err != nil {
		return nil, err
	}
	return &admissionregistrationv1.WebhookClientConfig{URL: new(fmt.Sprintf("https://localhost:%d/", port)), CABundle: ca}, nil
}
