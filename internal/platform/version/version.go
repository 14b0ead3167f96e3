// Package version tells which version of Stowage this is.
package version

import "runtime/debug"

// Version is set by the release build.
var Version string

// String returns the version of the release build, or else the module's.
func String() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
