package preview

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// Printable returns a text for a terminal, with its line breaks. Whoever writes a manifest must not write to the terminal of whoever reads it.
func Printable(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = bounded.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// line is [Printable] for a text that is a part of a line.
func line(text string) string { return bounded.Printable(text) }

// textError says what a file is that has no text in UTF-8.
func textError(data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe\x00\x00")) || bytes.HasPrefix(data, []byte("\x00\x00\xfe\xff")):
		return errors.New("it is UTF-32; save it as UTF-8")
	case bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) || alternates(data):
		return errors.New("it is UTF-16; save it as UTF-8")
	case bytes.HasPrefix(data, []byte("\x1f\x8b")):
		return errors.New("it is no text but compressed; unpack it first: gunzip -c FILE | stowage preview -")
	case bytes.IndexByte(data, 0) >= 0:
		return errors.New("it is no text; expected manifests in YAML or JSON")
	case utf8.Valid(data):
		return nil
	}
	wrong, controls := -1, 0
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 && wrong < 0 {
			wrong = i
		}
		if r < ' ' && !strings.ContainsRune("\t\n\r\f\x1b", r) {
			controls++
		}
		i += size
	}
	if controls > 0 {
		return errors.New("it is no text; expected manifests in YAML or JSON")
	}
	return fmt.Errorf("line %d is no UTF-8 (it has the byte %#x); save it as UTF-8", 1+bytes.Count(data[:wrong], []byte("\n")), data[wrong])
}

// alternates reports whether every second byte of a beginning is zero, as in a text in UTF-16 without a mark.
func alternates(data []byte) bool {
	const enough = 8
	if len(data) < enough {
		return false
	}
	for i := 0; i < enough; i += 2 {
		if (data[i] == 0) == (data[i+1] == 0) || (data[i] == 0) != (data[0] == 0) {
			return false
		}
	}
	return true
}

// Text returns the text of a file without a byte order mark. It is an error that says what the file is, if that is no text in UTF-8.
func Text(data []byte) ([]byte, error) {
	if err := textError(data); err != nil {
		return nil, err
	}
	return bytes.TrimPrefix(data, []byte("\ufeff")), nil
}

// Document is a document of a stream.
type Document struct {
	Text []byte
	Line int // its first line in the stream, from 1
}

// separator is a line between two documents. One with content after the dashes is a part of the document, and "..." ends one, too.
var separator = regexp.MustCompile(`^(---|\.\.\.)[ \t]*(#.*)?$`)

// Documents splits a stream of YAML documents and leaves out those without content.
func Documents(data []byte) (documents []Document) {
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	start, first, number := 0, 1, 0
	end := func(at int) {
		if text := data[start:at]; !onlyComments.Match(text) {
			documents = append(documents, Document{text, first})
		}
	}
	for at := 0; at < len(data); {
		next := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		number++
		if separator.Match(bytes.TrimSuffix(data[at:next], []byte("\n"))) {
			end(at)
			start, first = next, number+1
		}
		at = next
	}
	end(len(data))
	return documents
}

var lineNumber = regexp.MustCompile(`\bline (\d+)`)

// ofFile is an error of a document, as text, with the lines of the file.
func (d *Document) ofFile(text string) string {
	return lineNumber.ReplaceAllStringFunc(text, func(found string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(found, "line "))
		if err != nil {
			return found // no file has so many
		}
		return fmt.Sprintf("line %d", n+d.Line-1)
	})
}
