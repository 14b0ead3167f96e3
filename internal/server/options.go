package server

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/scaledown"
	"github.com/stowage-dev/stowage/internal/size"
	"github.com/stowage-dev/stowage/internal/spread"
	"github.com/stowage-dev/stowage/internal/vm"
)

// Options are the settings of `stowage serve`: those of the process, and those of each capability.
type Options struct {
	config.Process
	Spread spread.Options
	Size   size.Options
	VM     vm.Options

	ScaleDown scaledown.Options
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{Process: config.DefaultProcess(), Spread: spread.DefaultOptions(), Size: size.DefaultOptions(), VM: vm.DefaultOptions(), ScaleDown: scaledown.DefaultOptions()}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Process.AddFlags(fs)
	o.Spread.AddFlags(fs)
	o.Size.AddFlags(fs)
	o.VM.AddFlags(fs)
	o.ScaleDown.AddFlags(fs)
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	return errors.Join(o.Process.Validate(), o.Spread.Validate(), o.Size.Validate(), o.VM.Validate())
}

// withWebhook reports whether a part is on that needs the webhook, in this process or in another one.
func (o *Options) withWebhook() bool {
	return o.Admits() || o.Spread.Feature.Enabled || o.Size.Feature.Enabled || o.VM.Feature.Enabled
}
