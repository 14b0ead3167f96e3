// Command docs builds the site of the documents with Hugo, and checks its links. It runs in its own directory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gohugoio/hugo/commands"

	"github.com/stowage-dev/stowage/hack/docs/links"
)

func main() {
	out := flag.String("o", "../../bin/docs", "the directory of the site, which is emptied first")
	flag.Parse()
	if err := build(*out); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func build(out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := commands.Execute([]string{"build", "--destination", out, "--panicOnWarning", "--noBuildLock"}); err != nil {
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
