// Package playground is what the page in docs/playground runs: the decisions of `stowage preview` over the manifests of an editor.
//
// It is compiled to WebAssembly, so that it must not need a cluster, a client or CEL. What it prints is what the command prints, but for
// what a rule in CEL refuses.
package playground

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Input is the state of the page.
type Input struct {
	Manifests string `json:"manifests"`
	// Replicas is how many pods each workload has; as the manifests say if it is nil.
	Replicas *int32 `json:"replicas,omitempty"`
	// Exhausted are pools without room, as --exhausted of the command has them.
	Exhausted []string `json:"exhausted,omitempty"`
}

// Output is what the page shows.
type Output struct {
	// Table is that of `stowage preview`, and Plot that of --plot.
	Table string `json:"table"`
	Plot  string `json:"plot"`
	// Pictures are that of -o svg in pieces, each of some workloads: a page shows them one by one.
	Pictures []string `json:"pictures"`
	Warnings []Note   `json:"warnings"`
	Errors   []Note   `json:"errors"`
	Pools    []string `json:"pools"` // that may have no room
	Replicas int64    `json:"replicas"`
	Diffs    []Diff   `json:"diffs"`
}

// Note is something about the manifests, such as what is wrong, and about which line, from 1; 0 is none.
type Note struct {
	Line int    `json:"line"`
	Text string `json:"text"`
}

// Diff is what becomes of the first pod of a workload, in YAML.
type Diff struct {
	Workload string `json:"workload"`
	Lines    []Line `json:"lines"`
}

// Line is a line of a diff. The operation is " ", "+" or "-".
type Line struct {
	Op   string `json:"op"`
	Text string `json:"text"`
}

// Settings are those of a Stowage for which nobody has set anything.
func Settings() preview.Settings {
	return preview.Settings{Namespace: "stowage-system", Spread: true, Sizing: true, PeerPods: true, PeerPodConfig: peerpod.DefaultConfig()}
}

// inPicture is how many workloads a picture has at most. A browser reads one of 20 in some milliseconds.
const inPicture = 20

// mostReplicas bounds the slider of the page.
const mostReplicas = 1000

// Run makes the decisions.
func Run(ctx context.Context, settings preview.Settings, in Input) Output {
	out := Output{Pictures: []string{}, Warnings: []Note{}, Errors: []Note{}, Pools: []string{}, Diffs: []Diff{}}
	documents := split(in.Manifests)
	fail := func(err error) Output {
		for _, text := range messages(report.Plain(err.Error())) {
			out.Errors = append(out.Errors, documents.noteOf(text))
		}
		return out
	}
	inputs, err := preview.Load(ctx, preview.Source{Names: []string{"-"}, In: strings.NewReader(in.Manifests), Namespace: "default", Schemas: schemas{}})
	if err != nil {
		return fail(err)
	}
	replicas := int32(-1)
	if in.Replicas != nil {
		replicas = min(max(*in.Replicas, 0), mostReplicas)
	}
	p := preview.New(inputs, settings)
	if out.Pools, err = pools(ctx, p, inputs); err != nil {
		return fail(err)
	}
	waiting, err := exhaust(ctx, p, in.Exhausted, out.Pools, replicas)
	if err != nil {
		return fail(err)
	}
	pods, warnings, err := p.Admit(ctx, replicas)
	if err != nil {
		return fail(err)
	}
	for _, text := range report.Counted(append(warnings, waiting...)) {
		out.Warnings = append(out.Warnings, documents.noteOf(report.Plain(text)))
	}
	var table, plot strings.Builder
	summary := preview.NewSummary(settings.PeerPodConfig.VMResource)
	summary.ScaleDowns = p.ScaleDowns()
	for i := range pods {
		summary.Add(&pods[i])
	}
	if err := summary.Print(&table); err != nil {
		return fail(err)
	}
	if plans, err := p.Plans(ctx, pods); err == nil { // without a strategy there is nothing to draw
		if err := preview.Plot(&plot, plans); err != nil {
			return fail(err)
		}
		for some := range slices.Chunk(plans, inPicture) {
			var picture strings.Builder
			if err := preview.SVG(&picture, some); err != nil {
				return fail(err)
			}
			out.Pictures = append(out.Pictures, picture.String())
		}
	}
	out.Table, out.Plot = table.String(), plot.String()
	for i := range inputs.Workloads {
		if w := &inputs.Workloads[i]; w.Kind != "DaemonSet" {
			out.Replicas = max(out.Replicas, w.Replicas())
		}
	}
	if out.Diffs, err = diffs(inputs, pods); err != nil {
		return fail(err)
	}
	return out
}

// exhaust closes pools, and returns the warnings about that. It leaves out those of manifests that were there before.
func exhaust(ctx context.Context, p *preview.Preview, texts, pools []string, replicas int32) ([]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	exhausted, err := preview.ParseExhausted(slices.DeleteFunc(slices.Clone(texts), func(text string) bool {
		name, _, _ := strings.Cut(text, "=")
		return !slices.Contains(pools, name)
	}))
	if err != nil {
		return nil, err
	}
	return p.Exhaust(ctx, exhausted, replicas)
}

// messages splits joined errors. A line that begins with spaces goes on with the one before.
func messages(text string) (out []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "  ") && len(out) > 0 {
			out[len(out)-1] += "\n" + line
		} else {
			out = append(out, line)
		}
	}
	return out
}

// pools returns the names of the pools that divide pods.
func pools(ctx context.Context, p *preview.Preview, in *preview.Inputs) (names []string, err error) {
	names = []string{}
	for i := range in.Workloads {
		var found *policy.Policy
		if found, err = p.Policy(ctx, &in.Workloads[i]); err != nil {
			return nil, err
		}
		if found == nil || found.Layout == nil {
			continue
		}
		for n := range found.Len() {
			if name := found.Pool(n).Name; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// diffs returns what became of the first pod of each workload.
func diffs(in *preview.Inputs, pods []preview.Admitted) ([]Diff, error) {
	out := []Diff{}
	var last *preview.Workload
	for i := range pods {
		a := &pods[i]
		if a.Workload == last {
			continue
		}
		last = a.Workload
		before, err := text(a.Workload.FirstPod(in.Objects.Nodes))
		if err != nil {
			return nil, err
		}
		after, err := text(a.Pod)
		if err != nil {
			return nil, err
		}
		if before != after {
			out = append(out, Diff{a.Workload.String(), diff(strings.Split(before, "\n"), strings.Split(after, "\n"))})
		}
	}
	return out, nil
}

// text is a pod in YAML, without what nobody wrote.
func text(pod *corev1.Pod) (string, error) {
	data, err := sigsyaml.Marshal(pod)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return l == "status: {}" || strings.HasSuffix(l, "creationTimestamp: null") }), "\n"), nil
}

// diff returns the lines of two texts by their longest common subsequence.
func diff(a, b []string) []Line {
	common := make([][]int, len(a)+1) // of what follows
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); x == y {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out []Line
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, Line{" ", a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, Line{"-", a[i]})
			i++
		default:
			out = append(out, Line{"+", b[j]})
			j++
		}
	}
	return out
}

var (
	ofInput    = regexp.MustCompile(`^standard input: (?:(document \d+(, item \d+)?(?: \(([^)]*)\))?): )?`)
	inDocument = regexp.MustCompile(`document (\d+)(?:, item (\d+))?[^:(]*(?:\([^)]*\))?: (.*)`)
	inLine     = regexp.MustCompile(`line (\d+)`)
	fieldPath  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9]*(?:\.[a-zA-Z0-9]+|\[[^\]]*\])*`)
	pathPart   = regexp.MustCompile(`[^.\[\]]+|\[[^\]]*\]`)
)

// noteOf is a message of package preview in the words of the page. For a reader of the page, the manifests are lines of its editor, and no
// documents of an input.
func (d documents) noteOf(text string) Note {
	n := Note{Line: d.lineOf(text), Text: text}
	if m := ofInput.FindStringSubmatch(text); m != nil {
		n.Text = text[len(m[0]):]
		switch about := m[3]; {
		case n.Line == 0 && m[1] != "":
			n.Text = m[1] + ": " + n.Text
		case about != "":
			n.Text = about + ": " + n.Text
		}
	}
	if at := inLine.FindStringIndex(n.Text); at != nil && n.Line > 0 { // counted in its document
		n.Text = strings.TrimPrefix(n.Text[:at[0]]+"line "+strconv.Itoa(n.Line)+n.Text[at[1]:], "line "+strconv.Itoa(n.Line)+": ")
	}
	n.Text = strings.NewReplacer("of the input", "of the manifests", "in the input", "in the manifests").Replace(n.Text)
	return n
}

// lineOf returns the line that an error is about, from 1, or 0 if that is not known. The error names a document and, often, an item, a
// field or a line in it.
func (d documents) lineOf(text string) int {
	m := inDocument.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	number, _ := strconv.Atoi(m[1])
	if number < 1 || number > len(d) {
		return 0
	}
	document := d[number-1]
	if at := inLine.FindStringSubmatch(m[3]); at != nil {
		n, _ := strconv.Atoi(at[1]) // of the whole text
		return n
	}
	node := document.root()
	if node == nil {
		return document.start
	}
	line := node.Line
	path := pathPart.FindAllString(fieldPath.FindString(m[3]), -1)
	if item, err := strconv.Atoi(m[2]); err == nil {
		path = append([]string{"items", strconv.Itoa(item - 1)}, path...)
	}
	for _, part := range path {
		next := step(node, strings.Trim(part, "[]"))
		if next == nil {
			break
		}
		node, line = next, next.Line
	}
	return document.start + line - 1
}

// step returns the value of a key or an index, or nil. A key's line is that of the value, which begins beside or below it.
func step(node *yaml.Node, part string) *yaml.Node {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == part {
				value := *node.Content[i+1]
				value.Line = node.Content[i].Line
				return &value
			}
		}
	case yaml.SequenceNode:
		if n, err := strconv.Atoi(part); err == nil && n >= 0 && n < len(node.Content) {
			return node.Content[n]
		}
	case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
	}
	return nil
}

// documents are those of manifests that are not empty. They are split and parsed once: there may be a message about each of 10,000 items.
type documents []document

// document is one of them, with its first line, from 1.
type document struct {
	start int
	root  func() *yaml.Node // nil if it is no YAML
}

func split(manifests string) (out documents) {
	for _, d := range preview.Documents([]byte(manifests)) {
		out = append(out, document{d.Line, sync.OnceValue(func() *yaml.Node {
			var root yaml.Node
			if yaml.Unmarshal(d.Text, &root) != nil || len(root.Content) == 0 {
				return nil
			}
			return root.Content[0]
		})})
	}
	return out
}
