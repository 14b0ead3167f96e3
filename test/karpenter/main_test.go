// Package karpenter tests Stowage with Karpenter, whose kwok provider makes the nodes. `make test-karpenter` builds
// Karpenter; where it is not built, the package has no tests.
package karpenter

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

var (
	karpenter *controlplane.Karpenter
	program   string
	cycles    = flag.Int("cycles", 2, "scale-ups and scale-downs of each consolidation policy")
	orders    = flag.Int("orders", 2, "random orders of pods for sized DaemonSets")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the cluster:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	repo, err := controlplane.RepositoryRoot()
	if err != nil {
		return 0, err
	}
	program = filepath.Join(repo, "bin", "karpenter")
	if _, err := os.Stat(program); err != nil {
		fmt.Println("NOT RUN: Karpenter is not built; run `make test-karpenter`")
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "stowage-karpenter-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "stowage")
	if err := controlplane.BuildStowage(ctx, repo, binary); err != nil {
		return 0, err
	}
	c, err := controlplane.Start(ctx, controlplane.Config{Root: repo, Dir: dir})
	if err != nil {
		return 0, err
	}
	defer c.Stop()
	suite.Cluster, suite.Repo, suite.Binary = c, repo, binary
	suite.Fleet = controlplane.StowageOptions{Binary: binary, Replicas: 2, Controllers: 1, Args: []string{"--repair-quiet=500ms", "--repair-resync=2s", "--probe-interval=5s", "--probe-max-interval=20s"}}
	if err := c.Client.Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata-remote"}, Handler: "kata-remote"}); err != nil {
		return 0, err
	}
	if err := c.StartStowage(ctx, suite.Fleet); err != nil {
		return 0, err
	}
	if err := c.ApplyFiles(ctx, filepath.Join(repo, "config", "karpenter", "role.yaml")); err != nil {
		return 0, err
	}
	if karpenter, err = c.StartKarpenter(ctx, program); err != nil {
		return 0, err
	}
	if err := c.ApplyYAML(ctx, nodeClass); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

const nodeClass = `
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
spec: {nodeRegistrationDelay: 1s}
`
