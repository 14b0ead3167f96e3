package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config says where a cluster's programs and files are.
type Config struct {
	// Root is the repository.
	Root string
	// Dir is an empty or missing directory for the cluster's files.
	Dir string
	// APIOnly starts etcd and kube-apiserver alone: nothing schedules or runs pods, and
	// no controller but the caller's changes objects.
	APIOnly bool
	// Network is where the programs run that real nodes talk to; nil is this machine, with nodes that kwok plays.
	Network *Network
	// Audit keeps a log of what Stowage asks the API server.
	Audit bool
	// NoSchedulerEvents takes from kube-scheduler the right to write Events: a tenth of what the API server does in a test.
	NoSchedulerEvents bool
	// APIServerArgs are added to those of kube-apiserver.
	APIServerArgs []string
	// Progress is told what happens, a line each.
	Progress io.Writer
}

// Network is a network namespace that the control plane runs in.
type Network struct {
	// PID is a process in the namespace, and Address one of the namespace's that all nodes reach.
	PID     int
	Address string
	// Dial connects from within the namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Cluster is a running control plane.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string
	// Config is the same for clients in this process, without a rate limit.
	Config *rest.Config
	// Client is an administrator's client that reads without a cache.
	Client client.Client
	// Clientset is the same, typed.
	Clientset kubernetes.Interface
	// Logs is the directory of every program's log.
	Logs string

	cfg       Config
	layout    *layout
	processes []*process // in the order of their start

	mu      sync.Mutex
	stowage *stowageFleet
}

const (
	startTimeout = 5 * time.Minute // for one component to become ready
	stopGrace    = 5 * time.Second // for one component to end
	pollInterval = 100 * time.Millisecond
)

// Start brings a control plane up and returns when it is ready for pods. The
// caller must call Stop; where it can't, the kernel ends the programs.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	bin, err := Locate(cfg.Root)
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, Logs: filepath.Join(cfg.Dir, "logs"), Kubeconfig: filepath.Join(cfg.Dir, "kubeconfig")}
	if err := c.start(ctx, bin); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// WebhookClient is the name in the certificate that the API server shows to webhooks.
const WebhookClient = "kube-apiserver-webhook-client"

// AuthorityFile is the certificate of the cluster's authority, which signs clients' certificates, too.
func (c *Cluster) AuthorityFile() string { return c.layout.pki.file("ca.crt") }

func (c *Cluster) start(ctx context.Context, bin Binaries) error {
	if err := os.MkdirAll(c.Logs, 0o755); err != nil {
		return err
	}

	// 1. Lay out files and ports.
	if err := c.layOut(bin); err != nil {
		return err
	}

	// 2. Start etcd and the API server, which waits for etcd by itself.
	l := c.layout
	c.say("Starting etcd and kube-apiserver on %s", l.apiURL())
	if _, err := c.run("etcd", bin.Etcd, l.etcdArgs()); err != nil {
		return err
	}
	apiArgs := append(l.apiServerArgs(), c.cfg.APIServerArgs...)
	if c.cfg.Audit {
		more, err := c.auditArgs()
		if err != nil {
			return err
		}
		apiArgs = append(apiArgs, more...)
	}
	api, err := c.run("kube-apiserver", bin.APIServer, apiArgs)
	if err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.await(ctx, "kube-apiserver", api, func(ctx context.Context) (bool, error) {
		_, err := c.Clientset.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, nil
	}); err != nil {
		return err
	}

	if c.cfg.APIOnly {
		return nil
	}

	// 3. Start what works against the API server.
	if c.cfg.NoSchedulerEvents {
		if err := c.refuseSchedulerEvents(ctx); err != nil {
			return err
		}
	}
	c.say("Starting kube-controller-manager and kube-scheduler")
	controllers, err := c.run("kube-controller-manager", bin.ControllerManager, l.controllerManagerArgs())
	if err != nil {
		return err
	}
	if _, err := c.run("kube-scheduler", bin.Scheduler, l.schedulerArgs()); err != nil {
		return err
	}
	if c.cfg.Network == nil {
		if _, err := c.run("kwok", bin.Kwok, l.kwokArgs()); err != nil {
			return err
		}
	}
	// Pods need the namespace's service account, which a controller makes.
	return c.await(ctx, "the default service account", controllers, func(ctx context.Context) (bool, error) {
		var sa corev1.ServiceAccount
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &sa)
		return err == nil, nil
	})
}

// refuseSchedulerEvents takes the rules of Events from the ClusterRole of kube-scheduler, which drops an Event that is refused.
func (c *Cluster) refuseSchedulerEvents(ctx context.Context) error {
	role := &rbacv1.ClusterRole{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: "system:kube-scheduler"}, role); err != nil {
		return err
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "events") })
	return c.Client.Update(ctx, role)
}

// layOut writes the files that the programs read, and chooses their ports.
func (c *Cluster) layOut(bin Binaries) error {
	l := &layout{
		etcdData: filepath.Join(c.cfg.Dir, "etcd"), admin: c.Kubeconfig,
		controllers: filepath.Join(c.cfg.Dir, "controller-manager.kubeconfig"),
		scheduler:   filepath.Join(c.cfg.Dir, "scheduler.kubeconfig"),
		webhooks:    filepath.Join(c.cfg.Dir, "webhooks.kubeconfig"),
		admission:   filepath.Join(c.cfg.Dir, "admission.yaml"),
		kwokConfig:  filepath.Join(c.cfg.Dir, "kwok.yaml"),
	}
	c.layout = l
	var err error
	var addresses []string
	if c.cfg.Network != nil {
		addresses = append(addresses, c.cfg.Network.Address)
	}
	if l.pki, err = newPKI(filepath.Join(c.cfg.Dir, "pki"), addresses...); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	l.network = c.cfg.Network
	l.etcdPort, l.etcdPeerPort, l.apiPort, l.kwokServerPort = ports[0], ports[1], ports[2], ports[3]
	if err := l.pki.kubeconfig(l.admin, l.apiURL(), "admin", "system:masters"); err != nil {
		return err
	}
	if err := l.pki.kubeconfig(l.controllers, l.apiURL(), "system:kube-controller-manager"); err != nil {
		return err
	}
	if err := l.pki.kubeconfig(l.scheduler, l.apiURL(), "system:kube-scheduler"); err != nil {
		return err
	}
	if err := l.pki.webhookKubeconfig(l.webhooks, WebhookClient); err != nil {
		return err
	}
	if err := os.WriteFile(l.admission, l.admissionConfiguration(), 0o600); err != nil {
		return err
	}
	stages, err := readAll(filepath.Join(bin.KwokStages, "*.yaml"), filepath.Join(c.cfg.Root, "hack", "controlplane", "stages", "*.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(l.kwokConfig, kwokConfiguration(stages), 0o644)
}

// readAll reads the files of some patterns.
func readAll(patterns ...string) (out [][]byte, err error) {
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			out = append(out, data)
		}
	}
	return out, nil
}
func (c *Cluster) say(format string, args ...any) {
	if c.cfg.Progress != nil {
		fmt.Fprintf(c.cfg.Progress, format+"\n", args...)
	}
}

// collectLess has the garbage collector of a program of the control plane run less often. Several clusters share two processors in tests, and a new
// cluster's heap is so small that a collection is always due.
var collectLess = []string{"GOGC=400", "GOMEMLIMIT=1GiB"}

func (c *Cluster) run(name, path string, args []string) (*process, error) {
	if n := c.cfg.Network; n != nil {
		path, args = "nsenter", append([]string{"--net", "--target", strconv.Itoa(n.PID), path}, args...)
	}
	p, err := start(name, c.Logs, path, args, collectLess...)
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// connect makes the clients from the administrator's kubeconfig.
func (c *Cluster) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	if n := c.cfg.Network; n != nil {
		cfg.Dial = n.Dial
	}
	cfg.QPS = -1                  // tests and the demo measure the cluster, not their client
	cfg.DisableCompression = true // on one machine, it costs more than it saves
	c.Config = cfg
	if c.Clientset, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	c.Client, err = newClient(cfg)
	return err
}

// await polls until ready returns true, or a program of the control plane ends, or time is up.
func (c *Cluster) await(ctx context.Context, what string, p *process, ready wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		if err := c.Healthy(); err != nil { // of those that have ended, the one that was started first is the cause
			return false, err
		}
		return ready(ctx)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s is not ready after %s; the end of %s:\n%s", what, startTimeout, p.log, tail(p.log))
	}
	return err
}

// WriteKubeconfig writes a kubeconfig with a client certificate for a user into a file, for a program beside those of
// the control plane.
func (c *Cluster) WriteKubeconfig(path, user string, groups ...string) error {
	return c.layout.pki.kubeconfig(path, c.layout.apiURL(), user, groups...)
}

// Healthy reports whether every program of the control plane runs.
func (c *Cluster) Healthy() error {
	for _, p := range c.processes {
		if !p.running() {
			return p.failure()
		}
	}
	return nil
}

// ProcessorTime returns how much processor time a program of the control plane has used, in hundredths of a second. It reads /proc, and
// so fails on other systems than Linux.
func (c *Cluster) ProcessorTime(name string) (time.Duration, error) {
	for _, p := range c.processes {
		if p.name != name {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := strings.Cut(string(data), ") ") // the name of the program may have spaces
		fields := strings.Fields(after)
		if len(fields) < 13 {
			return 0, fmt.Errorf("/proc has no times of %s: %q", name, data)
		}
		sum := 0
		for _, field := range fields[11:13] { // utime and stime, proc_pid_stat(5)
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			sum += ticks
		}
		return time.Duration(sum) * 10 * time.Millisecond, nil
	}
	return 0, fmt.Errorf("the control plane has no %s", name)
}

// RestartProgram kills a program of the control plane, such as kube-apiserver, and starts it again. It returns when the API server
// answers.
func (c *Cluster) RestartProgram(ctx context.Context, name string) error {
	for i, p := range c.processes {
		if p.name != name {
			continue
		}
		p.kill()
		again, err := start(name, c.Logs, p.path, p.args, collectLess...)
		if err != nil {
			return err
		}
		c.processes[i] = again
		return c.await(ctx, name, again, func(ctx context.Context) (bool, error) {
			_, err := c.Clientset.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err == nil, nil
		})
	}
	return fmt.Errorf("the control plane has no %s", name)
}

// Stop ends everything that Start and StartStowage began, in reverse order.
func (c *Cluster) Stop() {
	c.StopStowage()
	// The components hold no state that must be flushed: etcd's data is thrown
	// away, so the clients can be ended at once and etcd last.
	for _, p := range slices.Backward(c.processes) {
		p.stop(stopGrace)
	}
	c.processes = nil
}

// httpReady reports whether a health endpoint answers 200.
func httpReady(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := healthClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

var healthClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}}
