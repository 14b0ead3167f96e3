package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a test file and its manifests write does not reach the terminal as it is.
func TestTestPrintsNothingRaw(t *testing.T) {
	for name, tc := range map[string]struct {
		test  string
		code  int
		parts []string
	}{
		"a name and an expectation": {
			test:  `cases: [{name: "red \e[31m", expect: {workloads: [{workload: "Pod default/\e[31m"}]}}]`,
			code:  3,
			parts: []string{`FAILED   `, `red \x1b[31m`, `- Pod default/\x1b[31m`},
		},
		"an error":     {test: "cases: [{name: one, \"k\\e[31m\": 1}]", code: 1, parts: []string{`unknown field`, `\x1b[31m`}},
		"other bytes":  {test: "cases: \xff\x00", code: 1, parts: []string{"it is no text"}},
		"other number": {test: "cases: [] # gr\xfcn", code: 1, parts: []string{"line 4 is no UTF-8"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test := filepath.Join(dir, "a-stowage-test.yaml")
			for file, text := range map[string]string{
				test:                           "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: [pod.yaml]\n" + tc.test + "\n",
				filepath.Join(dir, "pod.yaml"): "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n",
			} {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			code, shown := run(t, "", nil, "test", test)
			if code != tc.code {
				t.Errorf("exit status %d, want %d", code, tc.code)
			}
			for _, part := range tc.parts {
				if !strings.Contains(shown, part) {
					t.Errorf("%q is missing in\n%q", part, shown)
				}
			}
			if strings.Contains(shown, "\x1b") {
				t.Errorf("an escape sequence:\n%q", shown)
			}
		})
	}
}
