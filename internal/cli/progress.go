package cli

import (
	"fmt"
	"io"
	"time"
)

// look is how often the commands that wait look again, and say how far they are.
const look = 2 * time.Second

// progress prints a line now and then until stop is called, so that work of more than two seconds shows how far it is.
func progress(out io.Writer, often time.Duration, line func() string) (stop func()) {
	ended, all := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(all)
		tick := time.NewTicker(often)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				fmt.Fprintln(out, line())
			}
		}
	}()
	return func() {
		close(ended)
		<-all
	}
}

// objectsRead says how many objects were read from now on.
func objectsRead(i interface{ Read() int64 }) func() string {
	before := i.Read()
	return func() string { return fmt.Sprintf("reading the cluster: %d objects so far", i.Read()-before) }
}
