// Package local tests the local cluster of `make up` and `make down`.
package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// program is hack/controlplane, with a cluster directory of the test's own.
type program struct {
	t       *testing.T
	path    string
	stowage string
	dir     string
}

// built is the directory of the programs, which the tests share.
var built = sync.OnceValues(func() (string, error) {
	repo, err := controlplane.RepositoryRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "stowage-local-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "local"), "./hack/controlplane")
	cmd.Dir = repo
	if output, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w\n%s", err, output)
	}
	return dir, controlplane.BuildStowage(context.Background(), repo, filepath.Join(dir, "stowage"))
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func newProgram(t *testing.T) *program {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, path: filepath.Join(bin, "local"), stowage: filepath.Join(bin, "stowage"), dir: filepath.Join(t.TempDir(), "cluster")}
	t.Cleanup(func() { _ = exec.Command(p.path, "down", "--dir", p.dir).Run() })
	return p
}

func (p *program) run(args ...string) string {
	p.t.Helper()
	out, err := exec.Command(p.path, append(args, "--dir", p.dir)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (p *program) up(replicas int) string {
	p.t.Helper()
	return p.run("up", "--stowage", p.stowage, "--replicas", strconv.Itoa(replicas))
}

// processes returns the command lines of all processes of the cluster.
func (p *program) processes() []string {
	p.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte(p.dir)) {
			out = append(out, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return out
}

func (p *program) count(name string) int { return len(p.pids(name)) }

// pids returns the ids of the cluster's processes of a program.
func (p *program) pids(name string) (ids []int) {
	p.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(data, []byte(p.dir)) {
			continue
		}
		program, _, _ := bytes.Cut(data, []byte{0})
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && strings.Contains(filepath.Base(string(program)), name) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *program) supervisor() int {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, "pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

func (p *program) eventually(what string, condition func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waiting until %s; processes:\n%s", what, strings.Join(p.processes(), "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestUpAndDown(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("without /proc there is no telling which processes are left")
	}
	p := newProgram(t)

	// A new cluster, and the same again with another number of replicas.
	p.up(1)
	first := p.supervisor()
	p.up(2)
	if p.supervisor() != first {
		t.Error("a second `up` made a second cluster")
	}
	if n := p.count("stowage"); n != 2 {
		t.Errorf("%d replicas run, want 2", n)
	}
	if n := p.count("kube-apiserver"); n != 1 {
		t.Errorf("%d API servers run", n)
	}

	// A replica that dies is started again, and the log says so.
	before := p.pids("stowage")
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.eventually("the replica runs again", func() bool {
		now := p.pids("stowage")
		log, err := os.ReadFile(filepath.Join(p.dir, "logs", "cluster.log"))
		return err == nil && len(now) == 2 && !slices.Contains(now, before[0]) && strings.Contains(string(log), "Starting it again")
	})

	// A supervisor that is killed takes everything with it, and is no hindrance.
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.eventually("nothing is left of the killed cluster", func() bool { return len(p.processes()) == 0 })
	p.up(1)
	if p.supervisor() == first {
		t.Error("the dead supervisor is taken for alive")
	}

	// One that is killed while it starts is none either.
	p.run("down")
	starting := exec.Command(p.path, "up", "--stowage", p.stowage, "--dir", p.dir)
	if err := starting.Start(); err != nil {
		t.Fatal(err)
	}
	p.eventually("the API server is starting", func() bool { return p.count("kube-apiserver") == 1 })
	if err := syscall.Kill(p.supervisor(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := starting.Wait(); err == nil {
		t.Error("`up` succeeded without its supervisor")
	}
	p.up(1)

	p.run("down")
	if left := p.processes(); len(left) > 0 {
		t.Errorf("`down` left processes:\n%s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("`down` left files: %v", err)
	}
	if out := p.run("down"); !strings.Contains(out, "No local cluster") {
		t.Errorf("a second `down` says %s", out)
	}
}

func TestUpExplainsWhatIsWrong(t *testing.T) {
	p := newProgram(t)
	nodes := filepath.Join(t.TempDir(), "nodes.yaml")
	if err := os.WriteFile(nodes, []byte("kind: {\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(p.path, "up", "--dir", p.dir, "--stowage", p.stowage, "--nodes", nodes).CombinedOutput()
	if err == nil || !strings.Contains(string(out), nodes) {
		t.Errorf("bad nodes: %v\n%s", err, out)
	}
	out, err = exec.Command(p.path, "up", "--dir", p.dir, "--replicas", "0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--replicas is 0") {
		t.Errorf("no replicas: %v\n%s", err, out)
	}
	p.run("down")

	// A directory of another program is left alone.
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "down"} {
		out, err = exec.Command(p.path, command, "--dir", filepath.Dir(precious)).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no cluster of ours") {
			t.Errorf("%s in a directory of files: %v\n%s", command, err, out)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// A cluster that ends while `up` asks it for something is replaced by the same call.
func TestUpWhileTheClusterEnds(t *testing.T) {
	p := newProgram(t)
	p.up(1)
	first, config := p.supervisor(), filepath.Join(p.dir, "config.json")
	wish, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil { // it holds its lock and answers nobody
		t.Fatal(err)
	}
	asking := exec.Command(p.path, "up", "--stowage", p.stowage, "--dir", p.dir)
	var said bytes.Buffer
	asking.Stdout, asking.Stderr = &said, &said
	if err := asking.Start(); err != nil {
		t.Fatal(err)
	}
	p.eventually("`up` asks the cluster that is up", func() bool {
		now, err := os.ReadFile(config)
		return err == nil && !bytes.Equal(now, wish)
	})
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := asking.Wait(); err != nil {
		t.Fatalf("`up`: %v\n%s", err, &said)
	}
	if p.supervisor() == first {
		t.Error("the dead supervisor is taken for alive")
	}
	p.run("down")
}
