package cli

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A page has the command, without secrets, as a shell takes it.
func TestCommandLineOfPage(t *testing.T) {
	var got string
	root := &cobra.Command{Use: "stowage"}
	cmd := &cobra.Command{Use: "status", RunE: func(cmd *cobra.Command, _ []string) error { got = commandLine(cmd); return nil }}
	newInspectOptions(cmd)
	cmd.Flags().StringSlice("fail-on", nil, "")
	root.AddCommand(cmd)
	root.SetArgs([]string{"status", "deployment/web", "it's", "--token", "hunter2", "--password=hunter2", "--server", "https://me:hunter2@example.com", "-n", "a b", "--insecure-skip-tls-verify", "--spread=false", "--fail-on", "moved=1,evicted=2"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	const want = `stowage status deployment/web 'it'\''s' --fail-on=moved=1,evicted=2 --insecure-skip-tls-verify '--namespace=a b' --password=SECRET --server=https://me:xxxxx@example.com --spread=false --token=SECRET`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A page of a preview says when it was made, by which command and version; a preview asks no cluster.
func TestPageSaysHowItWasMade(t *testing.T) {
	file := filepath.Join("..", "..", "config", "samples", "spread-annotation.yaml")
	code, shown := run(t, "", nil, "preview", file, "-o", "html")
	made := regexp.MustCompile(`<dt>Made</dt><dd>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC</dd><dt>Command</dt><dd>stowage preview ` + regexp.QuoteMeta(file) + ` --output=html</dd><dt>Version</dt><dd>[^<]+</dd></dl>`)
	if code != 0 || !made.MatchString(shown) {
		t.Errorf("exit status %d; %s is not in\n%.6000s", code, made, shown)
	}
	if _, table := run(t, "", nil, "preview", file); strings.Contains(table, "Made") {
		t.Errorf("the table says it, too:\n%s", table)
	}
}
