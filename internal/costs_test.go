package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page about costs has the limits of the code: each value that it names stands in the file that it names, and each file that makes a limiter
// of requests is named.
func TestCostsAreTheCodes(t *testing.T) {
	page, err := os.ReadFile("../docs/design/costs.md")
	if err != nil {
		t.Fatal(err)
	}
	source := func(file string) string {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Errorf("docs/design/costs.md names %s: %v", file, err)
		}
		return regexp.MustCompile(`\s+`).ReplaceAllString(string(text), " ")
	}
	files := regexp.MustCompile("`(internal/[\\w/]+\\.go)`")
	values := regexp.MustCompile(`(\w+)( =|:) ([\w<* .]*\w)`)
	names := regexp.MustCompile(`\b[a-z]+[A-Z]\w+\b`)
	checked := 0
	for row := range strings.SplitSeq(strings.ReplaceAll(string(page), "\n|", "\n\n|"), "\n\n") {
		row = strings.ReplaceAll(row, "\n", " ")
		where := files.FindAllStringSubmatchIndex(row, -1)
		for i, at := range where {
			end := len(row)
			if i+1 < len(where) {
				end = where[i+1][0]
			}
			said, _, _ := strings.Cut(row[at[1]:end], ")")
			code, said := source(row[at[2]:at[3]]), strings.TrimRight(said, " ;,|.")
			for _, v := range values.FindAllStringSubmatch(said, -1) {
				checked++
				if !strings.Contains(code, v[0]) && !regexp.MustCompile(`\b`+v[1]+` *`+regexp.QuoteMeta(v[2])+` *`+regexp.QuoteMeta(v[3])+`\b`).MatchString(code) {
					t.Errorf("docs/design/costs.md says %q of %s, which has no such line", v[0], row[at[2]:at[3]])
				}
			}
			if !strings.HasPrefix(row, "|") {
				continue
			}
			for _, name := range names.FindAllString(said, -1) {
				if checked++; !strings.Contains(code, name) {
					t.Errorf("docs/design/costs.md names %s in %s, which has no such name", name, row[at[2]:at[3]])
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d values and names were found on the page", checked)
	}

	makes := regexp.MustCompile(`(fair\.NewLimiter\[|NewTokenBucket\w*RateLimiter\(|rate\.NewLimiter\()`)
	lines := map[string]bool{ // limiters of log lines alone
		"internal/platform/logging/logging.go": true, "internal/server/clients.go": true, "internal/spread/seats/seats.go": true,
	}
	err = filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		name := filepath.ToSlash(filepath.Join("internal", path))
		if err == nil && makes.Match(data) && !lines[name] && !strings.Contains(string(page), name) {
			t.Errorf("%s makes a limiter that docs/design/costs.md does not have", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The informers that are not the cache's, each with the test of how little it keeps of an object. Those without one are of objects that tenants do
// not write.
var stores = map[string]string{
	"size/resize/pods.go": "TestKeepSizedPodKeepsLittle", "spread/gate/api.go": "TestWatchIsBounded", "spread/seats/watch.go": "TestTransformer",
	"vm/capacity/daemons.go": "TestPodsKeepLittle", "vm/capacity/watch.go": "TestPodsKeepLittle", "vm/supply/peers.go": "TestPeersKeepLittle",
	"scaledown/costs/pods.go": "TestPodsKeepLittle",
	"server/reach.go":         "", "world/api/configmap.go": "",
}

func TestEveryInformerKeepsLittle(t *testing.T) {
	makes := regexp.MustCompile(`\.(NewSharedI\w*Informer\w*|NewReflector\w*|NewI\w*Informer\w*)\(`)
	found := 0
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !makes.Match(data) {
			return err
		}
		found++
		name, known := stores[filepath.ToSlash(path)]
		if !known {
			t.Errorf("%s has an informer, and no test is named of how little it keeps", path)
		}
		tests, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*_test.go"))
		there := slices.ContainsFunc(tests, func(file string) bool {
			test, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(test), "func "+name+"(")
		})
		if name != "" && !there {
			t.Errorf("%s: there is no test %s", path, name)
		}
		return err
	})
	if err != nil || found != len(stores) {
		t.Errorf("%d files have informers, and %d are known: %v", found, len(stores), err)
	}
}
