package controlplane

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// Karpenter is a running Karpenter. Its provider makes nodes that kwok plays.
type Karpenter struct {
	// MetricsURL is where it serves its metrics.
	MetricsURL string

	process *process
}

// StopKarpenter ends a Karpenter, so that one with other settings can be started.
func (c *Cluster) StopKarpenter(k *Karpenter) {
	k.process.stop(stopGrace)
	c.processes = slices.DeleteFunc(c.processes, func(p *process) bool { return p == k.process })
}

// karpenterClock is by how much Karpenter's wait of 15 s is shortened, after which it looks at a consolidation
// once more.
const karpenterClock = 10

// StartKarpenter starts the program that hack/karpenter builds, with its CustomResourceDefinitions, and returns
// when it is ready. It ends with the cluster.
func (c *Cluster) StartKarpenter(ctx context.Context, binary string, env ...string) (*Karpenter, error) {
	c.say("Starting Karpenter")
	crds, err := exec.CommandContext(ctx, binary, "crds").Output()
	if err != nil {
		return nil, fmt.Errorf("%s crds: %w", binary, err)
	}
	if err := c.ApplyYAML(ctx, string(crds)); err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	k := &Karpenter{MetricsURL: "http://" + loopback(ports[0]) + "/metrics"}
	if k.process, err = start("karpenter", c.Logs, binary, nil, append([]string{
		"KUBECONFIG=" + c.Kubeconfig,
		"DISABLE_LEADER_ELECTION=true",
		fmt.Sprintf("METRICS_PORT=%d", ports[0]),
		fmt.Sprintf("HEALTH_PROBE_PORT=%d", ports[1]),
		fmt.Sprintf("CLOCK_DIVISOR=%d", karpenterClock),
		"FEATURE_GATES=NodeOverlay=true",
		"INSTANCE_TYPES_FILE_PATH=" + filepath.Join(c.cfg.Root, "hack", "karpenter", "instance-types.json"),
	}, env...)...); err != nil {
		return nil, err
	}
	c.processes = append(c.processes, k.process)
	return k, c.await(ctx, "karpenter", k.process, func(ctx context.Context) (bool, error) {
		return httpReady(ctx, "http://"+loopback(ports[1])+"/readyz"), nil
	})
}
