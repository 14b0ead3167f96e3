//go:build !offline

package cli

import "github.com/spf13/cobra"

// clusterCommands are the commands that talk to an API server.
func clusterCommands(s Streams) []*cobra.Command {
	return []*cobra.Command{
		newServeCommand(s), newStatusCommand(s), newImpactCommand(s), newExplainCommand(s), newCheckCommand(s), newUngateCommand(s), newPauseCommand(s), newResumeCommand(s),
	}
}
