package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// wordsOfGo are words that only programmers of Go know. No message has one.
var wordsOfGo = regexp.MustCompile(`strconv|struct field|cannot unmarshal|unmarshal|invalid syntax|Go value|goroutine|panic|nil pointer|\*errors\.|%!|map\[string\]|interface \{\}|context canceled|: json:|EOF`)

// A hostile command line. In it, ␛ is the escape byte, ␣ a space, ␤ a line end and ∅ an empty argument; a word that ends with .yaml, .json or .txt is a
// file of [hostileFiles].
type hostileLine struct {
	exit int
	line string
}

var hostileFiles = map[string]string{
	"escape.yaml":  "apiVersion: v1\nkind: Pod\nmetadata: {name: \"a\\e[31mb\", labels: {\"\\e]0;x\\a\": y}}\nspec: {containers: [{name: c, image: \"\\e[2J\"}]}\n",
	"shown.yaml":   "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {custom-pod-schedule-strategy: \"\\e[31m\"}}\nspec: {runtimeClassName: \"kata\\e[2J\", containers: [{name: c, image: i}]}\n",
	"binary.yaml":  "\x00\x1b[31m\xff\xfe\x9b",
	"text.yaml":    "just a text\n",
	"list.yaml":    "- a\n- b\n",
	"tabs.yaml":    "apiVersion: v1\n\tkind: Pod\n",
	"alias.yaml":   "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n",
	"half.json":    `{"apiVersion": "v1", "kind":`,
	"number.json":  `1e400`,
	"types.yaml":   "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: [web]}\nspec: {replicas: many, template: 7}\n",
	"types2.yaml":  "apiVersion: argoproj.io/v1alpha1\nkind: CloneSet\nmetadata: 7\nspec: {replicas: []}\n",
	"amount.yaml":  "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {memory: memory-limit, cpu: 1e99999}}}]}\n",
	"zone.yaml":    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeSelector: {topology.kubernetes.io/zone: 1}, containers: [{name: c, image: i}]}\n",
	"policy.yaml":  "apiVersion: stowage.dev/v1alpha1\nkind: SpreadPolicy\nmetadata: {name: p}\nspec: {pools: 3, mode: {}, selector: \"\\e[1m\"}\n",
	"empty.yaml":   "",
	"case.yaml":    "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: 7\ncases: \"\\e[1m\"\n",
	"case2.yaml":   "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: [pod.yaml]\ncases:\n- name: \"a\\e[1m\"\n  replicas: many\n",
	"case3.yaml":   "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: [pod.yaml]\ncases:\n- name: a\n  flags: [--replicas, \"a\\eb\"]\n",
	"case4.yaml":   "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: [pod.yaml]\ncases:\n- name: \"a\\e[1m\"\n  expect: {warnings: [\"b\\e[1m\"]}\n",
	"pod.yaml":     "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n",
	"config.yaml":  "apiVersion: v1\nkind: Config\nclusters: 7\n",
	"config2.yaml": "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}]\ncontexts: [{name: a, context: {cluster: a, user: b}}]\ncurrent-context: a\nusers: [{name: b, user: {token: \"\\e[31m\"}}]\n",
	"config3.yaml": "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"://\\e[31m\"}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n",
	"note.txt":     "no manifest\x1b[31m",
}

var hostileLines = []hostileLine{
	// Commands.
	{2, "previw"}, {2, "stat"}, {2, "PREVIEW"}, {2, "␛[31mred"}, {2, "∅"}, {2, "␣"}, {2, "preview␤status"}, {2, "../../etc/passwd"}, {2, "%s%d%n"}, {2, "-"},
	{2, "help nothing"}, {2, "help ␛[1m"}, {2, "help preview nothing"}, {0, "help preview"}, {0, "help"}, {0, "--help"}, {0, "-h"}, {0, "preview --help ␛[1m"},
	{0, "completion"}, {2, "completion tcsh"}, {2, "completion ␛c"}, {2, "completion bash zsh"}, {2, "completion bash --bogus"}, {0, "completion fish"},
	{0, "version"}, {2, "version now"}, {2, "version ␛[1m"}, {2, "version --bogus"}, {0, "--version"}, {2, "--version=perhaps"},
	// Flags.
	{2, "--bogus"}, {2, "--␛[31m"}, {2, "--=x"}, {2, "---"}, {2, "-␛"}, {2, "-xyz"}, {2, "preview --replcas 3 pod.yaml"}, {2, "preview --replicas"}, {2, "preview --replicas abc pod.yaml"},
	{2, "preview --replicas ␛[1m pod.yaml"}, {2, "preview --replicas 1.5 pod.yaml"}, {2, "preview --replicas 0x10g pod.yaml"}, {2, "preview --replicas 99999999999999999999 pod.yaml"},
	{2, "preview --replicas=-1 pod.yaml"}, {2, "preview --replicas 100001 pod.yaml"}, {2, "preview --replicas= pod.yaml"}, {2, "preview --replicas ∅ pod.yaml"}, {2, "preview --plot=abc pod.yaml"},
	{2, "preview --strict=␛ pod.yaml"}, {2, "preview -o xml pod.yaml"}, {2, "preview -o ␛[31m pod.yaml"}, {2, "preview -o ∅ pod.yaml"}, {2, "preview -o TABLE pod.yaml"}, {2, "preview -otable,yaml pod.yaml"},
	{2, "preview --plot -o svg pod.yaml"}, {2, "preview --spread=maybe pod.yaml"}, {2, "preview --spread=false -o svg pod.yaml"},
	{2, `preview --exhausted a"b pod.yaml`}, {2, "preview --exhausted =3 pod.yaml"}, {2, "preview --exhausted a=b pod.yaml"}, {2, "preview --exhausted a=-1 pod.yaml"}, {2, "preview --exhausted a=␛ pod.yaml"},
	{2, "preview --exhausted a=99999999999999999999 pod.yaml"}, {1, "preview --exhausted ␛[1m pod.yaml"}, {2, "preview --peerpods-sizing Half pod.yaml"}, {2, "preview --peerpods-sizing ␛[1m pod.yaml"},
	{2, "preview --pod-vm-extended-resource vm␛ pod.yaml"},
	// Inputs.
	{2, "preview"}, {2, "preview - -"}, {2, "preview -f - -"}, {1, "preview ∅"}, {1, "preview nowhere"}, {1, "preview ␛[31mnowhere"}, {1, "preview %s%d"}, {1, "preview https://example.com/␛[1m"},
	{1, "preview -"}, {1, "preview escape.yaml"}, {1, "preview shown.yaml"}, {1, "preview shown.yaml -o yaml"}, {1, "preview binary.yaml"}, {1, "preview text.yaml"}, {1, "preview list.yaml"}, {1, "preview tabs.yaml"},
	{1, "preview alias.yaml"}, {1, "preview half.json"}, {1, "preview number.json"}, {1, "preview types.yaml"}, {1, "preview types2.yaml"}, {1, "preview amount.yaml"}, {1, "preview zone.yaml"}, {1, "preview policy.yaml"},
	{1, "preview empty.yaml"}, {1, "preview note.txt"}, {1, "preview case.yaml"}, {1, "preview escape.yaml -o json"}, {1, "preview escape.yaml -o html"}, {1, "preview pod.yaml -n ␛[1m --exhausted x"},
	{0, "preview pod.yaml --stowage-namespace ␛[1m"}, {0, "preview pod.yaml"}, {1, "preview /dev/null"}, {1, "preview pod.yaml/x"},
	// Tests, splits and imports.
	{2, "test"}, {1, "test nowhere"}, {1, "test ␛[31m"}, {1, "test text.yaml"}, {1, "test list.yaml"}, {1, "test binary.yaml"}, {1, "test case.yaml"}, {1, "test case2.yaml"}, {1, "test case3.yaml"}, {3, "test case4.yaml"},
	{1, "test pod.yaml"}, {1, "test half.json"}, {1, "test case4.yaml --junit /nowhere/␛"}, {2, "test --quiet=x case4.yaml"}, {2, "test --updat case4.yaml"},
	{2, "split"}, {2, "split --by a␣b pod.yaml"}, {2, "split --by ␛[1m pod.yaml"}, {2, "split --by ∅ pod.yaml"}, {1, "split nowhere"}, {1, "split binary.yaml"}, {1, "split pod.yaml"},
	{2, "import"}, {2, "import foo"}, {2, "import ␛[1m"}, {1, "import datadog nowhere"}, {1, "import datadog binary.yaml"}, {2, "import datadog --bogus"},
	// A cluster, which there is none of.
	{1, "status"}, {1, "status deploymnet/web"}, {2, "status web"}, {2, "status a/b/c"}, {2, "status /"}, {2, "status ␛[1m"}, {2, "status -A deployment/web"}, {2, "status -w --wait"}, {2, "status --timeout 5s"},
	{2, "status --wait --timeout -1s"}, {2, "status --wait --timeout abc"}, {2, "status --wait --timeout 5"}, {2, "status -o ␛"}, {1, "status --kubeconfig nowhere"}, {1, "status --kubeconfig ␛[1m"},
	{1, "status --kubeconfig text.yaml"}, {1, "status --kubeconfig binary.yaml"}, {1, "status --kubeconfig config.yaml"}, {1, "status --kubeconfig config2.yaml"}, {1, "status --kubeconfig config3.yaml"},
	{1, "status --context ␛[1m --kubeconfig config2.yaml"}, {1, "status --kubeconfig pod.yaml"}, {2, "status --stowage-namespace ␛[1m"}, {2, "status --insecure-skip-tls-verify=x"}, {1, "status --server ␛[1m"},
	{2, "explain"}, {2, "explain pod"}, {2, "explain pod a b"}, {2, "explain /"}, {2, "explain pod/"}, {1, "explain pdo/web"}, {1, "explain ␛[1m ␛[2m"}, {2, "explain pod a -o xml"}, {2, "check now"}, {1, "check"}, {2, "check --timeout abc"},
	{2, "check -o ␛"}, {2, "impact --replicas abc"}, {2, "impact --replicas deployment/web=abc"}, {2, "impact --replicas ␛[1m=3"}, {2, "impact --replicas deployment/web=99999999999999"}, {2, "impact --remove web"},
	{2, "impact --remove ␛[1m/x"}, {2, "impact --fail-on moved"}, {2, "impact --fail-on moved=abc"}, {2, "impact --fail-on moved=NaN"}, {2, "impact --fail-on ␛[1m=3"}, {2, "impact - -"}, {1, "impact nowhere"}, {2, "impact -o ␛[1m"},
	{1, "impact --prices nowhere"}, {2, "ungate a/b/c"}, {2, "ungate ␛[1m"}, {2, "ungate node/x"}, {2, "ungate -A web-0"}, {1, "ungate web-0"}, {2, "ungate ∅"},
	// Settings.
	{2, "serve now"}, {2, "serve --port abc"}, {2, "serve --port ␛[1m"}, {2, "serve --port 0"}, {2, "serve --log-level ␛[1m"}, {2, "serve --drain-timeout abc"}, {2, "serve --namespace ␛[1m"}, {2, "serve --bogus"},
	{2, "serve --tls-cipher-suites ␛[1m"}, {2, "serve --eviction-rate abc"}, {2, "serve --eviction-rate NaN"}, {2, `serve --client-names a"b`},
	// What shells ask.
	{1, "__complete"}, {0, "__complete ␛[1m"}, {0, "__complete status ␛[1m/"}, {0, "__complete preview -o ␛"}, {0, "__complete --bogus"},
}

// Whatever a command line has, the exit status is as docs/reference/exit-codes.md has it, an error says something in words that are not of Go, and no
// byte gets out that a terminal obeys.
func TestHostileCommandLines(t *testing.T) {
	dir := t.TempDir()
	for name, text := range hostileFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", dir)
	t.Setenv("KUBERNETES_MASTER", "")
	if len(hostileLines) < 150 {
		t.Fatalf("%d command lines", len(hostileLines))
	}
	characters := strings.NewReplacer("␛", "\x1b", "␣", " ", "␤", "\n", "∅", "")
	for _, tc := range hostileLines {
		t.Run(tc.line, func(t *testing.T) {
			args := strings.Fields(tc.line)
			for i := range args {
				args[i] = characters.Replace(args[i])
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var out, errs bytes.Buffer
			exit := Main(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false }, Environ: func() []string { return nil }})
			if exit != tc.exit {
				t.Errorf("exit status %d, want %d", exit, tc.exit)
			}
			if exit != 0 && exit != 3 && !strings.Contains(errs.String(), "Error: ") {
				t.Error("no error is told")
			}
			if word := wordsOfGo.FindString(errs.String()); word != "" {
				t.Errorf("%q is for programmers of Go", word)
			}
			if raw := strings.IndexFunc(out.String()+errs.String(), hidden); raw >= 0 {
				t.Errorf("a control character is at %d", raw)
			}
			if t.Failed() {
				t.Logf("standard output:\n%.600q\nstandard error:\n%q", out.String(), errs.String())
			}
		})
	}
}

// Foreign control characters are written in letters, and the program's own colors as they are.
func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain\tä → ✓\n":              "plain\tä → ✓\n",
		"\x1b[31mred\x1b[2J\a\r\x7f":  `\u001b[31mred\u001b[2J\u0007\u000d\u007f`,
		"\x1b[32mgood\x1b[0m\x1b[32k": "\x1b[32mgood\x1b[0m" + `\u001b[32k`,
		"\u009b1m\u202egpj.exe":       `\u009b1m\u202egpj.exe`,
	} {
		var out bytes.Buffer
		if n, err := (&visible{&out, colors}).Write([]byte(text)); err != nil || n != len(text) || out.String() != want {
			t.Errorf("%q is written as %q (%d, %v), want %q", text, &out, n, err, want)
		}
	}
}

// The first Ctrl-C ends a command that waits for its input.
func TestInterruptedInput(t *testing.T) {
	never, _ := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	var errs bytes.Buffer
	exits := make(chan int)
	go func() {
		exits <- Main(ctx, []string{"preview", "-"}, Streams{In: never, Out: io.Discard, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false }})
	}()
	select {
	case exit := <-exits:
		if exit != 1 || errs.String() != "Error: ended by a signal\n" {
			t.Errorf("exit status %d: %s", exit, &errs)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it still waits")
	}
}

// An input is read as it is, however large the reads are that are asked for.
func TestInputIsReadWhole(t *testing.T) {
	want := strings.Repeat("0123456789", 50_000)
	got, err := io.ReadAll(&interruptible{in: strings.NewReader(want), done: t.Context().Done()})
	if err != nil || string(got) != want {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

// An unknown word is answered with the known one that it is like.
func TestSuggestions(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a command":          {[]string{"previw"}, `unknown command "previw"; did you mean preview?`},
		"its beginning":      {[]string{"stat"}, "did you mean status?"},
		"a topic of help":    {[]string{"help", "previw"}, "did you mean preview?"},
		"nothing like it":    {[]string{"frobnicate"}, `unknown command "frobnicate"` + "\n"},
		"a flag":             {[]string{"preview", "--replcas", "3"}, "unknown flag: --replcas; did you mean --replicas?"},
		"a shell":            {[]string{"completion", "tcsh"}, `there is no completion for "tcsh"; the shells are bash, fish, powershell, zsh`},
		"a count":            {[]string{"impact", "--replicas", "abc"}, `--replicas is "abc"; it must be KIND/NAME=N`},
		"no kubeconfig":      {[]string{"status"}, ".kube/config), so no cluster is known; name one with --kubeconfig or $KUBECONFIG"},
		"no such context":    {[]string{"status", "--kubeconfig", "testdata/kubeconfig.yaml", "--context", "prod"}, `the kubeconfig has no context "prod"; kubectl config get-contexts lists`},
		"a zone of Azure":    {[]string{"preview", "testdata/azure.yaml"}, "spec.across.domains[0].value: it is of type integer, and a text is expected; write it in quotes"},
		"a file that is not": {[]string{"status", "--kubeconfig", "cli.go"}, "the kubeconfig cannot be used"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, shown := run(t, "", nil, tc.args...); !strings.Contains(shown, tc.want) {
				t.Errorf("%q is not in\n%s", tc.want, shown)
			}
		})
	}
	for object, want := range map[string]string{"deploymnet/web": "; did you mean deployment/web?", "deploy/web": "", "deployments/web": "", "wombat/web": "", "statefullset/db": "; did you mean statefulset/db?"} {
		if got := didYouMean(likeKinds([]string{object})...); got != want {
			t.Errorf("%s: %q, want %q", object, got, want)
		}
	}
}
