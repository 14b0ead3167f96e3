package report

import (
	"encoding/json"
	"io"

	"sigs.k8s.io/yaml"
)

// Object writes an object as JSON, or as YAML if that is the format.
func Object(out io.Writer, format string, object any) error {
	data, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	}
	_, err = out.Write(data)
	return err
}
