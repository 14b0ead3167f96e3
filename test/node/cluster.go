package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// Cluster is a control plane with real nodes. The control plane runs in the network of the first node, so that
// kube-proxy serves its calls of webhooks.
type Cluster struct {
	*controlplane.Cluster
	Nodes []*Node

	programs controlplane.Binaries
	dir      string
	images   []string // archives
}

// needed are the programs that come from the distribution.
var needed = []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr", "ip", "nsenter", "iptables", "nft", "conntrack"}

// cniPlugins is where Debian's package containernetworking-plugins puts them.
const cniPlugins = "/usr/lib/cni"

// Missing returns what this machine lacks to run real nodes, or nothing.
func Missing(root string) (missing []string) {
	if os.Getuid() != 0 {
		missing = append(missing, "root")
	}
	for _, program := range needed {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if _, err := os.Stat(filepath.Join(cniPlugins, "bridge")); err != nil {
		missing = append(missing, cniPlugins+"/bridge")
	}
	if _, err := controlplane.LocateNodePrograms(root); err != nil {
		missing = append(missing, err.Error())
	}
	return missing
}

// Start starts a control plane and a node for each name. The caller must call Stop.
func Start(ctx context.Context, root, dir string, progress io.Writer, names ...string) (*Cluster, error) {
	programs, err := controlplane.LocateNodePrograms(root)
	if err != nil {
		return nil, err
	}
	c := &Cluster{programs: programs, dir: dir}
	if err := c.start(ctx, root, progress, names); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, root string, progress io.Writer, names []string) error {
	// 1. The programs of containers, and their images.
	tool := filepath.Join(c.dir, "nodetool")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", tool, "./test/node/nodetool")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build nodetool: %w\n%s", err, out)
	}
	for name, entrypoint := range map[string][]string{pauseImage: {"/nodetool", "pause"}, toolImage: {"/nodetool"}} {
		archive := filepath.Join(c.dir, strings.ReplaceAll(strings.ReplaceAll(name, "/", "-"), ":", "-")+".tar")
		if err := writeImage(archive, name, tool, entrypoint...); err != nil {
			return err
		}
		c.images = append(c.images, archive)
	}

	// 2. The nodes and their network.
	for i, name := range names {
		n, err := newNode(name, i+1, filepath.Join(c.dir, name), tool)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	if err := c.connect(ctx); err != nil {
		return err
	}

	// 3. The control plane, then what each node runs.
	first := c.Nodes[0]
	var err error
	if c.Cluster, err = controlplane.Start(ctx, controlplane.Config{
		Root: root, Dir: filepath.Join(c.dir, "controlplane"), Progress: progress,
		Network: &controlplane.Network{PID: first.PID, Address: first.Address, Dial: first.Dial},
	}); err != nil {
		return err
	}
	for i, n := range c.Nodes {
		// Both ways in which kube-proxy serves Services are in use somewhere.
		if err := c.startNode(ctx, n, []string{"nftables", "iptables"}[i%2]); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return c.WaitForNodes(ctx, len(c.Nodes))
}

// Stop ends everything, and returns when it is gone.
func (c *Cluster) Stop() {
	if c.Cluster != nil {
		c.Cluster.Stop()
	}
	for _, n := range c.Nodes {
		n.Stop()
	}
	c.Nodes = nil
}

// connect joins the nodes' networks: a bridge in the first node's, and a cable from each other one to it.
func (c *Cluster) connect(ctx context.Context) error {
	first := c.Nodes[0]
	steps := func(n *Node, lines ...string) error {
		for _, line := range lines {
			if err := n.run(n.NetworkCommand(ctx, "ip", strings.Fields(line)...)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := steps(first, "link set lo up", "link add nodes type bridge", "link set nodes up", "addr add "+first.Address+"/24 dev nodes"); err != nil {
		return err
	}
	for i, n := range c.Nodes[1:] {
		cable := fmt.Sprintf("node%d", i+2)
		if err := steps(first, fmt.Sprintf("link add %s type veth peer name nodes netns %d", cable, n.PID), "link set "+cable+" master nodes up"); err != nil {
			return err
		}
		if err := steps(n, "link set lo up", "link set nodes up", "addr add "+n.Address+"/24 dev nodes"); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		// Programs want a default route, and nothing may leave.
		lines := []string{"link add nowhere type bridge", "link set nowhere up", "route add default dev nowhere"}
		for _, other := range c.Nodes {
			if other != n {
				lines = append(lines, fmt.Sprintf("route add %s via %s", other.PodCIDR, other.Address))
			}
		}
		if err := steps(n, lines...); err != nil {
			return err
		}
		if err := n.run(n.NetworkCommand(ctx, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")); err != nil {
			return err
		}
	}
	return nil
}

// startNode starts containerd, the kubelet and kube-proxy of a node.
func (c *Cluster) startNode(ctx context.Context, n *Node, proxyMode string) error {
	if err := os.MkdirAll(n.file("cni"), 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"containerd.toml": n.containerdConfig(), "cni/bridge.conflist": n.cniConfig(),
		"kube-proxy.yaml": n.proxyConfig(proxyMode),
		"kata-remote":     n.kataRemote(), "refused": "",
	} {
		if err := os.WriteFile(n.file(name), []byte(content), 0o755); err != nil {
			return err
		}
	}
	if err := c.WriteKubeconfig(n.file("kubelet.kubeconfig"), "system:node:"+n.Name, "system:nodes"); err != nil {
		return err
	}
	if err := c.WriteKubeconfig(n.file("kube-proxy.kubeconfig"), "system:kube-proxy"); err != nil {
		return err
	}
	if err := n.Start("containerd", "containerd", "--config", n.file("containerd.toml")); err != nil {
		return err
	}
	if err := c.ImportImages(ctx, n, c.images...); err != nil {
		return err
	}
	if err := n.Start("kube-proxy", c.programs.KubeProxy, "--config="+n.file("kube-proxy.yaml")); err != nil {
		return err
	}
	return c.StartKubelet(ctx, n, KubeletOptions{})
}

// ImportImages loads archives of images into a node's containerd.
func (c *Cluster) ImportImages(ctx context.Context, n *Node, archives ...string) error {
	for _, archive := range archives {
		if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			return n.run(n.Command(ctx, "ctr", "version")) == nil, nil
		}); err != nil {
			return fmt.Errorf("containerd does not answer; see %s: %w", n.log("containerd"), err)
		}
		if err := n.run(n.Command(ctx, "ctr", "--namespace", "k8s.io", "images", "import", archive)); err != nil {
			return err
		}
	}
	return nil
}

// KubeletOptions are what a test changes in a kubelet's configuration.
type KubeletOptions struct {
	// StaticCPUs gives Guaranteed pods with whole CPUs cores of their own, so that they cannot be resized.
	StaticCPUs bool
}

// StartKubelet starts the kubelet of a node, and returns when it is healthy.
func (c *Cluster) StartKubelet(ctx context.Context, n *Node, o KubeletOptions) error {
	if err := os.WriteFile(n.file("kubelet.yaml"), []byte(n.kubeletConfig(filepath.Join(c.dir, "controlplane", "pki", "ca.crt"), o)), 0o644); err != nil {
		return err
	}
	if err := n.Start("kubelet", c.programs.Kubelet, "--config="+n.file("kubelet.yaml"), "--kubeconfig="+n.file("kubelet.kubeconfig"),
		"--hostname-override="+n.Name, "--node-ip="+n.Address, "--node-labels=pool="+n.Name, "--v=2"); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}, Timeout: 2 * time.Second}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		resp, err := client.Get("http://127.0.0.1:10248/healthz")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK, nil // it may not listen yet
	})
	if err != nil {
		return fmt.Errorf("the kubelet is not healthy; see %s: %w", n.log("kubelet"), err)
	}
	return nil
}

// RestartKubelet ends the kubelet of a node and starts it again.
func (c *Cluster) RestartKubelet(ctx context.Context, n *Node, o KubeletOptions) error {
	if err := n.End("kubelet", syscall.SIGTERM); err != nil {
		return err
	}
	return c.StartKubelet(ctx, n, o)
}

func (n *Node) file(name string) string { return filepath.Join(n.dir, name) }

func (n *Node) containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # A process without CAP_SYS_RESOURCE may not lower a score.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  # Peer pods run as if their VM were this node.
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-remote]
    runtime_type = "io.containerd.runc.v2"
    pod_annotations = ["io.katacontainers.*"]
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-remote.options]
      BinaryName = %q
`, n.file("containerd"), pauseImage, cniPlugins, n.file("cni"), n.file("kata-remote"))
}

// kataRemote is a script that stands in for the runtime of peer pods, and the program that makes their VMs. It runs pods with runc, and refuses to make
// the sandboxes of those whose type of VM the node refuses.
func (n *Node) kataRemote() string {
	return fmt.Sprintf(`#!/bin/sh
before=
for word; do
  [ "$before" = --bundle ] && bundle=$word
  before=$word
done
if [ -n "$bundle" ] && [ -s %[1]q ] && grep -qFf %[1]q "$bundle/config.json"; then
  echo "no VM of this type can be made" >&2
  exit 1
fi
exec runc "$@"
`, n.file("refused"))
}

// Refuse has the node make no VM of a type. Without a name, it makes all.
func (n *Node) Refuse(name string) error {
	text := ""
	if name != "" {
		text = fmt.Sprintf("%q:%q\n", stowage.MachineTypeAnnotation, name)
	}
	return os.WriteFile(n.file("refused"), []byte(text), 0o644)
}

func (n *Node) cniConfig() string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`, n.PodCIDR)
}

func (n *Node) proxyConfig(mode string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: 10.88.0.0/16
clientConnection: {kubeconfig: %s}
# These are settings of the whole machine.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, mode, n.Name, n.file("kube-proxy.kubeconfig"))
}

func (n *Node) kubeletConfig(authority string, o KubeletOptions) string {
	policy := "none"
	if o.StaticCPUs {
		policy = "static"
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: %s
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi}
systemReserved: {cpu: 500m, memory: 1Gi}
enforceNodeAllocatable: [pods]
cpuManagerPolicy: %s
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
shutdownGracePeriod: 0s
registerWithTaints: []
`, authority, n.CgroupRoot, policy)
}
