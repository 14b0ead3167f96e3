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
