package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// tick is the unit of the times in /proc/PID/stat, in seconds (USER_HZ, the same on all architectures that Go has).
const tick = 0.01

// thisProgram is what the report calls the benchmark itself, which carries the calls of the webhooks to the replicas.
const thisProgram = "benchmark"

// programs returns the processor time in seconds that this process and those it has started took so far, by program. It
// needs Linux, and finds nothing elsewhere. See proc_pid_stat(5).
func programs() (map[string]float64, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	self := strconv.Itoa(os.Getpid())
	out := map[string]float64{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		// The name is in parentheses and may have any character in it, so fields are counted from its end.
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 13 {
			return nil, fmt.Errorf("%s has %d fields after the name", file, len(fields))
		}
		dir, parent := filepath.Dir(file), fields[1]
		if filepath.Base(dir) != self && parent != self {
			continue
		}
		path, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(filepath.Base(path), "-v") // without the version
		switch {
		case filepath.Base(dir) == self:
			name = thisProgram
		case path == own:
			name = caseFloor
		}
		user, err := strconv.ParseInt(fields[11], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		system, err := strconv.ParseInt(fields[12], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out[name] += float64(user+system) * tick
	}
	return out, nil
}

// reportPrograms prints the processor time that each program took for a pod, until the last pod was created.
func (b *bench) reportPrograms() error {
	names := map[string]bool{}
	for _, results := range b.results {
		for _, r := range results {
			for name := range r.programs {
				names[name] = true
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	columns := slices.Sorted(maps.Keys(names))
	fmt.Print("\nProcessor time per pod until the last one was created, in ms (medians):\n\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "CASE\t%s\tALL\n", strings.ToUpper(strings.Join(columns, "\t")))
	perPod := 1000 / float64(b.options.pods)
	for _, c := range cases {
		fmt.Fprint(w, c.name)
		for _, name := range columns {
			fmt.Fprintf(w, "\t%.2f", perPod*median(b.results[c.name], func(r result) float64 { return r.programs[name] }))
		}
		fmt.Fprintf(w, "\t%.2f\n", perPod*median(b.results[c.name], func(r result) (all float64) {
			for _, seconds := range r.programs {
				all += seconds
			}
			return all
		}))
	}
	return w.Flush()
}
