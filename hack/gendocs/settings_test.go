package main

import (
	"bytes"
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

// The reference of the kinds has each field of the CRDs, with what the API server demands.
func TestAPIReference(t *testing.T) {
	var want bytes.Buffer
	if err := writeAPI(&want, "../../config/crd/bases"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/reference/api.md is not current; run make generate")
	}
	for _, part := range []string{"## PodDistributor", "## FlexDaemonsetTemplate", "## PoolState", "## SeatLedger", "| `spec.distribution[].weight` | integer |", "| `spec.target.name` | string | yes |"} {
		if !bytes.Contains(got, []byte(part)) {
			t.Errorf("%q is missing", part)
		}
	}
}

// The reference of permissions is that of the roles, and each permission has a purpose.
func TestPermissionsReference(t *testing.T) {
	var want bytes.Buffer
	if err := writePermissions(&want, "../../config"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/reference/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/reference/permissions.md is not current; run make generate")
	}
}
