package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists the modules that are linked into a binary, as the linker noted them,
// in CycloneDX JSON. It has no time and no serial number: the same binary has the same list.
func billOfMaterials(binary, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read what is in %s: %w", binary, err)
	}
	bom := cdx.NewBOM()
	main := module(info.Main.Path, version)
	main.Type = cdx.ComponentTypeApplication
	bom.Metadata = &cdx.Metadata{Component: &main}
	components := []cdx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, module(m.Path, m.Version))
	}
	bom.Components = &components
	var out bytes.Buffer
	enc := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON)
	enc.SetPretty(true)
	if err := enc.Encode(bom); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// module is a Go module as a component, by its package URL (github.com/package-url/purl-spec).
func module(path, version string) cdx.Component {
	url := fmt.Sprintf("pkg:golang/%s@%s", path, strings.ReplaceAll(version, "+", "%2B"))
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}
