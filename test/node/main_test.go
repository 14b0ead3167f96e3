package node

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// The cluster of two real nodes that the tests share. Stowage is installed by the chart.
var (
	cluster *Cluster
	repo    string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the nodes:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if repo, err = controlplane.RepositoryRoot(); err != nil {
		return 0, err
	}
	if missing := Missing(repo); len(missing) > 0 {
		fmt.Printf("NOT RUN: real nodes need %s. As root on Debian: make node-packages test-node\n", strings.Join(missing, ", "))
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "stowage-node-")
	if err != nil {
		return 0, err
	}
	defer func() {
		if code != 0 || err != nil {
			keepLogs(dir)
		}
		_ = os.RemoveAll(dir)
	}()
	if cluster, err = Start(ctx, repo, dir, os.Stdout, "node-a", "node-b"); err != nil {
		if testing.Short() || os.Getenv("OPTIONAL") != "" { // as part of other tests, on machines that may not allow namespaces or cgroups
			fmt.Println("NOT RUN: this machine runs no real nodes:", err)
			return 0, nil
		}
		return 0, err
	}
	defer cluster.Stop()
	if os.Getenv(killed) != "" {
		// The parent kills this process as soon as it knows what must be gone.
		if err := json.NewEncoder(os.Stdout).Encode(cluster.Nodes); err != nil {
			return 0, err
		}
		<-ctx.Done()
		return 0, errors.New("nobody killed this process")
	}
	suite.Cluster, suite.Repo = cluster.Cluster, repo
	return m.Run(), nil
}

// keepLogs copies the logs of a run that failed to a place that stays.
func keepLogs(dir string) {
	to := filepath.Join(repo, "bin", "node-logs")
	_ = os.RemoveAll(to)
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	more, _ := filepath.Glob(filepath.Join(dir, "controlplane", "logs", "*.log"))
	if os.MkdirAll(to, 0o755) != nil {
		return
	}
	for _, f := range append(files, more...) {
		if content, err := os.ReadFile(f); err == nil {
			name := strings.ReplaceAll(strings.TrimPrefix(f, dir+"/"), "/", "-")
			_ = os.WriteFile(filepath.Join(to, name), content, 0o644)
		}
	}
	fmt.Println("The logs are in", to)
}
