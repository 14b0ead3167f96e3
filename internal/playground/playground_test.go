package playground

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/cli"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/server"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The page has the settings of a new installation.
func TestSettings(t *testing.T) {
	d := server.DefaultOptions()
	want := preview.Settings{
		Namespace: d.Namespace, Spread: d.Spread.Feature.Enabled, Sizing: d.Size.Feature.Enabled, PeerPods: d.VM.Feature.Enabled,
		ExcludedNamespaces: d.Spread.Feature.ExcludedNamespaces, NamespaceLabel: d.Spread.Feature.NamespaceLabel, PeerPodConfig: d.VM.Feature.Config,
	}
	if diff := cmp.Diff(want, Settings()); diff != "" {
		t.Errorf("the settings (-want +got):\n%s", diff)
	}
}

// corpus are all manifests of examples, samples and golden files.
func corpus(t *testing.T) (out []string) {
	t.Helper()
	for _, pattern := range []string{"../../docs/examples/*.yaml", "../../docs/playground/examples/*.yaml", "../../config/samples/*.yaml", "../../config/samples/*/*.yaml", "../cli/testdata/preview/*.yaml", "../cli/testdata/preview/*.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		out = append(out, files...)
	}
	return out
}

// The page says what the command says. Only what rules in CEL refuse is missing.
func TestSameAsTheCommand(t *testing.T) {
	refused := 0
	for _, file := range corpus(t) {
		t.Run(strings.TrimPrefix(file, "../"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			cli.Main(t.Context(), []string{"preview", "-"}, cli.Streams{In: bytes.NewReader(data), Out: &stdout, Err: &stderr, LookupEnv: func(string) (string, bool) { return "", false }})
			out := Run(t.Context(), Settings(), Input{Manifests: string(data)})
			if out.Table != stdout.String() {
				t.Errorf("the table is\n%s, and that of the command\n%s", out.Table, &stdout)
			}
			documents := split(string(data))
			var warnings, errs []Note
			excepted := map[int]bool{} // documents that rules in CEL refuse
			for _, line := range messages(strings.TrimSuffix(testkit.WithoutProgress(stderr.String()), "\n")) {
				line = strings.TrimPrefix(line, "Error: ")
				if warning, ok := strings.CutPrefix(line, "Warning: "); ok {
					warnings = append(warnings, documents.noteOf(warning))
				} else if line != "" {
					errs = append(errs, documents.noteOf(line))
				}
				if rule(line) {
					refused++
					excepted[documents.of(documents.lineOf(line))] = true
				}
			}
			if !slices.Equal(out.Warnings, warnings) && len(errs) == 0 {
				t.Errorf("the warnings are %v, and those of the command %v", out.Warnings, warnings)
			}
			for _, e := range out.Errors {
				if e.Line == 0 && !strings.Contains(e.Text, "no pod and no workload") {
					t.Errorf("no line: %s", e.Text)
				}
				if strings.Contains(e.Text, "standard input") || strings.Contains(e.Text, "document ") {
					t.Errorf("line %d: %s, which is not how the page says it", e.Line, e.Text)
				}
			}
			for _, lists := range []*[]Note{&out.Errors, &errs} {
				*lists = slices.DeleteFunc(*lists, func(e Note) bool { return excepted[documents.of(e.Line)] })
			}
			if !slices.Equal(out.Errors, errs) {
				t.Errorf("the page says %v\nand the command %v", out.Errors, errs)
			}
		})
	}
	t.Logf("rules in CEL refuse %d fields that the page does not", refused)
}

// of returns the number of the document that a line is in, from 1, or 0 for no line.
func (d documents) of(line int) (n int) {
	for n < len(d) && d[n].start <= line {
		n++
	}
	return n
}

// rule reports whether an error is of a rule in CEL: of those, the message is Stowage's own, and not that of a schema.
func rule(text string) bool {
	_, after, found := strings.Cut(text, "Invalid value: ")
	return found && !strings.Contains(after, "should ") && !strings.Contains(after, "must be of type")
}

func TestLineOf(t *testing.T) {
	const manifests = "# a comment\n---\napiVersion: v1\nkind: Pod\n---\n\n---\napiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    metadata:\n      labels:\n        a.b/c: 1\n    spec:\n      containers:\n      - name: a\n      - name: b\n"
	for text, want := range map[string]int{
		"standard input: document 1 (Pod p): spec.containers: Required value":                               3,
		"standard input: document 2 (Deployment d): spec.template.spec.containers[1].name: Duplicate value": 18,
		"standard input: document 2 (Deployment d): spec.template.metadata.labels[a.b/c] is 1":              14,
		"standard input: document 2: yaml: line 11: did not find expected key":                              11,
		"standard input: document 3 (Pod p): spec: wrong":                                                   0,
		"something else": 0,
	} {
		if got := split(manifests).lineOf(text); got != want {
			t.Errorf("%s: line %d, want %d", text, got, want)
		}
	}
}

// The page names lines of its editor, where the command names documents of its input.
func TestNotesOfPage(t *testing.T) {
	const manifests = "# a comment\n---\napiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: List\nitems:\n- kind: Pod\n- kind: Pod\n  spec:\n    nodeName: 1\n"
	for text, want := range map[string]Note{
		"standard input: document 1 (Pod p): spec.containers: Required value":     {3, "Pod p: spec.containers: Required value"},
		"standard input: document 2, item 2 (Pod q): spec.nodeName is 1":          {12, "Pod q: spec.nodeName is 1"},
		"standard input: document 2: line 9: did not find expected key":           {9, "did not find expected key"},
		"standard input: document 2: it is a template (line 9: found a {)":        {9, "it is a template (line 9: found a {)"},
		"standard input: document 9 (Pod p): spec: wrong":                         {0, "document 9 (Pod p): spec: wrong"},
		"standard input: no pod and no workload in the input":                     {0, "no pod and no workload in the manifests"},
		"PodDistributor a/b: no Node of the input has the labels of pool 0 (a=b)": {0, "PodDistributor a/b: no Node of the manifests has the labels of pool 0 (a=b)"},
	} {
		if got := split(manifests).noteOf(text); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestDiff(t *testing.T) {
	var got strings.Builder
	for _, l := range diff([]string{"a", "b", "c"}, []string{"a", "x", "c", "d"}) {
		fmt.Fprint(&got, l.Op, l.Text, " ")
	}
	if want := " a -b +x  c +d "; got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}

// An outage, another replica count, and a pool that the manifests do not have any more.
func TestInput(t *testing.T) {
	data, err := os.ReadFile("../../docs/playground/examples/2-outage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := Run(t.Context(), Settings(), Input{Manifests: string(data), Replicas: new(int32(30)), Exhausted: []string{"spot=10", "gone"}})
	if len(out.Errors) > 0 || !strings.Contains(out.Table, "20") || len(out.Pictures) != 1 || !strings.Contains(out.Pictures[0], "<svg") || !slices.Equal(out.Pools, []string{"on-demand", "spot"}) {
		t.Errorf("%+v", out)
	}
	if len(out.Diffs) != 1 || !slices.ContainsFunc(out.Diffs[0].Lines, func(l Line) bool { return l.Op == "+" && strings.Contains(l.Text, "stowage.dev/pool") }) {
		t.Errorf("the diffs are %v", out.Diffs)
	}
}
