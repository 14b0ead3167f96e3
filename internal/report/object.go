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
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	} else {
		data = append(data, '\n')
	}
	_, err = out.Write(data)
	return err
}
