package testkit

import "regexp"

var progressLines = regexp.MustCompile(`(?m)^(deciding: \d+ \w+ so far|reading the manifests|reading the cluster: \d+ objects so far)\n`)

// WithoutProgress removes from what a command wrote the lines that it writes only if it takes over two seconds.
func WithoutProgress(stderr string) string {
	return progressLines.ReplaceAllString(stderr, "")
}
