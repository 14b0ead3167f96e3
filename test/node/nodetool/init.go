package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/stowage-dev/stowage/test/node/protocol"
)

// node is the first process of a node's namespaces.
type node struct {
	mu       sync.Mutex
	programs map[string]int // names and processes
	exited   *sync.Cond
}

// initialize makes the node's mounts, and starts and ends programs as its standard input asks, until that ends.
// Then it ends everything in its process namespace and removes the node's cgroups, so that nothing is left
// if the process that started it is killed.
func initialize(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config protocol.Config
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer removeCgroups(config.Cgroups)
	if err := mount(&config); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	n := &node{programs: map[string]int{}}
	n.exited = sync.NewCond(&n.mu)
	go n.bury()

	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(protocol.Answer{})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c protocol.Command
		err := json.Unmarshal(lines.Bytes(), &c)
		if err == nil {
			err = n.do(&c)
		}
		answer := protocol.Answer{}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			break
		}
	}
	// The kernel sends the signal to each process that this one sees, but not to this one, until there is none.
	for end := time.Now().Add(patience); syscall.Kill(-1, syscall.SIGKILL) == nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// mount makes the mounts of the configuration, which no other namespace sees.
func mount(c *protocol.Config) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	for _, m := range c.Mounts {
		if m.Directory {
			for _, dir := range []string{m.Source, m.Target} {
				if dir != "" && filepath.IsAbs(dir) {
					if err := os.MkdirAll(dir, 0o755); err != nil {
						return err
					}
				}
			}
		}
		flags := uintptr(0)
		if m.Type == "" {
			flags = syscall.MS_BIND
		}
		if err := syscall.Mount(m.Source, m.Target, m.Type, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return nil
}

// do starts or ends a program.
func (n *node) do(c *protocol.Command) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.Stop != "" {
		pid, ok := n.programs[c.Stop]
		if !ok {
			return fmt.Errorf("%s does not run", c.Stop)
		}
		if err := syscall.Kill(pid, syscall.Signal(c.Signal)); err != nil {
			return err
		}
		for n.programs[c.Stop] == pid {
			n.exited.Wait()
		}
		return nil
	}
	if _, ok := n.programs[c.Start]; ok {
		return fmt.Errorf("%s runs already", c.Start)
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = none.Close() }()
	pid, err := syscall.ForkExec(c.Path, append([]string{c.Path}, c.Args...), &syscall.ProcAttr{
		Env: c.Env, Files: []uintptr{none.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Path, err)
	}
	n.programs[c.Start] = pid
	return nil
}

// bury waits for the end of programs, and of processes whose parent has ended.
func (n *node) bury() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		n.mu.Lock()
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
			for name, p := range n.programs {
				if p == pid {
					delete(n.programs, name)
				}
			}
		}
		n.exited.Broadcast()
		n.mu.Unlock()
	}
}

// patience is how long the end of processes, and of cgroups that have had some, may take.
const patience = 5 * time.Second

// removeCgroups removes trees of cgroups, the innermost first.
func removeCgroups(roots []string) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left := slices.DeleteFunc(roots, func(root string) bool {
			removeTree(root)
			_, err := os.Stat(root)
			return err != nil
		})
		if roots = left; len(roots) == 0 || time.Now().After(end) {
			return
		}
	}
}

func removeTree(root string) {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = syscall.Rmdir(dir)
	}
}
