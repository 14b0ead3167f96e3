package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An error names the object, the field, the value, and what to write instead.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const distributor = "apiVersion: versprei.versprei.io/v1beta1\nkind: PodDistributor\nmetadata: {name: web}\nspec:\n  target: {apiVersion: apps/v1, kind: %, name: web}\n  distribution: [{name: x, nodeLabel: {type: a}, weight: W}, {name: N, nodeLabel: {type: b}, weight: 1}]\n"
	edited := func(kind, weight, name string) string {
		return strings.NewReplacer("%", kind, "W", weight, "N", name).Replace(distributor)
	}
	for name, tc := range map[string]struct {
		args []string
		in   string
		want string
	}{
		"a mode without quotes": {args: []string{"preview", "-"}, in: "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {stowage.dev/mode: Off}}\n",
			want: "standard input: document 1 (Namespace shop): metadata.labels[stowage.dev/mode] is false, and a text is expected; write it in quotes"},
		"a Rollout with two": {args: []string{"preview", "-"}, in: "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: web, labels: {a: 1, b: 2}}\n",
			want: "metadata.labels[b] is 2, and a text is expected"},
		"a number that is none": {args: []string{"preview", "-"}, in: edited("Deployment", ".nan", "other"), want: "document 1: a value is .nan or .inf; write a plain number"},
		"a count of letters": {args: []string{"preview", "-"}, in: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: many}\n",
			want: "(Deployment web): spec.replicas is of type string; expected a whole number"},
		"an amount of letters": {args: []string{"preview", "-"}, in: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {memory: memory-limit}}}]}\n",
			want: `spec.containers[0].resources.limits[memory]: "memory-limit" is not a quantity; write it like 500m, 2 or 1Gi`},
		"an amount out of bounds": {args: []string{"preview", "-"}, in: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {memory: 1e99999999999999999999}}}]}\n",
			want: `"1e99999999999999999999" has an exponent outside of -30 to 30`},
		"a test file of text":     {args: []string{"test", file("b_test.yaml", "just a text\n")}, want: "b_test.yaml: the value is of type string; expected an object with fields"},
		"two pools of one name":   {args: []string{"preview", "-"}, in: edited("Deployment", "1", "x"), want: `pool 1: has the same name as pool 0, "x"`},
		"a target in small":       {args: []string{"preview", "-"}, in: edited("deployment", "1", "other"), want: "kind is the kind of a workload as kubectl explain writes it, such as Deployment"},
		"a target with its nodes": {args: []string{"preview", "-"}, in: edited("DaemonSet", "1", "other"), want: "the pods of a DaemonSet have their nodes already; a FlexDaemonsetTemplate sizes them"},
		"a Helm template": {args: []string{"preview", file("t.yaml", "{{- if .Values.x }}\nkind: Pod\n{{ end }}\n")},
			want: "it is a template and no manifest"},
		"a URL":                    {args: []string{"preview", "https://example.com/web.yaml"}, want: "fetch it: curl -sL https://example.com/web.yaml | stowage preview -"},
		"an unknown key of a case": {args: []string{"test", file("a_test.yaml", "apiVersion: cli.stowage.dev/v1alpha1\nkind: Test\ncases:\n- name: first\n- name: second\n  polls: {x: 1}\n")}, want: `cases[1] (second): unknown field "polls"`},
		"a label that is none":     {args: []string{"split", "-", "--by", "a b"}, want: `--by is "a b"; it must be the key of a label`},
		"a negative timeout":       {args: []string{"status", "--wait", "--timeout", "-1s"}, want: "--timeout is -1s; it must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			exit := Main(t.Context(), tc.args, Streams{In: strings.NewReader(tc.in), Out: &bytes.Buffer{}, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false }})
			if exit == 0 || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("exit status %d, and %q is not in\n%s", exit, tc.want, &errs)
			}
			if strings.Contains(errs.String(), "Go struct") || strings.Contains(errs.String(), "json:") {
				t.Errorf("it is for programmers of Go:\n%s", &errs)
			}
		})
	}
	var out bytes.Buffer
	named := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {divisor: x}, annotations: {sizeLimit: much}}\nspec: {containers: [{name: c, image: i}]}\n" // as quantities are
	if exit := Main(t.Context(), []string{"preview", "-"}, Streams{In: strings.NewReader(named), Out: &out, Err: &out, LookupEnv: os.LookupEnv}); exit != 0 {
		t.Errorf("labels with the names of quantities: exit status %d: %s", exit, &out)
	}
	out.Reset()
	if exit := Main(t.Context(), []string{"--version"}, Streams{In: strings.NewReader(""), Out: &out, Err: &out, LookupEnv: os.LookupEnv}); exit != 0 || !strings.HasPrefix(out.String(), "stowage version ") {
		t.Errorf("--version: exit status %d: %s", exit, &out)
	}
}

// In mode Audit, pods are numbered as if they had their seats, and stay as they are.
func TestPreviewOfAudit(t *testing.T) {
	const input = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"stowage.dev/mode": "Audit"}}}
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "web"}},
"template": {"metadata": {"labels": {"app": "web"}, "annotations": {"custom-pod-schedule-strategy": "t=od,base=2,weight=1:t=spot,weight=3"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}}`
	run := func(args ...string) (string, string) {
		var out, errs bytes.Buffer
		if exit := Main(t.Context(), append([]string{"preview", "-"}, args...), Streams{In: strings.NewReader(input), Out: &out, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false }}); exit != 0 {
			t.Fatalf("exit status %d: %s", exit, &errs)
		}
		return out.String(), errs.String()
	}
	out, errs := run()
	for _, want := range []string{"Deployment shop/web  4     spread (audit only)  0 (t=od)", "Deployment shop/web  6     spread (audit only)  1 (t=spot)", "10 pods, 0 changed"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if !strings.Contains(errs, "stowage (audit): spread would make this pod seat 6 of pool 1 (t=spot)") {
		t.Errorf("the seats are not numbered:\n%s", errs)
	}
	if picture, _ := run("-o", "svg"); !strings.Contains(picture, "pool 0: 4 pods") || !strings.Contains(picture, "pool 1: 6 pods") {
		t.Errorf("the picture is\n%s", picture)
	}
}
