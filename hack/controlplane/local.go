package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// local is the cluster of `make up`. One process, the supervisor, owns all of its
// programs; the kernel ends them with it. Its files say how far it is:
//
//	config.json   what `up` asks for; SIGHUP makes the supervisor read it again
//	pid           the supervisor, which holds a lock on this file while it lives
//	ready.json    the config.json that is in force
type local struct {
	repo string
	dir  string
}

// wish is what `up` asks for.
type wish struct {
	Replicas int    `json:"replicas"`
	Nodes    string `json:"nodes"`
	Binary   string `json:"binary"`
	// Env are the settings of Stowage in the caller's environment, as NAME=VALUE.
	Env []string `json:"env,omitempty"`
	// Stamp changes with each call, so that ready.json tells which call it
	// answers.
	Stamp string `json:"stamp"`
	// Error is why the wish was not granted. Only ready.json has it.
	Error string `json:"error,omitempty"`
}

const (
	upTimeout   = 2 * time.Minute
	downTimeout = 20 * time.Second
)

// newLocal returns the cluster whose files are in dir, or, if that is empty, in
// bin/cluster.
func newLocal(dir string) (*local, error) {
	repo, err := controlplane.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dir = filepath.Join(repo, "bin", "cluster")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	return &local{repo: repo, dir: dir}, nil
}

func (l *local) file(name string) string { return filepath.Join(l.dir, name) }

func upCommand(dir *string) *cobra.Command {
	w := wish{Replicas: 1}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the local cluster, or bring a running one up to date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := newLocal(*dir)
			if err != nil {
				return err
			}
			// A cluster that is up stays as it is where nothing else is said.
			var current wish
			if l.supervisor() != 0 && readJSON(l.file("config.json"), &current) == nil {
				if !cmd.Flags().Changed("replicas") {
					w.Replicas = current.Replicas
				}
				if !cmd.Flags().Changed("nodes") {
					w.Nodes = current.Nodes
				}
			}
			if w.Replicas < 1 {
				return fmt.Errorf("--replicas is %d; it must be at least 1", w.Replicas)
			}
			if w.Nodes == "" {
				w.Nodes = filepath.Join(l.repo, "hack", "nodes", "pools.yaml")
			}
			if w.Binary == "" {
				w.Binary = filepath.Join(l.repo, "bin", "stowage")
			}
			for _, path := range []*string{&w.Nodes, &w.Binary} {
				if *path, err = filepath.Abs(*path); err != nil {
					return err
				}
			}
			for _, name := range settings() {
				if value, ok := os.LookupEnv(name); ok {
					w.Env = append(w.Env, name+"="+value)
				}
			}
			return l.up(cmd.Context(), w, cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&w.Replicas, "replicas", w.Replicas, "Stowage processes to run")
	cmd.Flags().StringVar(&w.Binary, "stowage", w.Binary, "Stowage program to run (default bin/stowage)")
	cmd.Flags().StringVar(&w.Nodes, "nodes", w.Nodes, "File of the fake nodes (default hack/nodes/pools.yaml)")
	return cmd
}

// settings are the variables of Stowage's settings, but for those that the cluster itself decides.
func settings() (names []string) {
	o := server.DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if name := config.Variable(f); name != "KUBECONFIG" && name != "POD_NAMESPACE" {
			names = append(names, name)
		}
	})
	return names
}

// up makes a supervisor grant the wish and prints its progress meanwhile.
func (l *local) up(ctx context.Context, w wish, out io.Writer) error {
	if _, err := controlplane.Locate(l.repo); err != nil {
		return err
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	err = l.ask(ctx, w, out)
	if errors.Is(err, errEnded) { // nobody else starts one meanwhile, so this one is new
		fmt.Fprintln(out, "The cluster that was up has ended; starting a new one")
		err = l.ask(ctx, w, out)
	}
	return err
}

// errEnded means that the cluster that was up has ended before it granted a wish.
var errEnded = errors.New("the cluster that was up has ended")

// ask asks the supervisor, or a new one if none runs. It returns errEnded if the one that ran has ended.
func (l *local) ask(ctx context.Context, w wish, out io.Writer) error {
	w.Stamp = strconv.FormatInt(time.Now().UnixNano(), 36)
	pid := l.supervisor()
	if pid == 0 {
		// What a killed or half-started predecessor left is in the way.
		if err := l.clean(); err != nil {
			return err
		}
	}
	// config.json comes first: it marks the directory as ours.
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	if err := writeJSON(l.file("config.json"), w); err != nil {
		return err
	}
	if err := os.MkdirAll(l.file("logs"), 0o755); err != nil {
		return err
	}
	log := l.file("logs/cluster.log")
	var shown int64
	var ended <-chan error
	if pid == 0 {
		done, err := l.spawnSupervisor(log)
		if err != nil {
			return err
		}
		ended = done
	} else {
		if info, err := os.Stat(log); err == nil {
			shown = info.Size()
		}
		if err := syscall.Kill(pid, syscall.SIGHUP); errors.Is(err, syscall.ESRCH) {
			return errEnded
		} else if err != nil {
			return fmt.Errorf("wake the supervisor (process %d): %w", pid, err)
		}
	}

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		shown = copyNew(out, log, shown)
		var granted wish
		if err := readJSON(l.file("ready.json"), &granted); err == nil && granted.Stamp == w.Stamp {
			copyNew(out, log, shown)
			if granted.Error != "" {
				return errors.New(granted.Error)
			}
			fmt.Fprintf(out, "Ready. Look around with:\n  export KUBECONFIG=%s\n  bin/kubectl get nodes -L nodesize,type\n", l.file("kubeconfig"))
			return nil
		}
		select {
		case <-tick.C:
			if pid != 0 && l.supervisor() == 0 {
				copyNew(out, log, shown) // it may say why
				return errEnded
			}
		case err := <-ended:
			copyNew(out, log, shown)
			return fmt.Errorf("the cluster did not start (%w); its logs are in %s", err, l.file("logs"))
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready: %w; its logs are in %s; `make down` removes it", ctx.Err(), l.file("logs"))
		}
	}
}

// lock keeps other calls of up and down out until unlock. The lock is on the directory
// that holds the cluster's, because that one comes and goes.
func (l *local) lock() (unlock func(), err error) {
	parent := filepath.Dir(l.dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(parent)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", parent, err)
	}
	return func() { _ = f.Close() }, nil
}

// spawnSupervisor starts this program again, in a session of its own.
func (l *local) spawnSupervisor(log string) (<-chan error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.Command(self, "supervise", "--dir", l.dir)
	cmd.Dir = l.repo
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		if err := cmd.Wait(); err != nil {
			ended <- err
		} else {
			ended <- errors.New("the supervisor ended")
		}
	}()
	return ended, nil
}

func superviseCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Short:  "Own the local cluster's programs until a signal",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := newLocal(*dir)
			if err != nil {
				return err
			}
			return l.supervise(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func (l *local) supervise(ctx context.Context, out io.Writer) error {
	lock, err := l.lockPID()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	for _, name := range settings() { // each call brings its own
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)

	c, err := controlplane.Start(ctx, controlplane.Config{Root: l.repo, Dir: l.dir, Progress: out})
	if err != nil {
		return err
	}
	defer c.Stop()
	for {
		var w wish
		if err := readJSON(l.file("config.json"), &w); err != nil {
			return err
		}
		if err := l.grant(ctx, c, w, out); err != nil {
			w.Error = err.Error()
			fmt.Fprintln(out, err)
		}
		if err := writeJSON(l.file("ready.json"), w); err != nil {
			return err
		}
		if err := watch(ctx, c, again, out); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// The waits before Stowage is started again: doubled each time up to the longest one.
const (
	firstRestart   = time.Second
	longestRestart = 30 * time.Second
)

// watch restarts replicas of Stowage that end, until a signal or the end of ctx. It returns an error if the
// control plane has ended.
func watch(ctx context.Context, c *controlplane.Cluster, again <-chan os.Signal, out io.Writer) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	backoff, next := firstRestart, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			return c.Healthy()
		case <-tick.C:
		}
		if time.Now().Before(next) {
			continue
		}
		ended := c.EndedReplicas()
		for _, r := range ended {
			fmt.Fprintf(out, "%v\nStarting it again\n", r.Failure())
			if err := c.Restart(ctx, r); err != nil {
				fmt.Fprintln(out, err)
			}
		}
		if len(ended) > 0 {
			if time.Since(next) > longestRestart { // it ran for a while
				backoff = firstRestart
			}
			next, backoff = time.Now().Add(backoff), min(2*backoff, longestRestart)
		}
	}
}

// grant brings the cluster to what a wish says.
func (l *local) grant(ctx context.Context, c *controlplane.Cluster, w wish, out io.Writer) error {
	nodes, err := controlplane.ReadObjects(w.Nodes)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Adding %d fake nodes\n", len(nodes))
	if err := c.ReplaceNodes(ctx, nodes); err != nil {
		return err
	}
	if err := c.StartStowage(ctx, controlplane.StowageOptions{Binary: w.Binary, Replicas: w.Replicas, Env: w.Env}); err != nil {
		return err
	}
	return c.WaitForNodes(ctx, len(nodes))
}

// lockPID writes our process id and locks the file until we end.
func (l *local) lockPID() (*os.File, error) {
	f, err := os.OpenFile(l.file("pid"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errors.New("another supervisor is running")
	}
	_ = f.Truncate(0)
	_, err = fmt.Fprintln(f, os.Getpid())
	return f, err
}

// supervisor returns the process id of the running supervisor, or 0.
func (l *local) supervisor() int {
	f, err := os.Open(l.file("pid"))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		return 0 // nobody holds it: its owner is gone, and the id may be another's
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}

// down ends the supervisor, and with it everything else, and removes the files.
func (l *local) down(out io.Writer) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	pid := l.supervisor()
	_, err = os.Stat(l.dir)
	if pid == 0 && errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(out, "No local cluster is up.")
		return nil
	}
	if pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGTERM)
		if !waitGone(l, downTimeout) {
			fmt.Fprintf(out, "The supervisor (process %d) does not end; killing it\n", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			waitGone(l, downTimeout)
		}
	}
	if err := l.clean(); err != nil {
		return err
	}
	fmt.Fprintln(out, "The local cluster is down.")
	return nil
}

func waitGone(l *local, timeout time.Duration) bool {
	deadline := time.Now().Add(timeout)
	for l.supervisor() != 0 {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// clean removes the files of a cluster that is not running.
func (l *local) clean() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if ours, _ := filepath.Glob(l.file("config.json*")); len(entries) > 0 && len(ours) == 0 {
		return fmt.Errorf("%s holds files, but no cluster of ours; remove it yourself if you do not need it", l.dir)
	}
	// The programs of a supervisor that was killed write files until the kernel has ended them, too.
	for deadline := time.Now().Add(downTimeout); ; time.Sleep(20 * time.Millisecond) {
		if err := os.RemoveAll(l.dir); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// copyNew copies what a file has beyond an offset and returns the new offset.
func copyNew(out io.Writer, path string, from int64) int64 {
	f, err := os.Open(path)
	if err != nil {
		return from
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return from
	}
	n, _ := io.Copy(out, f)
	return from + n
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// writeJSON replaces a file in one step, so that no reader sees half of it.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
