package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/test/testkit"
)

// run runs a command line and renders all that a user sees of it.
func run(t *testing.T, stdin string, env map[string]string, args ...string) (code int, shown string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), args, Streams{
		In: strings.NewReader(stdin), Out: &out, Err: &errs,
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Environ: func() (out []string) {
			for name, value := range env {
				out = append(out, name+"="+value)
			}
			return out
		},
	})
	return code, fmt.Sprintf("$ stowage %s\n%s--- standard error ---\n%s--- exit status %d ---\n", strings.Join(args, " "), out.String(), testkit.WithoutProgress(errs.String()), code)
}

// Each input in testdata/preview is previewed as a table and as YAML; the golden
// file beside it holds both.
func TestPreviewGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/preview/*.[yj][as][mo]*")
	if err != nil {
		t.Fatal(err)
	}
	var golden []string
	for _, input := range inputs {
		name := strings.TrimSuffix(filepath.Base(input), filepath.Ext(input))
		file := filepath.Join("testdata/preview", name+".golden")
		golden = append(golden, file)
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for _, format := range []string{"table", "yaml"} {
				_, shown := run(t, "", nil, "preview", "-f", input, "-o", format)
				got.WriteString(shown)
			}
			testkit.Golden(t, file, got.String())
		})
	}
	stale, err := filepath.Glob("testdata/preview/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stale {
		if !slices.Contains(golden, file) {
			t.Errorf("%s belongs to no input", file)
		}
	}
}

func TestPreviewCalls(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {runtimeClassName: mine, containers: [{name: c, image: c, resources: {requests: {cpu: 1}}}]}\n"
	outer := t.TempDir()
	dir := filepath.Join(outer, "inner")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pod.yaml"), []byte(pod), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte("no manifest"), 0o644); err != nil {
		t.Fatal(err)
	}
	deployment := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":2,"selector":{},"template":{"spec":{"containers":[{"name":"c"}]}}}}`
	short := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","annotations":{"custom-pod-schedule-strategy":"p=a,weight=1:p=b,weight=4","stowage.dev/spill":"2m"}},` +
		`"spec":{"replicas":10,"selector":{},"template":{"spec":{"containers":[{"name":"c"}]}}}}`
	together := func(key string) string { // the pods have an affinity to each other
		affinity := `"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"` + key + `","labelSelector":{"matchLabels":{"app":"d"}}}]}},"containers"`
		return strings.ReplaceAll(short, `"template":{"spec":{"containers"`, `"template":{"metadata":{"labels":{"app":"d"}},`+affinity)
	}
	rollout := `{"apiVersion":"argoproj.io/v1alpha1","kind":"Rollout","metadata":{"name":"web"},"spec":{"workloadRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"absent"}}}`
	cases := map[string]struct {
		args  []string
		stdin string
		env   map[string]string
		code  int
		parts []string
	}{
		"a pool without room":   {args: []string{"-", "--exhausted", "1=3", "--plot"}, stdin: short, parts: []string{"10  7  3"}},
		"one without any room":  {args: []string{"-", "--exhausted", "1", "--plot"}, stdin: short, parts: []string{"10  10  0"}},
		"one whose pods wait":   {args: []string{"-", "--exhausted", "1"}, stdin: strings.ReplaceAll(short, "stowage.dev/spill", "other"), parts: []string{"pool 1 has no spill"}},
		"one that is not there": {args: []string{"-", "--exhausted", "spot"}, stdin: short, code: 1, parts: []string{"no workload of the input has a pool spot"}},
		"one with a wrong room": {args: []string{"-", "--exhausted", "1=x"}, stdin: short, code: 2, parts: []string{"--exhausted is \"1=x\"; it must be"}},
		"standard input":        {args: []string{"-f", "-"}, stdin: pod, parts: []string{"Pod default/p", "unchanged"}},
		"a directory":           {args: []string{"-f", dir}, parts: []string{"Pod default/p"}},
		"a target of one's own": {args: []string{"-f", dir, "--target-runtimeclass", "mine"}, parts: []string{"peer-pods", `RuntimeClass "mine" is not in the input`}},
		"the same by variable":  {args: []string{"-f", dir}, env: map[string]string{"TARGET_RUNTIMECLASS": "mine"}, parts: []string{"peer-pods"}},
		"the feature off":       {args: []string{"-f", dir, "--target-runtimeclass", "mine", "--peer-pods=false"}, parts: []string{"unchanged"}},
		"a namespace":           {args: []string{"-f", dir, "-n", "shop"}, parts: []string{"Pod shop/p"}},
		"a system namespace":    {args: []string{"-f", dir, "-n", "kube-system"}, parts: []string{"left alone: namespace kube-system is never touched"}},
		"replicas":              {args: []string{"-f", "-", "--replicas", "5"}, stdin: deployment, parts: []string{"Deployment default/d  5 "}},
		"no replicas":           {args: []string{"-f", "-", "--replicas", "0", "-o", "json"}, stdin: deployment, parts: []string{`"items": []`}},
		"no input named":        {code: 2, parts: []string{"name an input"}},
		"standard input twice":  {args: []string{"-f", "-", "-f", "-"}, code: 2, parts: []string{"more than once"}},
		"an unknown format":     {args: []string{"-f", dir, "-o", "xml"}, code: 2, parts: []string{`-o is "xml"`, "table, yaml, json"}},
		"negative replicas":     {args: []string{"-f", dir, "--replicas=-1"}, code: 2, parts: []string{"--replicas is -1"}},
		"an unknown flag":       {args: []string{"--frobnicate"}, code: 2, parts: []string{"unknown flag: --frobnicate"}},
		"an argument":           {args: []string{dir}, parts: []string{"Pod default/p"}},
		"not its directories":   {args: []string{outer}, code: 1, parts: []string{"has no .yaml, .yml or .json file"}},
		"its directories, too":  {args: []string{"-R", outer}, parts: []string{"Pod default/p"}},
		"a warning":             {args: []string{dir, "--target-runtimeclass", "mine"}, parts: []string{"Warning: "}},
		"a strict warning":      {args: []string{dir, "--target-runtimeclass", "mine", "--strict"}, code: 1, parts: []string{"Warning: ", "Error: there are warnings"}},
		"strict, and all well":  {args: []string{"-", "--strict"}, stdin: deployment, parts: []string{"2 pods, 0 changed"}},
		"pinned pods":           {args: []string{"-", "--strict"}, stdin: strings.ReplaceAll(short, `"spec":{"containers"`, `"spec":{"nodeName":"n","containers"`), code: 1, parts: []string{"Warning: Deployment default/d: the annotation of Deployment d has no effect: the pod chooses its nodes itself, by spec.nodeName, so it has no seat"}},
		"pods held together":    {args: []string{"-", "--strict"}, stdin: together(corev1.LabelHostname), code: 1, parts: []string{"the required affinity to pods over kubernetes.io/hostname keeps them all on one node, and the strategy divides them over pools that share no node", "Error: there are warnings"}},
		"held together by zone": {args: []string{"-"}, stdin: together(corev1.LabelTopologyZone), parts: []string{"keeps them all in one domain: pods of a pool without nodes in that domain wait"}},
		"one object twice":      {args: []string{"-", "--strict"}, stdin: pod + "---\n" + pod, code: 1, parts: []string{"Pod default/p  1 ", "(Pod default/p): the same object is in standard input: document 1, too", "Error: there are warnings"}},
		"a bad setting":         {args: []string{"-f", dir, "--peerpods-sizing", "Half"}, code: 2, parts: []string{`sizing "Half"`}},
		"a missing file":        {args: []string{"-f", "nowhere.yaml"}, code: 1, parts: []string{"nowhere.yaml: no such file"}},
		"a directory without":   {args: []string{"-f", t.TempDir()}, code: 1, parts: []string{"has no .yaml, .yml or .json file"}},
		"too many replicas":     {args: []string{"-f", "-"}, stdin: strings.Replace(deployment, `"replicas":2`, `"replicas":2000000000`, 1), code: 1, parts: []string{"spec.replicas", "between 0 and 100000"}},
		"flow YAML":             {args: []string{"-f", "-"}, stdin: "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}\n---\n" + pod, parts: []string{"Pod default/p"}},
		"Windows line ends":     {args: []string{"-f", "-"}, stdin: strings.ReplaceAll(pod+"---\n"+strings.Replace(pod, "name: p", "name: q", 1), "\n", "\r\n"), parts: []string{"2 pods"}},
		"Lists without an end":  {args: []string{"-f", "-"}, stdin: strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 5000) + strings.Repeat("]}", 5000), code: 1, parts: []string{"nested more than 8 deep"}},
		"escape sequences":      {args: []string{"-"}, stdin: strings.ReplaceAll(short, `"stowage.dev/spill":"2m"`, `"stowage.dev/across":"\u001b[31m","stowage.dev/\u001b[31mx":""`), parts: []string{`stowage.dev/across is "\x1b[31m" and is ignored`, `stowage.dev/\x1b[31mx is no key`}},
		"a text in UTF-16":      {args: []string{"-"}, stdin: "\xff\xfek\x00i\x00n\x00d\x00", code: 1, parts: []string{"standard input: it is UTF-16; save it as UTF-8"}},
		"a lone Rollout":        {args: []string{"-"}, stdin: rollout, code: 1, parts: []string{"Error: standard input: document 1 (Rollout default/web): Deployment absent, which spec.workloadRef names, is not in the input, and there is no other workload"}},
		"an empty input":        {args: []string{"-"}, code: 1, parts: []string{"Error: standard input: no pod and no workload in the input\n"}},
		"half a JSON object":    {args: []string{"-f", "-"}, stdin: `{"kind":`, code: 1, parts: []string{"standard input: document 1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, shown := run(t, tc.stdin, tc.env, append([]string{"preview"}, tc.args...)...)
			if code != tc.code {
				t.Errorf("exit status %d, want %d", code, tc.code)
			}
			for _, part := range tc.parts {
				if !strings.Contains(shown, part) {
					t.Errorf("%q is missing in\n%s", part, shown)
				}
			}
			if strings.Contains(shown, "\x1b") {
				t.Errorf("an escape sequence:\n%q", shown)
			}
			if strings.Contains(shown, "goroutine ") {
				t.Errorf("a stack trace:\n%s", shown)
			}
		})
	}
}

// The pictures of the spread.
func TestPreviewPictures(t *testing.T) {
	const samples = "../../config/samples/"
	for name, args := range map[string][]string{
		"plot":       {"-f", samples, "-f", "../../hack/nodes/sizes.yaml", "--replicas", "12", "--plot"},
		"plot-large": {"-f", samples + "spread-annotation.yaml", "--replicas", "1000", "--plot"},
		"svg":        {"-f", samples + "spread-annotation.yaml", "-f", samples + "spread-poddistributor.yaml", "-o", "svg"},
		"nothing":    {"-f", samples + "peerpod.yaml", "--plot"},
		"both":       {"-f", samples, "--plot", "-o", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := run(t, "", nil, append([]string{"preview"}, args...)...)
			testkit.Golden(t, filepath.Join("testdata/pictures", name+".golden"), got)
		})
	}
}
