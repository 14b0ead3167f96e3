package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/report"
)

// errorText is what a user reads of an error with which a command ends.
func errorText(ctx context.Context, err error) string {
	if errors.Is(err, errInterrupted) || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errInterrupted.Error()
	}
	return report.Plain(err.Error())
}

// printWarnings prints warnings, each text once.
func printWarnings(out io.Writer, texts []string) {
	for _, text := range report.Counted(texts) {
		fmt.Fprintf(out, "Warning: %s\n", bounded.Printable(report.Plain(text)))
	}
}
