package karpenter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cli"
	"github.com/stowage-dev/stowage/internal/impact"
	"github.com/stowage-dev/stowage/test/suite"
)

// TestImpactEstimate prints how many nodes `stowage impact` expects after the next rollout, beside how many Karpenter makes.
func TestImpactEstimate(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-short runs the shortest cases; make test-karpenter runs this one")
	}
	onDemand := pool{"impact-on-demand", "on-demand", "WhenEmptyOrUnderutilized", "c4"}
	spot := pool{"impact-spot", "spot", "WhenEmptyOrUnderutilized", "c4"}
	onDemand.create(t)
	spot.create(t)
	n := suite.NewTenant(t)
	policy := func(weights [2]int) string {
		text := fmt.Sprintf(`apiVersion: stowage.dev/v1alpha1
kind: SpreadPolicy
metadata: {name: all, namespace: %s}
spec:
  mode: Enforce
  selector: {}
  pools:
  - {name: on-demand, nodeSelector: {%[2]s: %[3]s}, weight: %[4]d}
  - {name: spot, nodeSelector: {%[2]s: %[5]s}, weight: %[6]d}
`, n.Namespace, poolLabel, onDemand.name, weights[0], spot.name, weights[1])
		file := filepath.Join(t.TempDir(), "policy.yaml")
		suite.Must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	suite.Must(t, suite.Cluster.ApplyFiles(t.Context(), policy([2]int{1, 1})))
	sizes := map[string]int{"small": 24, "middle": 12, "large": 8}
	cpus := map[string]string{"small": "250m", "middle": "800m", "large": "1500m"}
	apps := map[string]func(){}
	for name, replicas := range sizes {
		d := requests(n.Deployment(name, replicas, nil), cpus[name], "256Mi")
		suite.Must(t, n.Create(t.Context(), d))
		apps[name] = func() {
			n.Revise(t, d, fmt.Sprint(time.Now().UnixNano()))
			n.RolledOut(t, d)
		}
	}
	for name, replicas := range sizes {
		suite.EventuallyWithin(t, 4*time.Minute, name+" runs", func() (bool, error) {
			pods, err := n.Pods(t.Context(), name)
			ready := 0
			for i := range pods {
				if pods[i].Spec.NodeName != "" {
					ready++
				}
			}
			return ready == replicas, err
		})
	}
	atRest(t, onDemand, spot)
	table := []string{"| weights | pool | nodes before | estimate after | nodes after |", "| --- | --- | --- | --- | --- |"}
	for _, weights := range [][2]int{{1, 4}, {4, 1}, {1, 9}} {
		file := policy(weights)
		var out, errs bytes.Buffer
		if exit := cli.Main(t.Context(), []string{"impact", "-n", n.Namespace, "-f", file, "-o", "json", "--kubeconfig", suite.Cluster.Kubeconfig}, cli.Streams{
			In: strings.NewReader(""), Out: &out, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false },
		}); exit != 3 {
			t.Fatalf("exit %d: %s", exit, &errs)
		}
		var r impact.Report
		suite.Must(t, json.Unmarshal(out.Bytes(), &r))
		suite.Must(t, suite.Cluster.ApplyFiles(t.Context(), file))
		var before []int
		for _, p := range []pool{onDemand, spot} {
			before = append(before, len(p.nodes(t)))
		}
		changed := &stowage.SpreadPolicy{}
		suite.Must(t, n.Get(t.Context(), n.Key("all"), changed))
		n.Follows(t, nil, changed.UID, changed.Generation)
		for _, rollOut := range apps {
			rollOut()
		}
		atRest(t, onDemand, spot)
		for i, p := range []pool{onDemand, spot} {
			for _, of := range r.Pools {
				if of.Name == p.capacity {
					table = append(table, fmt.Sprintf("| %d:%d | %s | %d | %d | %d |", weights[0], weights[1], p.capacity, before[i], int64(before[i])+of.NodesLacking-of.NodesFreed, len(p.nodes(t))))
				}
			}
		}
	}
	t.Logf("\n%s", strings.Join(table, "\n"))
	if len(table) != 8 {
		t.Errorf("the table has %d rows", len(table))
	}
}
