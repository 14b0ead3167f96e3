//go:build offline

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
)

// clusterCommands say that they are left out. With the build tag offline, the program has only the commands that need no API server, and
// half of the packages to compile.
func clusterCommands(Streams) (out []*cobra.Command) {
	for _, name := range []string{"serve", "status", "impact", "explain", "check", "ungate"} {
		out = append(out, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return config.NewUsageError(fmt.Errorf("this program was built without %s, which needs a cluster: build it without -tags offline", name))
			},
		})
	}
	return out
}
