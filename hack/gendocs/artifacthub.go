package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// hubCRD, hubImage and hubChange are what Artifact Hub reads in the annotations of Chart.yaml
// (https://artifacthub.io/docs/topics/annotations/helm).
type (
	hubCRD struct {
		Kind        string `yaml:"kind"`
		Version     string `yaml:"version"`
		Name        string `yaml:"name"`
		DisplayName string `yaml:"displayName"`
		Description string `yaml:"description"`
	}
	hubImage struct {
		Name      string   `yaml:"name"`
		Image     string   `yaml:"image"`
		Platforms []string `yaml:"platforms"`
	}
	hubChange struct {
		Kind        string `yaml:"kind"`
		Description string `yaml:"description"`
	}
)

// writeHub writes those annotations of Chart.yaml that follow from the kinds, the samples and the changelog. What else is in
// the file stays.
func writeHub(root string) error {
	path := filepath.Join(root, "charts", "stowage", "Chart.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return err
	}
	chart := doc.Content[0]
	version, annotations := valueOf(chart, "version"), valueOf(chart, "annotations")
	if version == nil || annotations == nil {
		return fmt.Errorf("it has no version or no annotations")
	}
	crds, examples, err := hubKinds(filepath.Join(root, "config"))
	if err != nil {
		return err
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	for _, a := range []struct {
		key   string
		value any
	}{
		{"crds", crds},
		{"crdsExamples", examples},
		// A release writes its registry before the name.
		{"images", []hubImage{{"stowage", "stowage:" + version.Value, []string{"linux/amd64", "linux/arm64"}}}},
		{"changes", hubChanges(string(changelog), version.Value)},
	} {
		var text bytes.Buffer
		if err := indented(&text, a.value); err != nil {
			return err
		}
		set(annotations, "artifacthub.io/"+a.key, text.String())
	}
	var out bytes.Buffer
	if err := indented(&out, &doc); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func indented(to *bytes.Buffer, v any) error {
	enc := yaml.NewEncoder(to)
	enc.SetIndent(2)
	enc.CompactSeqIndent()
	if err := enc.Encode(v); err != nil {
		return err
	}
	return enc.Close()
}

func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func set(mapping *yaml.Node, key, text string) {
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: text}
	if old := valueOf(mapping, key); old != nil {
		*old = *value
		return
	}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
}

// hubKinds returns the kinds of the chart, and the samples of those that people write.
func hubKinds(config string) (crds []hubCRD, examples []map[string]any, err error) {
	files, err := filepath.Glob(filepath.Join(config, "crd", "bases", "*.yaml"))
	if err != nil {
		return nil, nil, err
	}
	kinds := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := sigsyaml.Unmarshal(data, &crd); err != nil {
			return nil, nil, err
		}
		v := crd.Spec.Versions[0]
		kinds[crd.Spec.Group+"/"+v.Name+" "+crd.Spec.Names.Kind] = true
		crds = append(crds, hubCRD{
			Kind: crd.Spec.Names.Kind, Version: v.Name, Name: crd.Name, DisplayName: words(crd.Spec.Names.Kind),
			Description: strings.Join(strings.Fields(v.Schema.OpenAPIV3Schema.Description), " "),
		})
	}
	samples, err := filepath.Glob(filepath.Join(config, "samples", "*.yaml"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range samples {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", file, err)
			}
			if kinds[fmt.Sprint(o["apiVersion"], " ", o["kind"])] {
				examples = append(examples, o)
			}
		}
	}
	return crds, examples, nil
}

// words writes a kind as words: PodDistributor is a Pod Distributor.
func words(kind string) string {
	apart := regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)
	return apart.ReplaceAllString(kind, "$1$3 $2$4")
}

// hubChanges returns the entries of a version in the changelog, or those without a version before there is one.
func hubChanges(changelog, version string) []hubChange {
	section := part(changelog, version)
	if section == "" {
		section = part(changelog, "Unreleased")
	}
	var out []hubChange
	kind := ""
	for line := range strings.Lines(section) {
		line = strings.TrimRight(line, "\n")
		switch heading, isHeading := strings.CutPrefix(line, "### "); {
		case isHeading:
			kind = strings.ToLower(heading)
		case strings.HasPrefix(line, "- "):
			out = append(out, hubChange{kind, strings.TrimPrefix(line, "- ")})
		case strings.HasPrefix(line, "  ") && len(out) > 0:
			out[len(out)-1].Description += " " + strings.TrimSpace(line)
		}
	}
	link := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`) // Artifact Hub shows plain text
	for i := range out {
		out[i].Description = strings.ReplaceAll(link.ReplaceAllString(out[i].Description, "$1"), "`", "")
	}
	return out
}

// part returns the text below the heading of the second level that begins with a word.
func part(page, word string) string {
	for section := range strings.SplitSeq(page, "\n## ") {
		title, text, _ := strings.Cut(section, "\n")
		if first, _, _ := strings.Cut(title+" ", " "); first == word {
			return text
		}
	}
	return ""
}
