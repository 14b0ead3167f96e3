package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// joinDescriptions has each paragraph of the descriptions in CustomResourceDefinitions on one line. The comments that they come from have lines of the
// source's width, and `kubectl explain` would break its own lines and these.
func joinDescriptions(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var crd map[string]any
		if err := yaml.Unmarshal(data, &crd); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		join(crd)
		out, err := yaml.Marshal(crd)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(name, append([]byte("---\n"), bytes.TrimPrefix(out, []byte("---\n"))...), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// join joins the lines of the descriptions in a part of a definition.
func join(part any) {
	switch p := part.(type) {
	case map[string]any:
		for key, value := range p {
			if text, ok := value.(string); ok && key == "description" {
				p[key] = joinLines(text)
				continue
			}
			join(value)
		}
	case []any:
		for _, one := range p {
			join(one)
		}
	}
}

// joinLines joins the lines of each paragraph. Items of a list, and what is indented, stay lines.
func joinLines(text string) string {
	var b strings.Builder
	before := ""
	for line := range strings.SplitSeq(text, "\n") {
		own := line == "" || strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") || strings.HasPrefix(line, " ")
		switch {
		case b.Len() == 0:
		case own || before == "":
			b.WriteByte('\n')
		default:
			b.WriteByte(' ')
		}
		b.WriteString(line)
		before = line
	}
	return b.String()
}

// readCRDs reads the CustomResourceDefinitions in a directory.
func readCRDs(dir string) (out []apiextensions.CustomResourceDefinition, _ error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var crd apiextensions.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, crd)
	}
	return out, nil
}
