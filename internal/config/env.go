// Package config is how a program is configured: flags with their environment variables, the settings of the process itself,
// and logging. What Stowage does to pods has its settings elsewhere.
package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// envAnnotation is the flag annotation that holds a flag's environment variable.
const envAnnotation = "stowage-env"

// ApplyEnv gives every flag that was not set on the command line the value of its environment variable. It reports
// every value that does not parse. An empty variable counts as unset, except for the log level, where it has a
// meaning.
func ApplyEnv(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		env := f.Annotations[envAnnotation]
		if len(env) == 0 || f.Changed {
			return
		}
		value, ok := lookup(env[0])
		if !ok || value == "" && f.Name != "log-level" {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("$%s: %w", env[0], err))
			return
		}
		f.Annotations[fromEnvAnnotation] = env
	})
	return errors.Join(errs...)
}

// fromEnvAnnotation is on a flag that [ApplyEnv] set.
const fromEnvAnnotation = "stowage-from-env"

// flagName is how messages name a flag.
var flagName = regexp.MustCompile(`--[a-z][-a-z0-9]*`)

// NewSettingsError marks an error in the settings as one in how the command was called. The message names a
// setting as the user gave it: by its variable, if that was set.
func NewSettingsError(fs *pflag.FlagSet, err error) error {
	return NewUsageError(errors.New(flagName.ReplaceAllStringFunc(err.Error(), func(name string) string {
		if f := fs.Lookup(strings.TrimPrefix(name, "--")); f != nil && len(f.Annotations[fromEnvAnnotation]) > 0 {
			return "$" + f.Annotations[fromEnvAnnotation][0]
		}
		return name
	})))
}

// serviceLink is what Kubernetes names variables in the pods of a Service's namespace.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// isServiceLink reports whether Kubernetes, not somebody who meant us, has set a variable.
func isServiceLink(name, value string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

// UnknownVariables reports every variable that is named like ours and is no setting.
func UnknownVariables(fs *pflag.FlagSet, environ []string) error {
	known := map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) {
		for _, env := range f.Annotations[envAnnotation] {
			known[env] = true
		}
	})
	var errs []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		ours := strings.HasPrefix(name, "STOWAGE_") || strings.HasPrefix(name, "PEERPODS_")
		if ours && !known[name] && !isServiceLink(name, value) {
			errs = append(errs, fmt.Errorf("$%s is no setting; unset it, or correct its name", name))
		}
	}
	return errors.Join(errs...)
}

// Variable returns the environment variable of a flag.
func Variable(f *pflag.Flag) string { return f.Annotations[envAnnotation][0] }
