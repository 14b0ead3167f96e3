package admit

import (
	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
)

// Options are the settings of the feature, which `stowage preview` has, too.
type Options struct {
	Enabled bool
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options { return Options{Enabled: true} }

// AddFlags adds a flag for every setting of the feature.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	f := config.Flags{FlagSet: fs}
	f.Toggle(&o.Enabled, "sizing", "STOWAGE_SIZING", "Give the pods of DaemonSets with a FlexDaemonsetTemplate their share of their node")
}
