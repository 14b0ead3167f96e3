package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs in the background, with its output in a file.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	path string
	args []string

	exited chan struct{} // closed when the program has ended
	err    error         // why; read it after exited is closed
}

// start runs a program. Its output goes to logs/name.log.
func start(name, logs, path string, args []string, env ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log"), path: path, args: args, exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Without variables that are for make or for us, which the program would take for its own.
	inherited := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "STOWAGE_") })
	p.cmd.Env = append(inherited, env...)
	p.cmd.SysProcAttr = dieWithParent()
	if err := spawn(p.cmd); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		_ = log.Close()
		close(p.exited)
	}()
	return p, nil
}

var (
	spawner   sync.Once
	spawnWork = make(chan func())
)

// spawn starts a command from one thread that lives as long as this process. The
// kernel sends a child its parent-death signal when the thread that made it ends,
// not when the process does (prctl(2), PR_SET_PDEATHSIG).
func spawn(cmd *exec.Cmd) error {
	spawner.Do(func() {
		go func() {
			runtime.LockOSThread()
			for f := range spawnWork {
				f()
			}
		}()
	})
	done := make(chan error, 1)
	spawnWork <- func() { done <- cmd.Start() }
	return <-done
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stop asks the program to end and makes it after a grace period.
func (p *process) stop(grace time.Duration) {
	if p == nil || !p.running() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.kill()
	}
}

// kill ends the program as a power failure would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// failure describes why a program is not running, with the end of its log.
func (p *process) failure() error {
	return fmt.Errorf("%s ended (%w); the end of %s:\n%s", p.name, errOrEnded(p.err), p.log, tail(p.log))
}

func errOrEnded(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail returns the last lines of a log file.
func tail(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return bytes.Join(lines, []byte("\n"))
}
