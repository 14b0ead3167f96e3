// Command gendocs writes what follows from the code: the reference pages, the pictures of the
// concepts page, and the generated parts of the chart.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendocs ROOT")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	if err := joinDescriptions(filepath.Join(root, "config", "crd", "bases")); err != nil {
		return err
	}
	table, err := writeChart(filepath.Join(root, "charts", "stowage"), filepath.Join(root, "config"))
	if err != nil {
		return fmt.Errorf("the chart: %w", err)
	}
	if err := writeHub(root); err != nil {
		return fmt.Errorf("charts/stowage/Chart.yaml: %w", err)
	}
	configuration := func(w io.Writer) error {
		if err := writeReference(w); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "\n## Chart values\n\nOf `charts/stowage`; one that is not in this list is refused.\n\n%s", table)
		return err
	}
	api := func(w io.Writer) error { return writeAPI(w, filepath.Join(root, "config", "crd", "bases")) }
	reasons := func(w io.Writer) error {
		if err := writeReasons(w); err != nil {
			return err
		}
		if err := writeEvents(w, filepath.Join(root, "api", "stowage", "v1alpha1", "reasons.go")); err != nil {
			return err
		}
		return writeAlerts(w, filepath.Join(root, "config", "monitoring", "rules.yaml"))
	}
	permissions := func(w io.Writer) error { return writePermissions(w, filepath.Join(root, "config")) }
	pages := map[string]func(io.Writer) error{"configuration.md": configuration, "metrics.md": writeMetrics, "api.md": api, "permissions.md": permissions, "commands.md": writeCommands, "impact.schema.json": writeImpactSchema}
	if err := writeFiles(filepath.Join(root, "docs", "reference"), pages); err != nil {
		return err
	}
	if err := writeSchemas(filepath.Join(root, "docs", "reference", "schemas"), root); err != nil {
		return fmt.Errorf("the schemas: %w", err)
	}
	if err := writeFiles(filepath.Join(root, "docs"), map[string]func(io.Writer) error{"reasons.md": reasons}); err != nil {
		return err
	}
	return writeFiles(filepath.Join(root, "docs", "pictures"), pictures)
}

// writeFiles writes files into a directory.
func writeFiles(dir string, files map[string]func(io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, file := range files {
		var text bytes.Buffer
		if err := file(&text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
