package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the documents say is tested has a test of that name, and their links lead somewhere.
func TestDocumentsNameWhatExists(t *testing.T) {
	const root = "../.."
	var tests, pages []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			tests = append(tests, path)
		case strings.HasSuffix(path, ".md"):
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, path := range tests {
		for _, m := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			exists[m[1]] = true
		}
	}
	named, links := 0, 0
	for _, page := range pages {
		text := read(t, page)
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)").FindAllStringSubmatch(text, -1) {
			if named++; !exists[m[1]] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			if links++; m[1] == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if named < 20 || links < 20 {
		t.Errorf("only %d tests and %d links were looked at", named, links)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
