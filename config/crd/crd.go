// Package crd embeds the CustomResourceDefinitions of Stowage's kinds, for programs that check objects as
// an API server does.
package crd

import "embed"

// Bases are the files that `make generate` writes.
//
//go:embed bases/*.yaml
var Bases embed.FS
