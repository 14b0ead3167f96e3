package preview

import (
	"bufio"
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

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// nothing explains why there is nothing to preview.
func (l *loader) nothing(names []string) error {
	text := fmt.Sprintf("%s: no pod and no workload in the input", strings.Join(names, ", "))
	others := maps.Clone(l.in.Ignored)
	maps.Copy(others, l.in.Unknown)
	if len(others) > 0 {
		text += fmt.Sprintf(" (only %s)", others)
	}
	return errors.New(text)
}

func (l *loader) path(name string, in io.Reader) {
	if name == "-" {
		l.read("standard input", in)
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
	l.read(name, f)
}

// read takes a stream of YAML documents or of JSON objects.
func (l *loader) read(file string, r io.Reader) {
	data, err := io.ReadAll(r)
	if err != nil {
		l.fail("%s: %w", file, err)
		return
	}
	documents, ok := splitJSON(data)
	if !ok {
		if documents, err = splitYAML(data); err != nil {
			l.fail("%s: %w", file, err)
			return
		}
	}
	for i, doc := range documents {
		at := source{file: file, document: i + 1}
		if !ok {
			if doc, err = yaml.YAMLToJSONStrict(doc); err != nil {
				l.fail("%s: %w", at, err)
				continue
			}
		}
		l.document(at, doc, 0)
	}
}

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

// splitYAML splits a stream of YAML documents and leaves out those without content.
func splitYAML(data []byte) (documents [][]byte, err error) {
	// "..." ends a document, too, and the reader knows only "---".
	data = documentEnd.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("---\n"))
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		if !onlyComments.Match(doc) {
			documents = append(documents, doc)
		}
	}
}
