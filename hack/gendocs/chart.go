package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// chartFiles are the files of config/ that the chart's templates read, by their names there.
var chartFiles = map[string]string{
	"rbac/role.yaml":               "role.yaml",
	"rbac/user_roles.yaml":         "user_roles.yaml",
	"rbac/admission_policies.yaml": "admission_policies.yaml",
	"gate/policy.yaml":             "gate.yaml",
	"deletioncosts/policy.yaml":    "deletion_costs.yaml",
	"scaledown/policy.yaml":        "scale_down.yaml",
	"webhook/manifests.yaml":       "webhook.yaml",
	"manager/flowcontrol.yaml":     "flowcontrol.yaml",
	"monitoring/rules.yaml":        "rules.yaml",
	"monitoring/dashboard.json":    "dashboard.json",
	"crd/bases":                    "crds",
}

// ownFlags are settings that have a value of the chart to themselves.
var ownFlags = []string{
	"blocklisted-namespaces", "cert-dir", "controllers", "health-probe-bind-address", "host", "kubeconfig", "log-format", "log-level",
	"metrics-auth", "metrics-bind-address", "namespace", "peer-pods", "port", "sizing", "spread", "webhook",
}

// value is one value of the chart.
type value struct {
	path, text string         // text is what the comment says
	schema     map[string]any // of the value itself
	fallback   *yaml.Node
	values     []value // of a map with named values
}

// readValues reads the values of a mapping, with the comments before them.
func readValues(node *yaml.Node, prefix string) ([]value, error) {
	var out []value
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, content := node.Content[i], node.Content[i+1]
		v := value{path: prefix + key.Value, fallback: content, schema: map[string]any{}}
		comment := key.HeadComment
		if _, last, ok := strings.Cut(comment, "\n\n"); ok {
			comment = last // what is before is about the file
		}
		for line := range strings.Lines(comment) {
			line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
			if text, ok := strings.CutPrefix(line, "@schema "); ok {
				if err := json.Unmarshal([]byte(text), &v.schema); err != nil {
					return nil, fmt.Errorf("%s: @schema: %w", v.path, err)
				}
				continue
			}
			v.text = strings.TrimSpace(v.text + " " + line)
		}
		if content.Kind == yaml.MappingNode && len(content.Content) > 0 && len(v.schema) == 0 {
			var err error
			if v.values, err = readValues(content, v.path+"."); err != nil {
				return nil, err
			}
		}
		if v.text == "" {
			return nil, fmt.Errorf("%s has no description", v.path)
		}
		if v.schema["type"] == nil && v.schema["$ref"] == nil {
			v.schema["type"] = map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean", "!!seq": "array", "!!map": "object"}[content.Tag]
		}
		out = append(out, v)
	}
	return out, nil
}

// object is the schema of a map with named values. An unknown one is refused.
func object(values []value) map[string]any {
	properties := map[string]any{}
	for _, v := range values {
		s := maps.Clone(v.schema)
		if len(v.values) > 0 {
			s = object(v.values)
		}
		if v.text != "" {
			s["description"] = v.text
		}
		properties[v.path[strings.LastIndex(v.path, ".")+1:]] = s
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// settings is the schema of the value settings: the flags of `stowage serve`.
func settings() map[string]any {
	properties := map[string]any{}
	for _, s := range settingsOf() {
		if slices.Contains(ownFlags, s.Flag) {
			continue
		}
		p := map[string]any{"description": s.Usage}
		switch s.Type {
		case "bool":
			p["type"] = "boolean"
		case "int", "int64":
			p["type"] = "integer"
		case "float64":
			p["type"] = "number"
		case "duration":
			p["type"], p["pattern"] = "string", `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
		case "stringSlice":
			p["type"], p["items"] = []string{"string", "array"}, map[string]any{"type": "string"}
		default:
			p["type"] = "string"
		}
		if s.Flag == "peerpods-capacity" {
			p["type"], p["enum"] = []string{"string", "boolean"}, []any{"Auto", "WhenReady", "Always", "Off", true, false} // YAML takes Off for false
		}
		properties[s.Flag] = p
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// labelSelector is the schema of a label selector.
func labelSelector() map[string]any {
	text := map[string]any{"type": "string"}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
		"matchLabels": map[string]any{"type": "object", "additionalProperties": text},
		"matchExpressions": map[string]any{"type": "array", "items": map[string]any{
			"type": "object", "required": []string{"key", "operator"}, "additionalProperties": false, "properties": map[string]any{
				"key": text, "operator": map[string]any{"enum": []string{"In", "NotIn", "Exists", "DoesNotExist"}}, "values": map[string]any{"type": "array", "items": text},
			},
		}},
	}}
}

// labels is the schema of labels that do not take the place of ours.
func labels() map[string]any {
	return map[string]any{
		"type": "object", "additionalProperties": map[string]any{"type": "string"},
		"patternProperties": map[string]any{`^(app\.kubernetes\.io|helm\.sh)/`: false},
	}
}

// writeSchema writes values.schema.json.
func writeSchema(w io.Writer, values []value) error {
	s := object(values)
	s["$schema"] = "http://json-schema.org/draft-07/schema#"
	s["title"] = "Values of the chart stowage"
	// A chart that has this one as a part passes these.
	properties := s["properties"].(map[string]any)
	properties["global"] = map[string]any{"type": "object", "description": "Values that a chart with this one as a part has for all of its parts. Nothing reads them here."}
	properties["enabled"] = map[string]any{"type": "boolean", "description": "Whether a chart with this one as a part installs it. Nothing reads it here."}
	s["definitions"] = map[string]any{"settings": settings(), "labelSelector": labelSelector(), "labels": labels()}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// writeTable writes the values as a Markdown table.
func writeTable(w io.Writer, values []value) error {
	if _, err := io.WriteString(w, "| value | default | meaning |\n| --- | --- | --- |\n"); err != nil {
		return err
	}
	return writeRows(w, values)
}

func writeRows(w io.Writer, values []value) error {
	for _, v := range values {
		if len(v.values) > 0 {
			if _, err := fmt.Fprintf(w, "| `%s` |  | %s |\n", v.path, tableCell(v.text)); err != nil {
				return err
			}
			if err := writeRows(w, v.values); err != nil {
				return err
			}
			continue
		}
		var decoded any
		if err := v.fallback.Decode(&decoded); err != nil {
			return err
		}
		shown, err := json.Marshal(decoded)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "| `%s` | `%s` | %s |\n", v.path, shown, tableCell(v.text)); err != nil {
			return err
		}
	}
	return nil
}

// tableCell is a text as a cell of a table.
func tableCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// writeChart writes what of the chart follows from the code and from config/, and returns
// the table of its values.
func writeChart(chart, config string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	values, err := readValues(doc.Content[0], "")
	if err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	var schema, table, readme bytes.Buffer
	if err := errors.Join(writeSchema(&schema, values), writeTable(&table, values)); err != nil {
		return nil, err
	}
	readme.WriteString(chartReadme)
	readme.Write(table.Bytes())
	if err := os.WriteFile(filepath.Join(chart, "values.schema.json"), schema.Bytes(), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(chart, "README.md"), readme.Bytes(), 0o644); err != nil {
		return nil, err
	}
	files := filepath.Join(chart, "files")
	if err := os.RemoveAll(files); err != nil {
		return nil, err
	}
	for from, to := range chartFiles {
		if err := copyAll(filepath.Join(config, from), filepath.Join(files, to)); err != nil {
			return nil, err
		}
	}
	return table.Bytes(), nil
}

// copyAll copies a file, or the files of a directory.
func copyAll(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

const chartReadme = `# Chart stowage

Generated by ` + "`make generate`" + ` from values.yaml; do not edit.

    helm install stowage charts/stowage --namespace stowage-system --create-namespace \
      --set image.registry=REGISTRY

It needs Kubernetes 1.30 or newer and Helm 3 or 4. One installation serves a cluster; a second
one is refused, because the objects of both have the same names.

- **Certificates**: Stowage makes and renews its own. The registrations hold the
  authority. Before you change to cert-manager or to a Secret of yours, or back, remove them and upgrade
  then. The upgrade recreates them; until then pods bypass the webhook.

      kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration stowage

- **An upgrade** restarts the replicas one after the other, the new one before the old one. CRDs
  are templates here, so that they are upgraded, too.
- **Uninstalling** removes the webhook's registration before the webhook. It keeps the CRDs, and with them all PodDistributors and FlexDaemonsetTemplates
  (` + "`crds.keep`" + `). Pods keep what Stowage gave them, and nodes the capacity of VMs. What Stowage
  itself made stays in the namespace: Secrets ` + "`stowage-webhook-cert` and `stowage-seats`" + `, Lease
  ` + "`stowage-leader`" + `. Do not use ` + "`--no-hooks`" + `, which in Helm 3 removes the webhook before its registration.
- **CRDs that are there already**, of a predecessor say: ` + "`helm install --take-ownership`" + `
  (Helm 3.17 or newer) takes them over. See docs/migrate.
- **Pod Security**: the pods comply with ` + "`restricted`" + `, but for ` + "`webhook.hostNetwork`" + `.

## Values

A value that is not in this list is refused. Those under ` + "`settings`" + ` are the flags of
` + "`stowage serve`" + ` that have no value of their own: docs/reference/configuration.md.

`
