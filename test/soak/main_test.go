// Package soak tests what tenants and strangers can cost others: on a real control plane, by doing the worst that is known. It also does
// for long what people do all day.
package soak

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stowage-dev/stowage/test/suite"
)

var (
	minutes = flag.Int("minutes", 0, "how long TestSoak and TestNothingHeldIsEvicted go on in all; 0 leaves the first one out")
	state   = flag.String("state", "", "file with the rounds of TestSoak that are done; it goes on from there")
)

func TestMain(m *testing.M) {
	suite.ReviewTimeout = 5
	os.Exit(suite.Run(false, func(context.Context) (int, error) { return m.Run(), nil }))
}

// notRun skips a test where the machine lacks something.
func notRun(t *testing.T, format string, args ...any) {
	t.Helper()
	fmt.Printf("NOT RUN %s: %s\n", t.Name(), fmt.Sprintf(format, args...))
	t.Skipf("NOT RUN: "+format, args...)
}
