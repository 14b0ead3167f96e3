package main

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// The reference page is what the flags say.
func TestReferenceIsCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := writeReference(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(got, want.Bytes()) { // the values of the chart come after it
		t.Error("docs/reference/configuration.md is not current; run make generate")
	}
}

// isCurrent checks that a page is what its generator writes, and returns it.
func isCurrent(t *testing.T, page string, write func(io.Writer) error) []byte {
	t.Helper()
	var want bytes.Buffer
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/reference/" + page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/reference/%s is not current; run make generate", page)
	}
	return got
}

// The reference of the kinds has each field of the CRDs, with what the API server demands.
func TestAPIReference(t *testing.T) {
	got := isCurrent(t, "api.md", func(w io.Writer) error { return writeAPI(w, "../../config/crd/bases") })
	for _, part := range []string{"## PodDistributor", "## FlexDaemonsetTemplate", "## PoolState", "## SeatLedger", "| `spec.distribution[].weight` | integer |", "| `spec.target.name` | string | yes |"} {
		if !bytes.Contains(got, []byte(part)) {
			t.Errorf("%q is missing", part)
		}
	}
}

// The references of permissions and of commands are those of the roles and of the help. Each permission has a purpose.
func TestReferencesAreCurrent(t *testing.T) {
	isCurrent(t, "permissions.md", func(w io.Writer) error { return writePermissions(w, "../../config") })
	isCurrent(t, "commands.md", writeCommands)
}
