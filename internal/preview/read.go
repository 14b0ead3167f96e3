package preview

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/report"
)

// standardInput is what messages call the input "-".
const standardInput = "standard input"

// nothing explains why there is nothing to preview.
func (l *loader) nothing(names []string) error {
	if len(l.dangling) > 0 {
		return errors.Join(l.dangling...)
	}
	shown := slices.Clone(names)
	for i, name := range shown {
		if name == "-" {
			shown[i] = standardInput
		}
	}
	text := fmt.Sprintf("%s: no pod and no workload in the input", strings.Join(shown, ", "))
	others := maps.Clone(l.in.Ignored)
	maps.Copy(others, l.in.Unknown)
	if len(others) > 0 {
		text += fmt.Sprintf(" (only %s)", others)
	}
	return errors.New(text)
}

func (l *loader) path(name string, in io.Reader) {
	if name == "-" {
		l.stream(standardInput, in)
		return
	}
	if strings.Contains(name, "://") {
		l.fail("%s is a URL, and only files are read; fetch it: curl -sL %s | stowage preview -", name, name)
		return
	}
	info, err := os.Stat(name)
	if err != nil {
		l.fail("%w", err)
		return
	}
	if !info.IsDir() {
		l.file(name)
		return
	}
	found := false
	err = filepath.WalkDir(name, func(path string, e fs.DirEntry, err error) error { // sorted by name
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != name && !l.recursive:
			return fs.SkipDir
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			found = true
			l.file(path)
		}
		return nil
	})
	if err != nil {
		l.fail("%w", err)
		return
	}
	if !found {
		l.fail("%s: the directory has no .yaml, .yml or .json file", name)
	}
}

func (l *loader) file(name string) {
	f, err := os.Open(name)
	if err != nil {
		l.fail("%w", err)
		return
	}
	defer func() { _ = f.Close() }()
	l.stream(name, f)
}

// stream takes a stream of YAML documents or of JSON objects.
func (l *loader) stream(file string, r io.Reader) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		l.fail("%s: %w", file, err)
		return
	}
	if len(data) > maxInput {
		l.fail("%s: it has more than %d MiB; give the manifests in several files", file, maxInput>>20)
		return
	}
	if data, err = Text(data); err != nil {
		l.fail("%s: %w", file, err)
		return
	}
	if objects, ok := splitJSON(data); ok {
		for i, object := range objects {
			l.document(source{file: file, document: i + 1}, object, 0)
		}
		return
	}
	for i, doc := range Documents(data) {
		at := source{file: file, document: i + 1}
		object, err := yaml.YAMLToJSONStrict(doc.Text)
		switch {
		case err == nil:
			l.document(at, object, 0)
		case bytes.Contains(doc.Text, []byte("{{")):
			l.fail("%s: it is a template and no manifest (%s); render it: helm template ... | stowage preview -", at, doc.ofFile(report.Plain(err.Error())))
		default:
			l.fail("%s: %s", at, doc.ofFile(report.Plain(err.Error())))
		}
	}
}

// maxInput is how many bytes one file may have, or standard input, which may have no end.
const maxInput = 256 << 20

// splitJSON splits a stream of JSON objects, and returns false if it is none.
func splitJSON(data []byte) (documents [][]byte, ok bool) {
	objects := json.NewDecoder(bytes.NewReader(data))
	for {
		var doc json.RawMessage
		err := objects.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return documents, len(documents) > 0
		}
		if err != nil || doc[0] != '{' {
			return nil, false
		}
		documents = append(documents, doc)
	}
}
