package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/migrate"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Each configuration of Datadog's spot scheduling becomes policies, with a line for each field that has no counterpart.
func TestImportDatadog(t *testing.T) {
	for _, name := range []string{"defaults", "config", "annotations", "all-spot", "override", "wrong", "hostile", "twice"} {
		t.Run(name, func(t *testing.T) {
			_, shown := run(t, "", nil, "import", "datadog", "testdata/import/"+name+".yaml")
			testkit.Golden(t, "testdata/import/"+name+".golden", shown)
		})
	}
	if code, shown := run(t, "", nil, "import", "datadog", "testdata/import/defaults.yaml", "--on-demand", "!cloud.google.com/gke-spot", "--spot", "cloud.google.com/gke-spot=true"); code != 0 ||
		!strings.Contains(shown, "matchExpressions:\n    - key: cloud.google.com/gke-spot\n      operator: DoesNotExist\n    name: on-demand\n") {
		t.Errorf("without a label on demand: exit status %d: %s", code, shown)
	}
	for _, args := range [][]string{{"import", "datadog", "-", "--on-demand", "!a b"}, {"import"}, {"import", "other", "x.yaml"}, {"import", "datadog"}, {"import", "datadog", "-", "--spot", "spot"}} {
		if code, shown := run(t, "", nil, args...); code != 2 {
			t.Errorf("%v: exit status %d: %s", args, code, shown)
		}
	}
	if code, shown := run(t, "", nil, "import", "datadog", "testdata/preview/spread.yaml"); code != 1 || !strings.Contains(shown, "no object of the input has the label") {
		t.Errorf("without anything to import: exit status %d: %s", code, shown)
	}
}

// The ConfigMap of cloud-api-adaptor becomes a catalog of the types whose sizes are known.
func TestImportVMCatalog(t *testing.T) {
	for _, args := range [][]string{
		{"adaptor"}, {"adaptor-azure"}, {"adaptor-ibm"}, {"adaptor", "--vm-type", "g4dn.xlarge=4:16Gi:0.526"},
		{"defaults"}, {"adaptor", "--vm-type", "m5.large"}, {"adaptor", "--vm-type", "m5.large=0:8Gi"}, {"adaptor", "--vm-type", "m5.large=2:-1"}, {"adaptor", "--vm-type", "m5.large=2:8Gi:$1"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			_, shown := run(t, "", nil, append([]string{"import", "vmcatalog", "testdata/import/" + args[0] + ".yaml"}, args[1:]...)...)
			name := strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
					return r
				}
				return '-'
			}, strings.ToLower(strings.Join(args, "-")))
			testkit.Golden(t, "testdata/import/vmcatalog-"+name+".golden", shown)
		})
	}
}

// What import prints is taken by preview, which divides the workloads so. Of 10 pods with one at least on demand and then half and
// half, 5 are on spot nodes.
func TestImportIsPreviewed(t *testing.T) {
	var policies bytes.Buffer
	s := Streams{Out: &policies, Err: &bytes.Buffer{}, LookupEnv: func(string) (string, bool) { return "", false }, Environ: func() []string { return nil }}
	if code := Main(t.Context(), []string{"import", "datadog", "testdata/import/defaults.yaml", "testdata/import/config.yaml"}, s); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	workload := `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx}
spec:
  replicas: 10
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: search, namespace: shop}
spec:
  replicas: 12
  selector: {matchLabels: {app: search}}
  template:
    metadata: {labels: {app: search, autoscaling.datadoghq.com/spot-enabled: "true"}}
    spec: {containers: [{name: c, image: i}]}
`
	file := filepath.Join(t.TempDir(), "all.yaml")
	enforced := strings.Replace(policies.String(), "mode: Audit", "mode: Enforce", 1)
	if err := os.WriteFile(file, []byte(enforced+workload), 0o644); err != nil {
		t.Fatal(err)
	}
	code, shown := run(t, "", nil, "preview", file)
	for _, row := range []string{"Deployment default/nginx  6", "Deployment default/nginx  4", "Deployment shop/search    5", "Deployment shop/search    7"} {
		if code != 0 || !strings.Contains(shown, row) {
			t.Errorf("%q is missing (exit status %d) in\n%s", row, code, shown)
		}
	}
}

// What import prints of a hostile input is the policies and nothing else: no object comes out of a comment or of a value.
func TestImportOfHostileInput(t *testing.T) {
	code, shown := run(t, "", nil, "import", "datadog", "testdata/import/hostile.yaml")
	manifests, _, _ := strings.Cut(shown, "--- standard error ---")
	_, manifests, _ = strings.Cut(manifests, "\n") // the command
	objects, err := decodeObjects(strings.NewReader(manifests))
	if code != 0 || err != nil {
		t.Fatalf("exit status %d, %v", code, err)
	}
	var kinds []string
	for _, u := range objects {
		kinds = append(kinds, u.GetKind())
	}
	if want := []string{"ClusterSpreadPolicy", "PodDistributor", "PodDistributor"}; !slices.Equal(kinds, want) {
		t.Errorf("the output has %v; want %v", kinds, want)
	}
}

// A note is one comment, whatever it has.
func TestNotesAreOneLine(t *testing.T) {
	var out bytes.Buffer
	note := "a\nb\rc\u0085d\u2028e\x1b[1m 'f' \"g\""
	if err := printPolicies(&out, []migrate.Policy{{Object: map[string]any{"kind": "X"}, Notes: []string{note}}}); err != nil {
		t.Fatal(err)
	}
	if want := `# a\nb\rc\u0085d\u2028e\x1b[1m 'f' "g".` + "\nkind: X\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
