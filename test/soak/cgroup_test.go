package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// memoryGroup is a memory cgroup with a limit, of version 2 or 1.
type memoryGroup struct {
	dir        string
	peak, used string // files
}

// newMemoryGroup makes a cgroup, or skips the test where none can be made.
func newMemoryGroup(t *testing.T, limit int64) *memoryGroup {
	t.Helper()
	name := fmt.Sprintf("stowage-test-%d", os.Getpid())
	for _, version := range []struct{ root, limit, swap, peak, used string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max", "memory.peak", "memory.current"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"},
	} {
		g := &memoryGroup{dir: filepath.Join(version.root, name), peak: version.peak, used: version.used}
		_ = os.WriteFile(filepath.Join(version.root, "cgroup.subtree_control"), []byte("+memory"), 0) // of version 2
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(g.dir, version.limit)); err != nil { // another version's, or without the controller
			_ = os.Remove(g.dir)
			continue
		}
		t.Cleanup(func() {
			err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
				return os.Remove(g.dir) == nil, nil // once its processes have ended
			})
			if err != nil {
				t.Errorf("the cgroup %s is left", g.dir)
			}
		})
		if os.WriteFile(filepath.Join(g.dir, version.limit), strconv.AppendInt(nil, limit, 10), 0) == nil {
			_ = os.WriteFile(filepath.Join(g.dir, version.swap), []byte("0"), 0) // where there is swap
			return g
		}
	}
	notRun(t, "no memory cgroup can be made here")
	return nil
}

// program is a program that runs another one in the cgroup, if one of its arguments is word.
func (g *memoryGroup) program(t *testing.T, binary, word string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "in-cgroup")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" %s \"*) echo $$ > %s/cgroup.procs ;; esac\nexec %s \"$@\"\n", word, g.dir, binary)
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// mebibytes reads a file of the cgroup.
func (g *memoryGroup) mebibytes(file string) int64 {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return n >> 20
}
