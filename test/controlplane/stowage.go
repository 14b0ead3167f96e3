package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// Stowage's own objects, as config/ names them.
const (
	StowageNamespace          = "stowage-system"
	stowageServiceAccount     = "stowage"
	controllersServiceAccount = "stowage-controllers"
)

// Accounts are the ServiceAccounts of the webhook and of the controllers.
var Accounts = []string{stowageServiceAccount, controllersServiceAccount}

// StowageOptions say how to run Stowage.
type StowageOptions struct {
	// Binary is the path of the stowage program.
	Binary string
	// Replicas is how many processes answer the API server; it is at least 1.
	Replicas int
	// Controllers is how many further processes run the controllers. If it is 0, the replicas run them, too, with all rights.
	Controllers int
	// Others are paths of other releases of the program, of each of which one more process runs.
	Others []string
	// Installed says that the objects of config/ are there already, from a chart say;
	// only the addresses in the registrations are changed then.
	Installed bool
	// WithoutWebhook installs config/scaledown. Only Controllers processes run then, and the API server calls none of them.
	WithoutWebhook bool
	// Timeout is how long the API server waits for an answer, in seconds, or 0 for what the registration says.
	Timeout int64
	// Args and Env are added to each process's.
	Args []string
	Env  []string
	// Pods gives each replica a Pod object that nobody runs, so that the endpoints of a Service can name the replica.
	Pods bool
	// Profiles has each process serve its profiles.
	Profiles bool
	// HealthInterval is how often the balancer asks a replica whether it is ready, or 0 for five times a second.
	// It is that of the first start.
	HealthInterval time.Duration
}

// Replica is one process of Stowage.
type Replica struct {
	// MetricsURL is where the replica serves its metrics.
	MetricsURL string
	// HealthURL is where it serves /healthz and /readyz.
	HealthURL string
	// ProfilesURL is where it serves the profiles of net/http/pprof, if it was asked to.
	ProfilesURL string
	// WebhookAddr is the host and port of its own webhook server, if it is a webhook.
	WebhookAddr string
	// Log is its log file.
	Log string
	// Name is that of its process, and of its Pod object if it has one.
	Name string

	args    []string
	env     []string
	binary  string
	process *process
}

// stowageFleet is the replicas and the balancer before them.
type stowageFleet struct {
	balancer    *balancer
	replicas    []*Replica
	controllers []*Replica // of their own
	cancel      context.CancelFunc
	serial      int // numbers replicas, so that a restarted fleet has its own logs
}

// StartStowage installs Stowage from config/ and runs its replicas, or, where it
// runs already, replaces them with the ones that the options ask for. It returns
// when the API server calls them.
func (c *Cluster) StartStowage(ctx context.Context, o StowageOptions) error {
	c.say("Starting Stowage (%d replica(s))", o.Replicas)
	c.mu.Lock()
	defer c.mu.Unlock()

	// 1. Kinds and permissions first: the replicas have no others.
	if o.WithoutWebhook {
		if !o.Installed {
			if err := c.applyWithoutWebhook(ctx); err != nil {
				return err
			}
		}
		o.Replicas, o.Others, o.Args = 0, nil, append(slices.Clone(o.Args), "--spread=false", "--sizing=false", "--peer-pods=false")
	} else if !o.Installed {
		crds, err := filepath.Glob(filepath.Join(c.cfg.Root, "config", "crd", "bases", "*.yaml"))
		if err != nil {
			return err
		}
		rights, err := filepath.Glob(filepath.Join(c.cfg.Root, "config", "rbac", "[^k]*.yaml")) // all but the kustomization
		if err != nil {
			return err
		}
		first := c.configFiles("manager/namespace.yaml", "manager/flowcontrol.yaml", "manager/config.yaml")
		if err := c.ApplyFiles(ctx, slices.Concat(crds, first, rights)...); err != nil {
			return err
		}
	}
	if err := c.AwaitKinds(ctx); err != nil {
		return err
	}
	if !o.Installed && o.Controllers == 0 && !o.WithoutWebhook {
		if err := c.giveAllRights(ctx); err != nil {
			return fmt.Errorf("all rights for one process: %w", err)
		}
	}

	// 2. The replicas, and one address for all of them.
	fleet := c.stowage
	if fleet == nil {
		watchCtx, cancel := context.WithCancel(context.Background())
		b, err := newBalancer()
		if err != nil {
			cancel()
			return err
		}
		go b.watch(watchCtx, cmp.Or(o.HealthInterval, defaultHealthInterval))
		fleet = &stowageFleet{balancer: b, cancel: cancel}
		c.stowage = fleet
	}
	started, err := c.startReplicas(ctx, fleet, o)
	if err != nil {
		stopAll(started)
		return err
	}
	old := slices.Concat(fleet.replicas, fleet.controllers)
	fleet.controllers, fleet.replicas = started[:o.Controllers], started[o.Controllers:]
	fleet.balancer.setBackends(ctx, fleet.backends())
	stopAll(old)
	if o.WithoutWebhook {
		return nil
	}

	// 3. Only now the registration: a webhook that does not answer yet would let
	// pods pass unchanged.
	if err := c.register(ctx, o, fleet.balancer.port()); err != nil {
		return fmt.Errorf("register the webhook: %w", err)
	}
	return c.awaitWebhook(ctx, fleet.replicas[0])
}

// applyWithoutWebhook installs what config/scaledown has, but for Deployments. It removes what an installation with the webhook has more.
func (c *Cluster) applyWithoutWebhook(ctx context.Context) error {
	read := func(overlay string) (objects []*unstructured.Unstructured, err error) {
		out, err := exec.CommandContext(ctx, filepath.Join(c.cfg.Root, "bin", "kubectl"), "kustomize", filepath.Join(c.cfg.Root, "config", overlay)).Output()
		if err != nil {
			return nil, fmt.Errorf("kubectl kustomize config/%s: %w", overlay, err)
		}
		return ParseObjects(out)
	}
	all, err := read("default")
	if err != nil {
		return err
	}
	kept, err := read("scaledown")
	if err != nil {
		return err
	}
	name := func(o *unstructured.Unstructured) string { return o.GetKind() + "/" + o.GetName() }
	there := map[string]bool{}
	for _, o := range kept {
		there[name(o)] = true
	}
	for _, o := range all {
		if there[name(o)] {
			continue
		}
		if err := c.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return c.Apply(ctx, slices.DeleteFunc(kept, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })...)
}

// register makes the API server call a loopback port: by the registrations of config/, or by
// those that are installed.
func (c *Cluster) register(ctx context.Context, o StowageOptions, port int) error {
	objects, err := ReadObjects(filepath.Join(c.cfg.Root, "config", "webhook", "manifests.yaml"))
	if err != nil {
		return err
	}
	if !o.Installed {
		for _, obj := range objects {
			if err := pointAt(obj, port, o.Timeout); err != nil {
				return err
			}
		}
		return c.Apply(ctx, objects...)
	}
	for _, obj := range objects {
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			if err := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				// A chart without the spread has only one of them.
				return client.IgnoreNotFound(err)
			}
			if err := pointAt(obj, port, o.Timeout); err != nil {
				return err
			}
			return c.Client.Update(ctx, obj)
		}); err != nil {
			return err
		}
	}
	return nil
}

// AwaitKinds returns when the API server serves our kinds.
func (c *Cluster) AwaitKinds(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(context.Context) (bool, error) {
		for _, gv := range []string{stowage.GroupVersion.String(), versprei.GroupVersion.String(), flexdaemonsets.GroupVersion.String()} {
			list, err := c.Clientset.Discovery().ServerResourcesForGroupVersion(gv)
			if apierrors.IsNotFound(err) || err == nil && len(list.APIResources) == 0 {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// startReplicas starts new processes, first those that run controllers alone, and returns them when all are ready. With an
// error, it returns those that it has started.
func (c *Cluster) startReplicas(ctx context.Context, fleet *stowageFleet, o StowageOptions) ([]*Replica, error) {
	var replicas []*Replica
	parts := append(slices.Repeat([]part{controllers}, o.Controllers), slices.Repeat([]part{o.replica()}, o.Replicas+len(o.Others))...)
	binaries := append(slices.Repeat([]string{o.Binary}, o.Controllers+o.Replicas), o.Others...)
	for i, binary := range binaries {
		o.Binary = binary
		r, err := c.newReplica(ctx, fleet.serial, parts[i], o)
		if err != nil {
			return replicas, err
		}
		fleet.serial++
		if err := r.start(c.Logs); err != nil {
			return replicas, err
		}
		replicas = append(replicas, r)
	}
	for _, r := range replicas {
		if err := c.awaitReplica(ctx, r); err != nil {
			return replicas, err
		}
	}
	return replicas, nil
}

// Balance puts some servers of the caller's behind one loopback port, as StartStowage
// does with its replicas, until ctx ends.
func Balance(ctx context.Context, addrs ...string) (port int, err error) {
	b, err := newBalancer()
	if err != nil {
		return 0, err
	}
	backends := make([]*backend, len(addrs))
	for i, a := range addrs {
		backends[i] = &backend{addr: a}
	}
	b.setBackends(ctx, backends)
	context.AfterFunc(ctx, b.close)
	return b.port(), nil
}

// FreeAddress returns a loopback address that nobody uses.
func FreeAddress() (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	return loopback(port), nil
}

func (c *Cluster) configFiles(names ...string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = filepath.Join(c.cfg.Root, "config", n)
	}
	return out
}

// part is what a process runs: a flag, or "" for all.
type part string

const (
	webhook     part = "webhook"
	controllers part = "controllers"
)

// replica is what each replica runs.
func (o *StowageOptions) replica() part {
	if o.Controllers == 0 {
		return ""
	}
	return webhook
}

// giveAllRights gives the webhook's ServiceAccount the roles of the controllers, too.
func (c *Cluster) giveAllRights(ctx context.Context) error {
	bindings, err := ReadObjects(filepath.Join(c.cfg.Root, "config", "rbac", "role_binding.yaml"))
	if err != nil {
		return err
	}
	for _, b := range bindings {
		b.SetName(b.GetName() + "-all")
		subject := map[string]any{"kind": "ServiceAccount", "name": stowageServiceAccount, "namespace": StowageNamespace}
		if err := unstructured.SetNestedSlice(b.Object, []any{subject}, "subjects"); err != nil {
			return err
		}
	}
	return c.Apply(ctx, bindings...)
}

// StowageKubeconfig writes a kubeconfig with a token of one of Stowage's [Accounts], and returns its path.
func (c *Cluster) StowageKubeconfig(ctx context.Context, account string) (string, error) {
	token, err := c.Clientset.CoreV1().ServiceAccounts(StowageNamespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(30 * 24 * 3600))}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.cfg.Dir, account+".kubeconfig")
	return path, c.layout.pki.writeKubeconfig(path, c.layout.apiURL(), &clientcmdapi.AuthInfo{Token: token.Status.Token})
}

func (c *Cluster) newReplica(ctx context.Context, serial int, runs part, o StowageOptions) (*Replica, error) {
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	account := stowageServiceAccount
	if runs == controllers {
		account = controllersServiceAccount
	}
	kubeconfig, err := c.StowageKubeconfig(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("credentials for Stowage: %w", err)
	}
	name := fmt.Sprintf("stowage-%d", serial)
	env := o.Env
	if o.Pods {
		env = append(slices.Clone(env), "POD_NAME="+name)
		if err := c.Client.Create(ctx, podOf(name)); err != nil {
			return nil, err
		}
	}
	args := []string{"serve"}
	if runs != "" {
		args = append(args, "--"+string(runs))
	}
	profiles := ""
	if o.Profiles {
		args = append(args, "--pprof-bind-address="+loopback(ports[3]))
		profiles = "http://" + loopback(ports[3]) + "/debug/pprof"
	}
	return &Replica{
		WebhookAddr: loopback(ports[0]),
		ProfilesURL: profiles,
		MetricsURL:  "http://" + loopback(ports[1]) + "/metrics",
		HealthURL:   "http://" + loopback(ports[2]),
		Log:         filepath.Join(c.Logs, name+".log"),
		binary:      o.Binary,
		Name:        name,
		env:         env,
		args: slices.Concat(args, []string{
			"--kubeconfig=" + kubeconfig,
			"--namespace=" + StowageNamespace,
			"--host=127.0.0.1",
			fmt.Sprintf("--port=%d", ports[0]),
			"--metrics-bind-address=" + loopback(ports[1]),
			"--health-probe-bind-address=" + loopback(ports[2]),
			"--shutdown-delay=1s",              // our balancer notices sooner than a cluster does
			"--cert-extra-dns-names=localhost", // the registration has a URL here, not a Service
		}, o.Args),
	}, nil
}

// podOf is the Pod object of a replica. It has a scheduler that there is not.
func podOf(replica string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: StowageNamespace, Name: replica},
		Spec: corev1.PodSpec{
			SchedulerName:   "nobody",
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "stowage", Image: "none",
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

func (r *Replica) start(logs string) (err error) {
	p, err := start(r.Name, logs, r.binary, r.args, r.env...)
	if err == nil {
		r.process = p
	}
	return err
}

func (f *stowageFleet) backends() []*backend {
	out := make([]*backend, len(f.replicas))
	for i, r := range f.replicas {
		out[i] = &backend{addr: r.WebhookAddr, healthURL: r.HealthURL + "/readyz"}
	}
	return out
}

func (c *Cluster) awaitReplica(ctx context.Context, r *Replica) error {
	return c.await(ctx, r.Name, r.process, func(ctx context.Context) (bool, error) {
		if !r.process.running() {
			return false, r.Failure()
		}
		return httpReady(ctx, r.HealthURL+"/readyz"), nil
	})
}

// pointAt makes a webhook registration call a loopback port instead of a Service, or of another port.
func pointAt(registration *unstructured.Unstructured, port int, timeout int64) error {
	hooks, _, err := unstructured.NestedSlice(registration.Object, "webhooks")
	if err != nil {
		return err
	}
	for i := range hooks {
		hook := hooks[i].(map[string]any)
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		if former, found, _ := unstructured.NestedString(hook, "clientConfig", "url"); found {
			at, err := url.Parse(former)
			if err != nil {
				return err
			}
			path = at.Path
		}
		if path == "" {
			return fmt.Errorf("webhook %v has no path", hook["name"])
		}
		// By name, because the certificate has no IP address in it.
		config := map[string]any{"url": fmt.Sprintf("https://localhost:%d%s", port, path)}
		if bundle, found, _ := unstructured.NestedString(hook, "clientConfig", "caBundle"); found {
			config["caBundle"] = bundle
		}
		hook["clientConfig"] = config
		if timeout > 0 {
			hook["timeoutSeconds"] = timeout
		}
	}
	return unstructured.SetNestedSlice(registration.Object, hooks, "webhooks")
}

// awaitWebhook returns when the API server calls Stowage.
func (c *Cluster) awaitWebhook(ctx context.Context, r *Replica) error {
	return c.await(ctx, "the webhook", r.process, c.WebhookAnswers)
}

// WebhookAnswers reports whether the API server calls Stowage now. The sign is a warning
// that Stowage gives, and nobody else, about a pod with a mode that does not
// exist; the pod is only tried.
func (c *Cluster) WebhookAnswers(ctx context.Context) (bool, error) {
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "probe-", Namespace: "default", Annotations: map[string]string{stowage.ModeKey: "probe"},
			// A DaemonSet's pod is one that no match condition leaves out.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "probe", UID: "probe", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	warned := &Warnings{}
	cfg := *c.Config
	cfg.WarningHandler = warned
	trier, err := newClient(&cfg)
	if err != nil {
		return false, err
	}
	if err := trier.Create(ctx, probe, client.DryRunAll); err != nil && !apierrors.IsInternalError(err) && !apierrors.IsForbidden(err) {
		return false, err
	}
	return strings.Contains(strings.Join(warned.Take(), "\n"), stowage.ModeKey), nil
}

// Replicas returns the processes that answer the API server.
func (c *Cluster) Replicas() []*Replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stowage == nil {
		return nil
	}
	return c.stowage.replicas
}

// Controllers returns the processes that may run the controllers. One of them does.
func (c *Cluster) Controllers() []*Replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stowage == nil:
		return nil
	case len(c.stowage.controllers) == 0:
		return c.stowage.replicas
	}
	return c.stowage.controllers
}

// Processes returns all processes of Stowage.
func (c *Cluster) Processes() []*Replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stowage == nil {
		return nil
	}
	return slices.Concat(c.stowage.replicas, c.stowage.controllers)
}

// StartReplica runs one more replica, beside the fleet and unknown to the
// API server, and returns when it is ready. The caller must end it.
func (c *Cluster) StartReplica(ctx context.Context, o StowageOptions) (*Replica, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.Controllers = len(c.stowage.controllers)
	r, err := c.newReplica(ctx, c.stowage.serial, o.replica(), o)
	if err != nil {
		return nil, err
	}
	c.stowage.serial++
	if err := r.start(c.Logs); err != nil {
		return nil, err
	}
	return r, c.awaitReplica(ctx, r)
}

// Kill ends a replica as a power failure would. It returns when it is gone.
func (r *Replica) Kill() { r.process.kill() }

// Signal sends a signal to a replica, such as one that stops it for a while.
func (r *Replica) Signal(s os.Signal) error { return r.process.cmd.Process.Signal(s) }

// Terminate ends a replica as a kubelet would, and returns its exit error.
func (r *Replica) Terminate(grace time.Duration) error {
	r.process.stop(grace)
	return r.process.err
}

// EndedReplicas returns the processes of Stowage that have ended by themselves.
func (c *Cluster) EndedReplicas() (ended []*Replica) {
	for _, r := range c.Processes() {
		if !r.process.running() {
			ended = append(ended, r)
		}
	}
	return ended
}

// Failure describes why a replica is not running, with the end of its log.
func (r *Replica) Failure() error { return r.process.failure() }

// Restart starts a replica that has ended, and returns when it is ready.
func (c *Cluster) Restart(ctx context.Context, r *Replica) error {
	if r.process.running() {
		return errors.New("the replica still runs")
	}
	if err := r.start(c.Logs); err != nil {
		return err
	}
	return c.awaitReplica(ctx, r)
}

// StopStowage ends the replicas. The registration stays, as it does when a
// Deployment is scaled to zero.
func (c *Cluster) StopStowage() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stowage == nil {
		return
	}
	stopAll(slices.Concat(c.stowage.replicas, c.stowage.controllers))
	c.stowage.balancer.close()
	c.stowage.cancel()
	c.stowage = nil
}

// stopAll ends replicas side by side.
func stopAll(replicas []*Replica) {
	var all sync.WaitGroup
	for _, r := range replicas {
		all.Go(func() { r.process.stop(stopGrace) })
	}
	all.Wait()
}

// BuildStowage compiles the stowage program of a checkout into a file. Suites that run side by side, or one after the other, link it once.
func BuildStowage(ctx context.Context, root, to string) error {
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	linked := filepath.Join(dir, "stowage")
	if err := goBuild(ctx, root, "-o", linked, "./cmd/stowage"); err != nil {
		return err
	}
	data, err := os.ReadFile(linked)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// RepositoryRoot finds the repository that contains the working directory.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(data), "module github.com/stowage-dev/stowage\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the stowage repository")
		}
		dir = parent
	}
}
