// Command prose checks the text that users read against CONTRIBUTING's rules for it: sentences of at most 25 words,
// the words of Kubernetes, and few passive sentences. `make prose` calls it.
//
// It reads the Markdown pages, the comments of YAML files, the descriptions of the kinds, and the comments and the
// texts of Go files. It prints one line for each mistake, as file:line, and ends with status 1 if there is one.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "directory of the repository")
	flag.Parse()
	found, err := check(*root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(2)
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		fmt.Fprintf(os.Stderr, "%d mistakes in the text; CONTRIBUTING.md has the rules\n", len(found))
		os.Exit(1)
	}
}

// skipped are directories without text of our own.
var skipped = []string{".git", "bin", "docs/reference"}

// check reads the files of a repository and returns the mistakes in their order.
func check(root string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(skipped, name) || entry.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		read := reader(name)
		if read == nil {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		blocks, err := read(data)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, m := range mistakes(blocks, strings.HasSuffix(name, ".md")) {
			out = append(out, fmt.Sprintf("%s:%d: %s", name, m.line, m.text))
		}
		return nil
	})
	return out, err
}

// reader returns the function that finds the text in a file of this name, or nil.
func reader(name string) func([]byte) ([]block, error) {
	switch dir, file := filepath.Split(name); {
	case strings.HasSuffix(file, ".md"):
		return readMarkdown
	case strings.HasPrefix(dir, "charts/") && file == "values.yaml":
		return readComments
	case strings.HasPrefix(dir, "config/crd/bases/"):
		return readDescriptions
	case strings.HasSuffix(file, "_test.go"), strings.HasPrefix(file, "zz_generated"):
		return nil
	case strings.HasSuffix(file, ".go") && (strings.HasPrefix(dir, "internal/") || strings.HasPrefix(dir, "cmd/")):
		return readGo
	}
	return nil
}
