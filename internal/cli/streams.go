package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Streams are what a command reads and writes, and its environment.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// LookupEnv reads an environment variable, as os.LookupEnv does.
	LookupEnv func(name string) (value string, ok bool)
	// Environ lists them, as os.Environ does.
	Environ func() []string
}

// System returns the process's own streams and environment.
func System() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, LookupEnv: os.LookupEnv, Environ: os.Environ}
}

// guarded returns the streams with an input that ends when done is closed, and outputs that print no control character of anybody else.
func (s Streams) guarded(done <-chan struct{}) Streams {
	if s.In != nil {
		s.In = &interruptible{in: s.In, done: done}
	}
	out := &visible{out: s.Out}
	if _, color := s.terminal(); color {
		out.own = colors
	}
	s.Out, s.Err = out, &visible{out: s.Err}
	return s
}

// file returns the file that output goes to, or nil if it goes elsewhere.
func (s Streams) file() *os.File {
	out := s.Out
	if v, ok := out.(*visible); ok {
		out = v.out
	}
	f, _ := out.(*os.File)
	return f
}

// terminal returns the width of the terminal that output goes to, and whether it may have colors. The width is 0 where output
// goes elsewhere.
func (s Streams) terminal() (width int, color bool) {
	f := s.file()
	if f == nil || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width < 40 {
		width = 80
	}
	without, set := s.LookupEnv("NO_COLOR") // https://no-color.org
	kind, _ := s.LookupEnv("TERM")
	return width, (!set || without == "") && kind != "dumb"
}

// clear empties the screen of the terminal that output goes to.
func (s Streams) clear() error {
	f := s.file()
	if f == nil {
		return nil
	}
	_, err := io.WriteString(f, "\x1b[H\x1b[2J")
	return err
}

// errInterrupted means that the user ended the command with Ctrl-C, or that somebody else did with a signal.
var errInterrupted = errors.New("ended by a signal")

// interruptible is an input whose reads end with errInterrupted when done is closed. A read from a terminal would go on otherwise.
type interruptible struct {
	in     io.Reader
	done   <-chan struct{}
	buffer []byte // of the read that goes on; nobody reads after one that was interrupted
}

// readAtOnce is how many bytes one read has at most.
const readAtOnce = 64 << 10

func (r *interruptible) Read(p []byte) (int, error) {
	select {
	case <-r.done:
		return 0, errInterrupted
	default:
	}
	type result struct {
		n   int
		err error
	}
	if r.buffer == nil {
		r.buffer = make([]byte, readAtOnce)
	}
	buffer := r.buffer[:min(len(p), readAtOnce)]
	results := make(chan result, 1)
	go func() {
		n, err := r.in.Read(buffer)
		results <- result{n, err}
	}()
	select {
	case <-r.done:
		return 0, errInterrupted
	case got := <-results:
		return copy(p, buffer[:got.n]), got.err
	}
}

// colors are the sequences with which a report marks its lines on a terminal.
var colors = [][]byte{[]byte("\x1b[32m"), []byte("\x1b[1;31m"), []byte("\x1b[0m")}

// visible writes control characters in letters, such as \u001b: names and labels come from files and clusters, and a terminal would obey
// them. It writes its own sequences, line ends and tabs as they are.
type visible struct {
	out io.Writer
	own [][]byte
}

func (w *visible) Write(p []byte) (int, error) {
	if !bytes.ContainsFunc(p, hidden) {
		return w.out.Write(p)
	}
	var text bytes.Buffer
	for rest := p; len(rest) > 0; {
		if own := slices.IndexFunc(w.own, func(s []byte) bool { return bytes.HasPrefix(rest, s) }); own >= 0 {
			text.Write(w.own[own])
			rest = rest[len(w.own[own]):]
			continue
		}
		c, size := utf8.DecodeRune(rest)
		if hidden(c) {
			fmt.Fprintf(&text, `\u%04x`, c) // valid within a JSON string, too
		} else {
			text.Write(rest[:size])
		}
		rest = rest[size:]
	}
	if _, err := w.out.Write(text.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// hidden reports whether a terminal obeys a character instead of showing it, or shows what follows in another order.
func hidden(c rune) bool {
	return c != '\n' && c != '\t' && (unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c))
}
