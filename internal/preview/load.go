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

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Inputs are the objects that matter to a preview, in the order they were given.
type Inputs struct {
	Workloads      []Workload
	Nodes          []corev1.Node
	RuntimeClasses []nodev1.RuntimeClass
	Cluster        cluster.Static
	// Ignored counts the objects of kinds that do not matter, by kind.
	Ignored map[string]int
}

// source is where an object was read, for messages.
type source struct {
	file     string
	document int // counts from 1, over the documents that are not empty
	item     int // counts from 1 in a List; 0 outside of one
}

func (s source) String() string {
	at := fmt.Sprintf("%s: document %d", s.file, s.document)
	if s.item > 0 {
		at += fmt.Sprintf(", item %d", s.item)
	}
	return at
}

// Load reads manifests: files, directories (their *.yaml, *.yml and *.json), and
// "-" for in. It reports every input error it finds, joined.
func Load(names []string, in io.Reader, namespace string) (*Inputs, error) {
	l := &loader{namespace: namespace, in: &Inputs{Ignored: map[string]int{}}}
	for _, name := range names {
		l.path(name, in)
	}
	if len(l.errs) == 0 && len(l.in.Workloads) == 0 {
		l.errs = append(l.errs, l.nothing(names))
	}
	if err := errors.Join(l.errs...); err != nil {
		return nil, err
	}
	return l.in, nil
}

type loader struct {
	namespace string
	in        *Inputs
	errs      []error
}

func (l *loader) fail(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

// nothing explains why there is nothing to preview.
func (l *loader) nothing(names []string) error {
	text := fmt.Sprintf("%s: no pod and no workload in the input", strings.Join(names, ", "))
	if len(l.in.Ignored) > 0 {
		text += fmt.Sprintf(" (only %s)", strings.Join(slices.Sorted(maps.Keys(l.in.Ignored)), ", "))
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
	entries, err := os.ReadDir(name) // sorted by name
	if err != nil {
		l.fail("%w", err)
		return
	}
	found := false
	for _, e := range entries {
		if e.Type()&fs.ModeDir == 0 && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			found = true
			l.file(filepath.Join(name, e.Name()))
		}
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
	buffered := bufio.NewReader(r)
	at := source{file: file}
	if isJSON(buffered) {
		objects := json.NewDecoder(buffered)
		for {
			at.document++
			var doc json.RawMessage
			if err := objects.Decode(&doc); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				l.fail("%s: %w", at, err)
				return
			}
			l.document(at, doc)
		}
	}
	documents := utilyaml.NewYAMLReader(buffered)
	for {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			l.fail("%s: %w", file, err)
			return
		}
		data, err := yaml.YAMLToJSONStrict(doc)
		if err == nil && string(bytes.TrimSpace(data)) == "null" {
			continue // only comments
		}
		at.document++
		if err != nil {
			l.fail("%s: %w", at, err)
			continue
		}
		l.document(at, data)
	}
}

func isJSON(r *bufio.Reader) bool {
	for n := 1; ; n++ {
		head, err := r.Peek(n)
		if err != nil {
			return false
		}
		if c := head[n-1]; c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c == '{'
		}
	}
}

// decoder refuses fields that do not exist, as kubectl does by default.
var decoder = serializer.NewCodecFactory(clientgoscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// document takes one object, as JSON.
func (l *loader) document(at source, data []byte) {
	where := at.String()
	if name := objectName(data); name != "" {
		where += fmt.Sprintf(" (%s)", name)
	}
	// The decoder does not say which quantity is wrong, and takes hours for some.
	kind, _, _ := strings.Cut(objectName(data), " ")
	if bad := badQuantities(data); len(bad) > 0 && slices.Contains(kindsWithQuantities, kind) {
		for _, b := range bad {
			l.fail("%s: %s", where, b)
		}
		return
	}
	obj, gvk, err := decoder.Decode(data, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		l.in.Ignored[gvk.Kind]++
		return
	case err != nil:
		l.fail("%s: %w", where, err)
		return
	}
	l.object(at, obj, gvk.Kind)
}

func (l *loader) object(at source, obj runtime.Object, kind string) {
	switch o := obj.(type) {
	case *corev1.List:
		for i, item := range o.Items {
			at.item = i + 1
			l.document(at, item.Raw)
		}
	case *corev1.Namespace:
		l.in.Cluster.NamespaceList = append(l.in.Cluster.NamespaceList, *o)
	case *corev1.LimitRange:
		l.home(&o.Namespace)
		l.in.Cluster.LimitRangeList = append(l.in.Cluster.LimitRangeList, *o)
	case *corev1.ResourceQuota:
		l.home(&o.Namespace)
		l.in.Cluster.ResourceQuotaList = append(l.in.Cluster.ResourceQuotaList, *o)
	case *nodev1.RuntimeClass:
		l.in.RuntimeClasses = append(l.in.RuntimeClasses, *o)
	case *corev1.Node:
		l.in.Nodes = append(l.in.Nodes, *o)
	default:
		if meta.IsListType(obj) {
			items, err := meta.ExtractList(obj)
			if err != nil {
				l.fail("%s: %w", at, err)
				return
			}
			for i, item := range items {
				at.item = i + 1
				l.object(at, item, strings.TrimSuffix(kind, "List"))
			}
			return
		}
		w, ok := newWorkload(obj)
		if !ok {
			l.in.Ignored[kind]++
			return
		}
		l.home(&w.Namespace)
		if errs := w.validate(); len(errs) > 0 {
			for _, err := range errs {
				l.fail("%s (%s): %w", at, w, err)
			}
			return
		}
		l.in.Workloads = append(l.in.Workloads, w)
	}
}

// home fills in the namespace that kubectl would.
func (l *loader) home(namespace *string) {
	if *namespace == "" {
		*namespace = l.namespace
	}
}

// objectName names an object that cannot be decoded, as well as possible.
func objectName(data []byte) string {
	var o struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if json.Unmarshal(data, &o) != nil || o.Kind == "" {
		return ""
	}
	return strings.TrimSpace(o.Kind + " " + o.Metadata.Name)
}

// badQuantities finds the fields whose quantity does not parse.
func badQuantities(data []byte) []string {
	var root any
	if json.Unmarshal(data, &root) != nil {
		return nil
	}
	var out []string
	var walk func(path *field.Path, name string, v any)
	walk = func(path *field.Path, name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				child := path.Child(k)
				if slices.Contains(quantityMaps, name) {
					child = path.Key(k)
					switch q := v[k].(type) {
					case string:
						if _, err := podpatch.Quantity(q).Parse(); err != nil {
							out = append(out, fmt.Sprintf("%s: %v; write it like 500m, 2 or 1Gi", child, err))
						}
						continue
					case float64:
						continue
					}
				}
				walk(child, k, v[k])
			}
		case []any:
			for i := range v {
				walk(path.Index(i), "", v[i])
			}
		}
	}
	if object, ok := root.(map[string]any); ok {
		for _, k := range slices.Sorted(maps.Keys(object)) {
			walk(field.NewPath(k), k, object[k])
		}
	}
	return out
}

// kindsWithQuantities are the kinds in which quantityMaps mean what they say.
var kindsWithQuantities = []string{
	"Pod", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob",
	"Node", "RuntimeClass", "LimitRange", "ResourceQuota",
}

// quantityMaps are the fields of those kinds whose values are quantities.
var quantityMaps = []string{
	"limits", "requests", "overhead", "podFixed", "hard", "capacity", "allocatable",
	"default", "defaultRequest", "max", "min", "maxLimitRequestRatio",
}
