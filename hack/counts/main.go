// Command counts compares what decisions cost with the table of docs/design/counts.md. It counts allocations and bytes, which are the same on a
// busy machine, where times are not. `make counts` calls it, as a part of `make test`.
//
// Who makes a decision dearer, or cheaper, writes the table anew with -update, and says why in the commit.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// measured are the benchmarks whose counts are in the table. Times is how often each runs.
var measured = []struct {
	pkg, bench string
	times      int
}{
	{"internal/admission", "^(BenchmarkHandler|BenchmarkLeftAlone|BenchmarkRefused|BenchmarkCatalog)$", 300},
	{"internal/spread/admit", "^(BenchmarkClaims|BenchmarkExpressions)$", 300},
	{"internal/size/admit", "^BenchmarkDecide$", 300},
	{"internal/vm/catalog", "^BenchmarkChoose$", 300},
	{"internal/nodefit", "^BenchmarkJudge$", 20},
	{"internal/spread/seats", "^BenchmarkTracked$", 3},
	{"internal/spread/ledger", "^BenchmarkBurst$", 1},
}

// baseline is in the names of benchmarks of what Stowage is compared with.
const baseline = "impl=plain"

// margins are by how much a count may differ from the table, as a part of it, by its unit.
var margins = map[string]float64{"allocs/op": 0.03, "B/op": 0.06, "heap-B/pod": 0.1, "requests/burst": 0.05, "writes/burst": 0.05}

// units are in the order of the table's columns.
var units = []string{"allocs/op", "B/op", "heap-B/pod", "requests/burst", "writes/burst"}

// The lines of the page between which the table is.
const begin, end = "<!-- begin: make counts -->\n", "<!-- end -->\n"

// counts are the counts of a benchmark, by their unit.
type counts map[string]float64

func main() {
	update := flag.Bool("update", false, "write the table")
	page := flag.String("page", filepath.Join("docs", "design", "counts.md"), "the page with the table")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Compare what decisions cost with the table of docs/design/counts.md.\n\nExample: go run ./hack/counts -update\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*page, *update); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(page string, update bool) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(text), begin)
	old, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no table between %q and %q", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	is := map[string]counts{}
	for _, m := range measured {
		out, err := exec.Command("go", "test", "-vet=off", "-run", "^$", "-bench", m.bench, "-benchtime", strconv.Itoa(m.times)+"x", "./"+m.pkg).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", m.pkg, err, out)
		}
		if n := read(m.pkg, string(out), is); n == 0 {
			return fmt.Errorf("%s: no benchmark matches %s", m.pkg, m.bench)
		}
	}
	was := parse(old)
	if update {
		keep(was, is)
		return os.WriteFile(page, []byte(head+begin+table(is)+end+tail), 0o644)
	}
	return compare(was, is)
}

// line is one line of a benchmark's output. The number at the end of the name is that of processors.
var line = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// read reads the output of benchmarks of a package, and returns how many there were.
func read(pkg, out string, into map[string]counts) (n int) {
	for text := range strings.Lines(out) {
		m := line.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil || strings.Contains(m[1], baseline) {
			continue
		}
		n++
		of := counts{}
		fields := strings.Fields(m[2])
		for i := 0; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil && margins[fields[i+1]] > 0 {
				of[fields[i+1]] = v
			}
		}
		into[strings.TrimPrefix(pkg, "internal/")+" "+m[1]] = of
	}
	return n
}

// table writes counts as a table.
func table(of map[string]counts) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "| what | %s |\n| --- |%s\n", strings.Join(units, " | "), strings.Repeat(" --- |", len(units)))
	for _, name := range sorted(of) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, unit := range units {
			cell := ""
			if v, ok := of[name][unit]; ok {
				cell = strconv.FormatFloat(math.Round(v), 'f', 0, 64)
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func sorted(of map[string]counts) (names []string) {
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// parse reads a table.
func parse(text string) map[string]counts {
	of := map[string]counts{}
	for row := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if len(cells) != len(units)+1 {
			continue
		}
		c := counts{}
		for i, unit := range units {
			if v, err := strconv.ParseFloat(strings.TrimSpace(cells[i+1]), 64); err == nil {
				c[unit] = v
			}
		}
		if len(c) > 0 {
			of[strings.TrimSpace(cells[0])] = c
		}
	}
	return of
}

// keep puts the counts of the table in the place of those that do not differ from them, so that an update writes what has changed.
func keep(was, is map[string]counts) {
	for name, of := range is {
		for unit, now := range of {
			if before, known := was[name][unit]; known && !differs(before, now, unit) {
				of[unit] = before
			}
		}
	}
}

// differs reports whether a count is beyond the margin of the table's.
func differs(before, now float64, unit string) bool {
	return math.Abs(now-before) > max(1, before*margins[unit])
}

// compare returns what differs from the table, joined.
func compare(was, is map[string]counts) error {
	var errs []error
	for _, name := range sorted(is) {
		for _, unit := range units {
			now, measured := is[name][unit]
			before, known := was[name][unit]
			switch {
			case measured && !known:
				errs = append(errs, fmt.Errorf("%s has %.0f %s, and the table has none", name, now, unit))
			case measured && differs(before, now, unit):
				errs = append(errs, fmt.Errorf("%s has %.0f %s, and the table %.0f", name, now, unit, before))
			}
		}
	}
	for _, name := range sorted(was) {
		if is[name] == nil {
			errs = append(errs, fmt.Errorf("%s is in the table, and is not measured", name))
		}
	}
	if len(errs) == 0 {
		fmt.Printf("The counts of %d benchmarks are those of the table.\n", len(is))
		return nil
	}
	return errors.Join(append(errs, errors.New("docs/design/counts.md is not current: if the change is meant, run `make counts UPDATE=1`, and say why in the commit"))...)
}
