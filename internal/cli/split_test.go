package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/test/testkit"
)

// Each class of nodes gets a DaemonSet whose template has the size of the pods there, and all other nodes keep theirs.
func TestSplit(t *testing.T) {
	const input, file = "testdata/split.yaml", "testdata/split.golden"
	_, shown := run(t, "", nil, "split", input)
	_, wrong := run(t, "", nil, "split", "--by", "", "testdata/split.yaml")
	_, none := run(t, "", nil, "split", "testdata/preview/spread.yaml")
	testkit.Golden(t, file, shown+wrong+none)
}

// What split prints has one pod for each node, each of the size that its own template has. A second split leaves the
// DaemonSets of the first as they are.
func TestSplitIsPlanned(t *testing.T) {
	var sets bytes.Buffer
	if code := Main(t.Context(), []string{"split", "testdata/split.yaml"}, Streams{Out: &sets, Err: &bytes.Buffer{}, LookupEnv: func(string) (string, bool) { return "", false }, Environ: func() []string { return nil }}); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "again.yaml")
	rest, _, _ := strings.Cut(read(t, "testdata/split.yaml"), "---\napiVersion: apps/v1")
	if err := os.WriteFile(file, []byte(rest+"---\n"+sets.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	_, shown := run(t, "", nil, "preview", file)
	for _, line := range []string{"agent-m5-16xlarge  1     sizing    large    6300m", "agent-m5-xlarge    1     sizing    small-1  390m",
		"agent-m5-xlarge    1     sizing    small-2  392m", "agent              1     sizing    other    800m"} {
		if !strings.Contains(shown, "DaemonSet monitoring/"+line) {
			t.Errorf("no DaemonSet %s in\n%s", line, shown)
		}
	}
	if _, again := run(t, "", nil, "split", file); !strings.Contains(again, "nothing to split") {
		t.Errorf("a second split printed\n%s", again)
	}
}
