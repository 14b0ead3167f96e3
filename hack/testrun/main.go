// Command testrun runs the parts of `make test`, and tells what runs, how long each part took, and how to run alone what failed.
// `make test`, `make test-unit`, `make test-cluster` and `make test-more` call it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// events is the file that gets what all tests print, as `go test -json` writes it.
const events = "bin/test.json"

func main() {
	only := flag.String("only", "", "Run the tests that need no control plane (unit), those on a control plane (cluster), or those of test-more (more), alone")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Run the tests, and tell how far they are. What comes after -- is for each go test.\n\nExample: go run ./hack/testrun -only unit -- -run TestPlan\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, flags []string) error {
	p, err := plan(ctx, only, flags)
	if err != nil {
		return err
	}
	log, err := os.Create(events)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	begin := time.Now()
	r := newReport(os.Stdout, log, time.Now)

	// 1. What the tests run is compiled first: their deadlines are not for compilers.
	for _, s := range p.builds {
		if err := r.step(s.name, func() error { return s.command(ctx).Run() }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}

	ticks, end := context.WithCancel(ctx)
	go r.progress(ticks, 30*time.Second)
	if p.compile != nil {
		r.tests(ctx, *p.compile)
	}

	// 2. The lanes side by side: while tests on a control plane wait, others compute.
	var lanes sync.WaitGroup
	for _, lane := range p.lanes {
		lanes.Go(func() {
			for _, s := range lane {
				if ctx.Err() == nil {
					r.tests(ctx, s)
				}
			}
		})
	}
	lanes.Wait()
	end()

	// 3. What failed, last, where it is read.
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	return r.summary(time.Since(begin))
}

// step is a command and where it runs.
type step struct {
	name string
	dir  string // of the repository
	args []string
	// json says that the command is a go test that reports events.
	json bool
	// yields says that other steps have the processors first.
	yields bool
}

func (s step) command(ctx context.Context) *exec.Cmd {
	args := s.args
	if nice, err := exec.LookPath("nice"); err == nil && s.yields {
		args = append([]string{nice, "-n", "5"}, args...) // a third of what others get, and not next to nothing: other programs may be busy, too
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, os.Stdout, os.Stderr
	// Tests get the signal, too, and have time to end what they have started: go test does not pass it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}
