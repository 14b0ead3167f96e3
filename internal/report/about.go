package report

import (
	"io"
	"time"
)

// About says how a page was made, so that a reader of a stored one knows what it is of.
type About struct {
	Made    time.Time
	Command string // as it could be given again
	Version string // of this program
	Cluster string // "" where none was asked
}

// Lines are what a page says of itself.
func (a *About) Lines() (out [][2]string) {
	for _, line := range [][2]string{{"Made", a.Made.UTC().Format("2006-01-02 15:04:05 UTC")}, {"Cluster", a.Cluster}, {"Command", a.Command}, {"Version", a.Version}} {
		if line[1] != "" {
			out = append(out, line)
		}
	}
	return out
}

// described is an output whose pages say how they were made.
type described struct {
	io.Writer
	about About
}

// Describe returns an output to which [Page.HTML] writes pages that say how they were made. Whatever else is written to it stays as it is. So
// the packages that make pages need not know how a command was called.
func Describe(out io.Writer, about About) io.Writer { return described{out, about} }
