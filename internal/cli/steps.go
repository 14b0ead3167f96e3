package cli

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// steps tells, for work that takes more than two seconds, how far it has come.
type steps struct {
	what       string
	done       atomic.Int64
	ended, all chan struct{}
}

// startSteps begins to tell how many steps were done, until stop is called.
func startSteps(out io.Writer, what string) *steps { return startStepsEvery(look, out, what) }

func startStepsEvery(often time.Duration, out io.Writer, what string) *steps {
	s := &steps{what: what, ended: make(chan struct{}), all: make(chan struct{})}
	go func() {
		defer close(s.all)
		tick := time.NewTicker(often)
		defer tick.Stop()
		for {
			select {
			case <-s.ended:
				return
			case <-tick.C:
				if n := s.done.Load(); n > 0 {
					fmt.Fprintf(out, "deciding: %d %s so far\n", n, s.what)
				} else {
					fmt.Fprintln(out, "reading the manifests")
				}
			}
		}
	}()
	return s
}

// step notes that a step is done.
func (s *steps) step() { s.done.Add(1) }

func (s *steps) stop() {
	close(s.ended)
	<-s.all
}
