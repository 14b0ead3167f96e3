package karpenter

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// The commands of steps 4 and 5 of docs/how-to/eks-karpenter.md end well, and print what the page has below them. Karpenter's kwok provider
// stands for EC2.
func TestWalkThrough(t *testing.T) {
	bin, err := controlplane.Locate(suite.Repo)
	suite.Must(t, err)
	page, err := os.ReadFile(filepath.Join(suite.Repo, "docs", "how-to", "eks-karpenter.md"))
	suite.Must(t, err)
	pools, err := os.ReadFile(filepath.Join(suite.Repo, "config", "samples", "karpenter", "nodepools.yaml"))
	suite.Must(t, err)
	suite.Must(t, suite.Cluster.ApplyYAML(t.Context(), strings.NewReplacer("karpenter.k8s.aws", "karpenter.kwok.sh", "EC2NodeClass", "KWOKNodeClass").Replace(string(pools))))
	t.Cleanup(func() {
		for _, name := range []string{"on-demand", "spot"} {
			_ = suite.Cluster.Client.Delete(context.Background(), pool{name: name}.object())
		}
	})
	n := suite.NewTenant(t)
	run := func(command string) string {
		args := strings.Fields(strings.Replace(command, "kubectl stowage", "stowage", 1))
		namespace := []string{"--namespace", n.Namespace, "--kubeconfig", suite.Cluster.Kubeconfig}
		switch {
		case args[0] == "kubectl":
			args = append(append([]string{bin.Kubectl}, namespace...), args[1:]...)
		case args[1] == "preview": // without a cluster
			args[0] = suite.Binary
		default:
			args = append(append([]string{suite.Binary}, args[1:]...), namespace...)
		}
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = suite.Repo
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	_, steps, _ := strings.Cut(string(page), "\n## 4.")
	commands, outputs, printed := 0, 0, ""
	for part := range strings.SplitSeq(steps, "\n\n") {
		if text, ok := strings.CutPrefix(part, "```text\n"); ok {
			outputs++
			// An output has empty lines, too; its first part is the table.
			if want := strings.TrimSuffix(text, "\n```"); !strings.Contains(printed, want) {
				t.Errorf("the page has\n%s\nand the command prints\n%s", want, printed)
			}
		}
		for line := range strings.SplitSeq(part, "\n") {
			if command, ok := strings.CutPrefix(line, "    "); ok {
				commands++
				printed = run(command)
			}
		}
	}
	if commands < 6 || outputs < 4 {
		t.Errorf("the page has %d commands and %d outputs", commands, outputs)
	}
}
