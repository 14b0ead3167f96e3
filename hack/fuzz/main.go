// Command fuzz runs every fuzz target of the repository for a while, one after the
// other: `go test -fuzz` takes one target at a time.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

func main() {
	each := flag.Duration("time", 30*time.Second, "how long to fuzz each target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *each); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

var target = regexp.MustCompile(`^Fuzz\w+$`)

func run(ctx context.Context, each time.Duration) error {
	packages, err := exec.CommandContext(ctx, "go", "list", "./internal/...").Output()
	if err != nil {
		return err
	}
	for pkg := range strings.FieldsSeq(string(packages)) {
		names, err := exec.CommandContext(ctx, "go", "test", "-list", "^Fuzz", pkg).Output()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", pkg, err, names)
		}
		for lines := bufio.NewScanner(bytes.NewReader(names)); lines.Scan(); {
			if !target.MatchString(lines.Text()) {
				continue
			}
			fmt.Printf("%s %s for %s\n", pkg, lines.Text(), each)
			// Coverage here depends on pools and maps, so looking for the
			// smallest input of each new path would take all of the time.
			cmd := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^$", "-fuzz", "^"+lines.Text()+"$",
				"-fuzztime", each.String(), "-fuzzminimizetime", "10x")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%s %s: %w", pkg, lines.Text(), err)
			}
		}
	}
	return nil
}
