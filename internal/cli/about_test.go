package cli

import (
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
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

// The page of a preview has its time, its command and the version. It has no cluster, because a preview asks none.
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

// A page names the cluster by the context and the server that a client was made for.
func TestClusterOfPage(t *testing.T) {
	c := newConnection()
	c.rules.ExplicitPath = "testdata/kubeconfig.yaml"
	if _, _, _, err := c.client(); err != nil || c.cluster != "test, https://127.0.0.1:1" {
		t.Errorf("the cluster is %q, %v", c.cluster, err)
	}
	c.overrides.ClusterInfo.Server = "https://me:hunter2@example.com"
	if _, _, _, err := c.client(); err != nil || c.cluster != "test, https://me:xxxxx@example.com" {
		t.Errorf("the cluster is %q, %v", c.cluster, err)
	}
}

// The status of an object of a kind that is written wrongly names the kind that was meant.
func TestStatusSuggestsTheKind(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	kubernetes := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}).Build()
	i := &inspect.Inspector{Client: kubernetes, Clock: clock.RealClock{}, Heard: func() []string { return nil }, Namespace: "stowage-system", Spread: true}
	l := &statusLoop{Streams: Streams{Out: io.Discard, Err: io.Discard}, inspector: i, statusRun: statusRun{namespace: "shop", names: []string{"deploymnet/web"}}}
	_, err = l.look(t.Context(), t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "there is no deploymnet/web with a policy or a problem in namespace shop; did you mean deployment/web?") || !errors.As(err, new(config.UsageError)) {
		t.Errorf("the error is %v", err)
	}
}
