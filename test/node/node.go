// Package node runs real nodes for tests: containerd, runc, kubelet and kube-proxy, each node in namespaces of its own.
//
// A node is a process tree under one first process, which test/node/nodetool is. The node ends with that process, and
// that process ends with the test, whatever ends the test. Programs of a node are never looked for by name.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-dev/stowage/test/node/protocol"
)

// Node is a real node.
type Node struct {
	Name string
	// Address is the node's, and PodCIDR that of its pods.
	Address, PodCIDR string
	// PID is the first process of the node.
	PID int
	// CgroupRoot is the node's cgroup below the root of each hierarchy.
	CgroupRoot string

	dir     string
	process *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

// sysctls are settings of the whole machine that a kubelet wants to change. A node sees files with these values instead.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// newNode starts the first process of a node. The number, from 1, decides its addresses.
func newNode(name string, number int, dir, tool string) (*Node, error) {
	n := &Node{
		Name: name, Address: fmt.Sprintf("10.89.0.%d", number), PodCIDR: fmt.Sprintf("10.88.%d.0/24", number),
		dir: dir, CgroupRoot: fmt.Sprintf("/stowage-test-%d-%s", os.Getpid(), name),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	config := protocol.Config{Hostname: name}
	for _, target := range []string{"/run", "/var/lib", "/var/log"} {
		config.Mounts = append(config.Mounts, protocol.Mount{Type: "tmpfs", Source: "tmpfs", Target: target})
	}
	config.Mounts = append(config.Mounts, protocol.Mount{Type: "proc", Source: "proc", Target: "/proc"})
	for key, value := range sysctls {
		file := filepath.Join(dir, strings.ReplaceAll(key, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return nil, err
		}
		config.Mounts = append(config.Mounts, protocol.Mount{Source: file, Target: "/proc/sys/" + key})
	}
	var err error
	if config.Cgroups, err = makeCgroups(n.CgroupRoot); err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "node.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	n.process = exec.Command(tool, "init", file)
	n.process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS,
		Setsid:     true, // an interrupt of the test is not one of the node, which ends when its input does
	}
	log, err := os.Create(filepath.Join(dir, "init.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	n.process.Stderr = log
	if n.in, err = n.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := n.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n.out = json.NewDecoder(out)
	if err := n.process.Start(); err != nil {
		return nil, fmt.Errorf("make namespaces: %w", err)
	}
	n.PID = n.process.Process.Pid
	if err := n.answer(); err != nil {
		n.Stop()
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("node %s: %w\n%s", name, err, said)
	}
	return n, nil
}

// makeCgroups makes a directory in each hierarchy, and returns them all.
func makeCgroups(root string) (dirs []string, err error) {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil {
		dir := filepath.Join(top, root)
		return []string{dir}, os.Mkdir(dir, 0o755)
	}
	hierarchies, err := os.ReadDir(top)
	if err != nil {
		return nil, err
	}
	for _, h := range hierarchies {
		dir := filepath.Join(top, h.Name(), root)
		if !h.IsDir() { // a link to a hierarchy, or a file of the machine's own
			continue
		}
		dirs = append(dirs, dir)
		if h.Name() == "unified" {
			continue // runc makes it
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return dirs, err
		}
		if h.Name() != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(top, "cpuset", file))
			if err != nil {
				return dirs, err
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return dirs, err
			}
		}
	}
	return dirs, nil
}

// Stop ends everything on the node, and returns when it is gone, with its cgroups.
func (n *Node) Stop() {
	_ = n.in.Close()
	ended := make(chan struct{})
	go func() { _ = n.process.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		_ = n.process.Process.Kill() // the kernel ends the rest of its namespace
		<-ended
	}
}

func (n *Node) answer() error {
	var a protocol.Answer
	if err := n.out.Decode(&a); err != nil {
		return fmt.Errorf("its first process has ended: %w", err)
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

func (n *Node) do(c protocol.Command) error {
	if err := json.NewEncoder(n.in).Encode(c); err != nil {
		return err
	}
	return n.answer()
}

// Start starts a program on the node. Its output goes to a log of its name.
func (n *Node) Start(name, path string, args ...string) error {
	path, err := exec.LookPath(path)
	if err != nil {
		return err
	}
	return n.do(protocol.Command{Start: name, Path: path, Args: args, Log: n.log(name), Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}})
}

// End sends a signal to a program of the node, and returns when it has ended.
func (n *Node) End(name string, signal syscall.Signal) error {
	return n.do(protocol.Command{Stop: name, Signal: int(signal)})
}

func (n *Node) log(name string) string { return filepath.Join(n.dir, name+".log") }

// Command is a command within the node's namespaces.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(n.PID), "--net", "--mount", "--pid", "--uts", name}, args...)...)
}

// NetworkCommand is a command within the node's network that sees this machine's files and processes.
func (n *Node) NetworkCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(n.PID), "--net", name}, args...)...)
}

// run runs a command and returns an error with its output.
func (n *Node) run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s on node %s: %w\n%s", strings.Join(cmd.Args, " "), n.Name, err, out)
	}
	return nil
}

// Dial connects from within the node's network.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.PID))
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Close() }()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and no other one finds itself on the node
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
