package suite

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/cli"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// CLI runs a command line of ours against a cluster, and returns its exit status.
func CLI(t *testing.T, c *controlplane.Cluster, args ...string) (out, errs string, exit int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit = cli.Main(t.Context(), append(args, "--kubeconfig", c.Kubeconfig), cli.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, LookupEnv: func(string) (string, bool) { return "", false },
	})
	if strings.Contains(stderr.String(), "goroutine ") {
		t.Errorf("a stack trace: %s", &stderr)
	}
	return stdout.String(), testkit.WithoutProgress(stderr.String()), exit
}

// SpreadOnly leaves out what is of the whole cluster, where other tests are at work.
var SpreadOnly = []string{"--sizing=false", "--peer-pods=false"}
