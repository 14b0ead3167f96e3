package policytest

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Update writes what cases expect, by their places, into a test file. All else in the file stays, comments included; its
// lists are not indented any more. A file with anchors or merge keys is refused.
func Update(path string, expect map[int]Expect) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var doc yamlv3.Node
	if err := yamlv3.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if shares(&doc) {
		return fmt.Errorf("%s: the file has anchors, aliases or merge keys, so it is not updated; write them out first", path)
	}
	for i, c := range value(doc.Content[0], "cases").Content {
		e, ok := expect[i]
		if !ok {
			continue
		}
		node, err := nodeOf(e)
		if err != nil {
			return err
		}
		if old := value(c, "expect"); old != nil {
			*old = *node
			continue
		}
		c.Content = append(c.Content, &yamlv3.Node{Kind: yamlv3.ScalarNode, Value: "expect"}, node)
	}
	var out bytes.Buffer
	encoder := yamlv3.NewEncoder(&out)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&doc); err != nil {
		return err
	}
	if _, err := parse(out.Bytes()); err != nil {
		return fmt.Errorf("%s: the new file would be wrong, so it is not written: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	// Write beside the file and rename, so that an update that is cut off leaves the old file.
	next := path + ".tmp"
	if err := os.WriteFile(next, out.Bytes(), info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// shares reports whether a part of a document is used in several places.
func shares(n *yamlv3.Node) bool {
	return n.Kind == yamlv3.AliasNode || n.Anchor != "" || n.Tag == "!!merge" || slices.ContainsFunc(n.Content, shares)
}

// value returns the value of a key of a mapping, or nil.
func value(mapping *yamlv3.Node, key string) *yamlv3.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// nodeOf returns what is expected as YAML. It goes through the JSON form, which knows how quantities are written.
func nodeOf(e Expect) (*yamlv3.Node, error) {
	data, err := yaml.Marshal(e)
	if err != nil {
		return nil, err
	}
	var doc yamlv3.Node
	if err := yamlv3.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	// The name of a workload is its first field; the others are sorted.
	if workloads := value(doc.Content[0], "workloads"); workloads != nil {
		for _, w := range workloads.Content {
			for i := 0; i < len(w.Content); i += 2 {
				if w.Content[i].Value == "workload" {
					w.Content = slices.Concat(w.Content[i:i+2], w.Content[:i], w.Content[i+2:])
				}
			}
		}
	}
	return doc.Content[0], nil
}
