package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stowage-dev/stowage/test/suite"
)

// killed is the variable with which this program only starts nodes, to be killed.
const killed = "NODE_TEST_KILLED"

// A test that is killed leaves no process and no cgroup. Mounts and networks are in the nodes' namespaces, which end
// with their processes.
func TestKilledTestLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("the short form starts one set of nodes")
	}
	program, err := os.Executable()
	suite.Must(t, err)
	files, err := os.MkdirTemp("", "killed-") // not t.TempDir, whose path is too long for sockets
	suite.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(files) })
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env, cmd.Stderr = append(os.Environ(), killed+"=1", "TMPDIR="+files), os.Stderr
	out, err := cmd.StdoutPipe()
	suite.Must(t, err)
	suite.Must(t, cmd.Start())
	var nodes []*Node
	for lines := bufio.NewScanner(out); len(nodes) == 0 && lines.Scan(); {
		_ = json.Unmarshal(lines.Bytes(), &nodes) // progress comes first
	}
	if len(nodes) != 2 {
		_ = cmd.Wait()
		t.Fatalf("the nodes are %+v", nodes)
	}
	cgroups := func() (found []string) {
		for _, n := range nodes {
			for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
				dirs, _ := filepath.Glob(filepath.Join(pattern, n.CgroupRoot))
				found = append(found, dirs...)
			}
		}
		return found
	}
	if len(cgroups()) == 0 {
		t.Fatal("the nodes have no cgroups")
	}
	suite.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	suite.Eventually(t, "nothing is left", func() (bool, error) {
		for _, n := range nodes {
			// What is in the node's process namespace ends with its first process.
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", n.PID)); err == nil {
				return false, nil
			}
		}
		return len(cgroups()) == 0, nil
	})
}
