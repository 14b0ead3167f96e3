// Command stowage decides where new pods go, how big they are and what they
// consume. Its subcommands are in package app.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/stowage-dev/stowage/internal/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := app.Main(ctx, os.Args[1:], app.System())
	os.Exit(code)
}
