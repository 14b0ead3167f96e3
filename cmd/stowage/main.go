// Command stowage decides where new pods go, how big they are and what they
// consume. Its subcommands are in package cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/stowage-dev/stowage/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := cli.Main(ctx, os.Args[1:], cli.System())
	os.Exit(code)
}
