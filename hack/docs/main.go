// Command docs builds the site of the documents: their pages, the search, and the playground. It checks the links of the site. It runs in its
// own directory.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stowage-dev/stowage/hack/docs/links"
	"github.com/stowage-dev/stowage/hack/docs/site"
)

func main() {
	out := flag.String("o", "../../bin/docs", "the directory of the site, which is emptied first")
	playground := flag.String("playground", "../../bin/playground/index.html", "the page of the playground")
	version := flag.String("version", "", "the version of Stowage that the pages describe, which each page shows")
	versions := flag.String("versions", "", "all versions that the site has, with commas between them: each is a directory beside this one")
	flag.Parse()
	from := site.Source{Docs: "../../docs", Assets: "assets", Template: "page.html", Navigation: "navigation.txt", Version: *version}
	if *versions != "" {
		from.Versions = strings.Split(*versions, ",")
	}
	if err := build(from, *out, *playground); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func build(from site.Source, out, playground string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := site.Build(from, out); err != nil {
		return err
	}
	page, err := os.ReadFile(playground)
	if err != nil {
		return fmt.Errorf("%w; run make playground", err)
	}
	page = bytes.Replace(page, []byte("<!-- documents -->"), []byte(`<a href="../index.html">Documentation</a>`), 1)
	if err := os.MkdirAll(filepath.Join(out, "playground"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "playground", "index.html"), page, 0o644); err != nil {
		return err
	}
	problems, err := links.Check(out)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return errors.New("links of the site lead nowhere:\n" + strings.Join(problems, "\n"))
	}
	return nil
}
