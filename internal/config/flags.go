package config

import (
	"time"

	"github.com/spf13/pflag"
)

// Flags adds flags, each with its environment variable, for help, documentation and parsing
// alike. The default is the value that the variable has.
type Flags struct{ *pflag.FlagSet }

// Text adds a flag with a text.
func (f Flags) Text(p *string, name, env, usage string) {
	f.StringVar(p, name, *p, usage)
	f.from(name, env)
}

// Number adds a flag with a number.
func (f Flags) Number(p *int, name, env, usage string) {
	f.IntVar(p, name, *p, usage)
	f.from(name, env)
}

// Number64 adds a flag with a number of 64 bits.
func (f Flags) Number64(p *int64, name, env, usage string) {
	f.Int64Var(p, name, *p, usage)
	f.from(name, env)
}

// Fraction adds a flag with a number that may have decimals.
func (f Flags) Fraction(p *float64, name, env, usage string) {
	f.Float64Var(p, name, *p, usage)
	f.from(name, env)
}

// List adds a flag with a list, which commas separate.
func (f Flags) List(p *[]string, name, env, usage string) {
	f.StringSliceVar(p, name, *p, usage)
	f.from(name, env)
}

// Toggle adds a flag that is on or off.
func (f Flags) Toggle(p *bool, name, env, usage string) {
	f.BoolVar(p, name, *p, usage)
	f.from(name, env)
}

// Duration adds a flag with a length of time.
func (f Flags) Duration(p *time.Duration, name, env, usage string) {
	f.DurationVar(p, name, *p, usage)
	f.from(name, env)
}

// from notes a flag's environment variable, which must be none that Kubernetes sets for a Service.
func (f Flags) from(name, env string) {
	f.Lookup(name).Usage += " [$" + env + "]"
	if err := f.SetAnnotation(name, envAnnotation, []string{env}); err != nil {
		panic(err) // the flag was added just before
	}
}
