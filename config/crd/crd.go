// Package crd embeds the CustomResourceDefinitions of Stowage's kinds, for programs that check objects as
// an API server does.
package crd

import (
	"embed"
	"fmt"
	"io/fs"
)

// Bases are the files that `make generate` writes.
//
//go:embed bases/*.yaml
var Bases embed.FS

// Each calls a function with the YAML of each definition, until one fails.
func Each(use func(data []byte) error) error {
	files, err := fs.Glob(Bases, "bases/*.yaml")
	if err != nil {
		return err
	}
	for _, name := range files {
		data, err := Bases.ReadFile(name)
		if err == nil {
			err = use(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
