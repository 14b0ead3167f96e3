//go:build !offline

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/logging"
	"github.com/stowage-dev/stowage/internal/server"
)

func newServeCommand(s Streams) *cobra.Command {
	o := server.DefaultOptions()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the webhook and the controllers",
		Long: `Run the admission webhook: /mutate-v1-pod and /mutate (pods) and
/validate-workload (warnings about strategies) on --port, /healthz and /readyz on
--health-probe-bind-address, /metrics on --metrics-bind-address. One replica, elected,
runs the controllers, too: status of PodDistributors and FlexDaemonsetTemplates,
repair, rebalancing, in-place resizing, VM capacity of nodes.

With --webhook or --controllers a process runs that part alone, as the two Deployments
of an installation do. Then the processes that answer the API server have few rights.
The controllers make the certificate and the key that the webhook waits for.

Every flag can be given as an environment variable, named in brackets. A flag
wins over its variable.`,
		Example: `  # In the cluster, with a certificate of its own
  stowage serve

  # The two parts, each in a process of its own
  stowage serve --webhook
  stowage serve --controllers

  # On this machine, against the current kubeconfig, with a certificate from files
  stowage serve --cert-dir ./certs --log-level DEBUG --log-format text`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(config.UnknownVariables(cmd.Flags(), s.Environ()), config.ApplyEnv(cmd.Flags(), s.LookupEnv), o.Validate()); err != nil {
				return config.NewSettingsError(cmd.Flags(), fmt.Errorf("invalid settings:\n%w", err))
			}
			level, _ := config.ParseLogLevel(o.LogLevel) // validated above
			var current slog.LevelVar
			current.Set(level)
			reloader := server.NewReloader(o, cmd.Flags(), &current, logging.New(s.Err, &current, o.LogFormat))
			limitMemory(cmd.Context(), reloader.Log)
			return server.Run(cmd.Context(), reloader, server.NewEnvironment(s.LookupEnv))
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// limitMemory has the runtime collect garbage in time. Its limit is 90% of the memory of the container, as the cgroup has it now; a
// container may be resized. The rest is for what the runtime does not count. GOMEMLIMIT and AUTOMEMLIMIT override that. Where no
// limit can be read there is none, as without this.
func limitMemory(ctx context.Context, log logr.Logger) {
	limit, err := memlimit.Set(memlimit.WithRatio(0.9), memlimit.WithRefreshInterval(ctx, time.Minute))
	switch {
	case err != nil:
		log.Info("the memory limit of the container is not known, so garbage is collected as without one", "reason", err.Error())
	case limit < math.MaxInt64:
		log.Info("memory limit of the Go runtime", "bytes", limit)
	}
}
