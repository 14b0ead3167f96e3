// Command gendocs writes the reference pages that follow from the code.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stowage-dev/stowage/internal/app"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendocs DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	var page bytes.Buffer
	if err := app.WriteReference(&page); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "configuration.md"), page.Bytes(), 0o644)
}
