// Package install tests the two ways to install Stowage: the chart and config/ say the same,
// and both work on a real control plane.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// The cluster that the tests share, one after the other. Each begins without Stowage.
var (
	cluster *controlplane.Cluster
	repo    string
	binary  string
	helm    string
	kubectl string
)

const namespace = "stowage-system"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the cluster:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	if repo, err = controlplane.RepositoryRoot(); err != nil {
		return 0, err
	}
	helm = filepath.Join(repo, "bin", "tools", "helm")
	if _, err := os.Stat(helm); err != nil {
		return 0, fmt.Errorf("%w: run `make bin/tools/helm`", err)
	}
	programs, err := controlplane.Locate(repo)
	if err != nil {
		return 0, err
	}
	kubectl = programs.Kubectl
	dir, err := os.MkdirTemp("", "stowage-install-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "stowage")
	if err := controlplane.BuildStowage(ctx, repo, binary); err != nil {
		return 0, err
	}
	if cluster, err = controlplane.Start(ctx, controlplane.Config{Root: repo, Dir: dir, Audit: true}); err != nil {
		return 0, err
	}
	defer cluster.Stop()
	if err := cluster.ApplyFiles(ctx, filepath.Join(repo, "hack", "nodes", "pools.yaml")); err != nil {
		return 0, err
	}
	if err := cluster.WaitForNodes(ctx, 9); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// try runs a program in the repository against the cluster and returns what it printed.
func try(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	if cluster != nil {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+cluster.Kubeconfig)
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, &stderr, &out)
	}
	return out.String(), nil
}

// do is try where nothing may fail.
func do(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := try(t, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition and says at last what was wrong.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, errors.Join(err, last))
	}
}
