// Package policytest compares what Stowage decides about manifests with what a test file expects.
//
//	test file ─▶ Read ─▶ Case ─▶ (the caller lets package preview decide) ─▶ Decided ─▶ Compare ─▶ differences
//
// The package decides nothing itself and asks nothing of a cluster.
package policytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/preview"
)

// What a test file is: an object of this version and kind.
const (
	APIVersion = preview.TestGroup + "/v1alpha1"
	Kind       = "PolicyTest"
)

// Suffix is how the names of test files end. The shorter .yml serves, too.
const Suffix = "stowage-test.yaml"

func isTestFile(name string) bool {
	return strings.HasSuffix(name, Suffix) || strings.HasSuffix(name, strings.TrimSuffix(Suffix, ".yaml")+".yml")
}

// File is a test file.
type File struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Files are manifests for all cases: files and directories, relative to the directory of the test file.
	Files []string `json:"files,omitempty"`
	// Flags are for all cases: flags of `stowage preview` that change decisions.
	Flags []string `json:"flags,omitempty"`
	Cases []Case   `json:"cases"`

	// Path is where the file was read.
	Path string `json:"-"`
}

// Case is one set of inputs, and what is expected of it.
type Case struct {
	Name string `json:"name"`
	// Files and Flags are in addition to those of the file.
	Files []string `json:"files,omitempty"`
	Flags []string `json:"flags,omitempty"`
	// Replicas is how many pods each workload with a replica count has; nil is what the manifests say.
	Replicas *int32 `json:"replicas,omitempty"`
	// Exhausted are pools without room, with how many pods of each workload they have room for.
	Exhausted map[string]int64 `json:"exhausted,omitempty"`
	// Expect may be left out: `stowage test --update` then writes all that is decided.
	Expect Expect `json:"expect,omitzero"`
}

// Expect is what a case expects. Workloads that it does not name are not compared, nor are fields that a workload
// leaves out. Warnings are always compared: each one must be expected.
type Expect struct {
	Workloads []Workload `json:"workloads,omitempty"`
	// Warnings are parts of the texts of warnings, such as "is not in the input".
	Warnings []string `json:"warnings,omitempty"`
	// Error is a part of the error, for inputs that are wrong: `stowage preview` exits with status 1.
	Error string `json:"error,omitempty"`
}

// Workload is what is decided about the pods of a workload.
type Workload struct {
	// Workload is KIND NAMESPACE/NAME, as `stowage preview` prints it.
	Workload string `json:"workload"`
	// Pods is how many there are.
	Pods *int `json:"pods,omitempty"`
	// Decisions are the numbers of pods by decision, as `stowage preview` prints it.
	Decisions map[string]int `json:"decisions,omitzero"`
	// Pools are the numbers of pods by pool. A pool that is left out has none.
	Pools map[string]int `json:"pools,omitzero"`
	// Domains are the numbers of pods by pool and domain, as spot/zone-a. One that is left out has none.
	Domains map[string]int `json:"domains,omitzero"`
	// ScaleDown is what a policy of scale-downs means for the workload.
	ScaleDown *preview.ScaleDown `json:"scaleDown,omitempty"`
	// Sizes are the requests that Stowage gives a DaemonSet's pod, by node. A node that is left out has no sized pod.
	Sizes map[string]map[corev1.ResourceName]Quantity `json:"sizes,omitzero"`
	// VMs are the virtual machines of peer pods, one entry for each size.
	VMs []VMs `json:"vms,omitzero"`
}

// Quantity is an amount of a resource as Kubernetes writes it, such as 500m, 2 or 1Gi.
type Quantity string

// UnmarshalJSON takes a string or a number. It refuses what is no quantity, and those that take hours to parse.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	if _, err := podpatch.Quantity(text).Parse(); err != nil {
		return fmt.Errorf("%q: %w; write it like 500m, 2 or 1Gi", text, err)
	}
	*q = Quantity(text)
	return nil
}

// VMs are virtual machines of one size.
type VMs struct {
	Count      int64 `json:"count"`
	preview.VM `json:",inline"`
}

// Find returns the test files that paths name: files, and all files in directories, at any depth, whose name ends
// with [Suffix]. It is an error if there is none.
func Find(paths []string) ([]string, error) {
	var found []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			found = append(found, path)
			continue
		}
		if err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && name != path && strings.HasPrefix(e.Name(), "."):
				return fs.SkipDir // .git and the like
			case !e.IsDir() && isTestFile(name):
				found = append(found, name)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: there is no file whose name ends with %s", strings.Join(paths, ", "), Suffix)
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// Read reads a test file and reports all that is wrong with it.
func Read(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if data, err = preview.Text(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.Path = path
	return f, nil
}

func parse(data []byte) (*File, error) {
	// The library reads the first document of a file and ignores the others.
	documents := yamlv3.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		err := documents.Decode(new(yamlv3.Node))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if n > 0 {
			return nil, errors.New("expected one YAML document; write the cases of the others into it, or into other files")
		}
	}
	f := &File{}
	if err := yaml.UnmarshalStrict(data, f); err != nil {
		return nil, ofCase(data, err)
	}
	return f, f.validate()
}

// ofCase returns an error of a file with the case that has it, if one has.
func ofCase(data []byte, err error) error {
	var loose struct {
		Cases []json.RawMessage `json:"cases"`
	}
	if yaml.Unmarshal(data, &loose) != nil {
		return err
	}
	for i, raw := range loose.Cases {
		if wrong := yaml.UnmarshalStrict(raw, &Case{}); wrong != nil {
			var named struct {
				Name string `json:"name"`
			}
			_ = json.Unmarshal(raw, &named) // a case without a name has its number
			text := strings.ReplaceAll(wrong.Error(), "error unmarshaling JSON: while decoding JSON: json: ", "")
			return fmt.Errorf("cases[%d] (%s): %s", i, named.Name, text)
		}
	}
	return err
}

func (f *File) validate() error {
	if f.APIVersion != APIVersion || f.Kind != Kind {
		return fmt.Errorf("expected apiVersion %s and kind %s", APIVersion, Kind)
	}
	var errs []error
	wrong := func(i int, field, text string) {
		errs = append(errs, fmt.Errorf("cases[%d].%s: %s", i, field, text))
	}
	if len(f.Cases) == 0 {
		errs = append(errs, errors.New("cases: there is none"))
	}
	names := map[string]bool{}
	for i := range f.Cases {
		c := &f.Cases[i]
		switch {
		case c.Name == "":
			wrong(i, "name", "it is required")
		case names[c.Name]:
			wrong(i, "name", fmt.Sprintf("%q is the name of another case", c.Name))
		}
		names[c.Name] = true
		if len(f.Files)+len(c.Files) == 0 {
			wrong(i, "files", "it is required, here or in the file")
		}
		if slices.Contains(f.Files, "-") || slices.Contains(c.Files, "-") {
			wrong(i, "files", "a test does not read standard input")
		}
		if c.Expect.Error != "" && len(c.Expect.Workloads)+len(c.Expect.Warnings) > 0 {
			wrong(i, "expect", "error excludes workloads and warnings, because nothing is decided about wrong inputs")
		}
		known := map[string]bool{}
		for _, w := range c.Expect.Workloads {
			if w.Workload == "" || known[w.Workload] {
				wrong(i, "expect.workloads", fmt.Sprintf("%q must be named, and once", w.Workload))
			}
			known[w.Workload] = true
		}
	}
	return errors.Join(errs...)
}

// Inputs returns the manifests of a case, as absolute paths, and how the test file writes each of them.
func (f *File) Inputs(c *Case) (paths []string, written map[string]string, err error) {
	written = map[string]string{}
	for _, name := range slices.Concat(f.Files, c.Files) {
		path := name
		if !filepath.IsAbs(name) {
			path = filepath.Join(filepath.Dir(f.Path), name)
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, nil, err
		}
		paths, written[path] = append(paths, path), name
	}
	return paths, written, nil
}
