package size

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/resize"
)

// Options are the settings of sizing.
type Options struct {
	Feature admit.Options
	Resize  resize.Timing
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options {
	return Options{Feature: admit.DefaultOptions(), Resize: resize.DefaultTiming()}
}

// AddFlags adds a flag for every setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Feature.AddFlags(fs)
	f := config.Flags{FlagSet: fs}
	f.Fraction(&o.Resize.Rate, "resize-rate", "STOWAGE_RESIZE_RATE", "How many running pods are resized in a second, in the whole cluster")
	f.Duration(&o.Resize.Jitter, "resize-jitter", "STOWAGE_RESIZE_JITTER", "Time over which the resizes that follow one change are spread")
	f.Duration(&o.Resize.Backoff, "resize-backoff", "STOWAGE_RESIZE_BACKOFF", "Wait before a pod that could not be resized is resized again, doubled each time up to an hour")
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Resize.Rate > 0 && o.Resize.Rate <= 1000, "--resize-rate is %v; it must be above 0 and at most 1000", o.Resize.Rate)
	check(o.Resize.Jitter >= 0 && o.Resize.Jitter <= time.Hour, "--resize-jitter is %s; it must be between 0 and 1h", o.Resize.Jitter)
	check(o.Resize.Backoff > 0 && o.Resize.Backoff <= o.Resize.MaxBackoff, "--resize-backoff is %s; it must be above 0 and at most %s", o.Resize.Backoff, o.Resize.MaxBackoff)
	return errors.Join(errs...)
}
