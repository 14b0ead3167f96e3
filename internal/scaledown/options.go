package scaledown

import (
	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
)

// Options are the settings of scale-downs.
type Options struct {
	Enabled bool
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options { return Options{Enabled: true} }

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	f := config.Flags{FlagSet: fs}
	f.Toggle(&o.Enabled, "scale-down", "STOWAGE_SCALE_DOWN", "Keep the spread of pods through scale-downs, for ScaleDownPolicies and ClusterScaleDownPolicies; it needs no webhook")
}
