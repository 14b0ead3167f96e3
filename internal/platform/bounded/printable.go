package bounded

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns a text in which everything that does not print, line breaks included, is written as in a Go string, such as \x1b. Tenants write
// names and messages, and a terminal acts on control characters.
func Printable(text string) string {
	if !strings.ContainsFunc(text, unprintable) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		part := text[i : i+size]
		if r == utf8.RuneError && size == 1 || unprintable(r) {
			part = strings.Trim(strconv.Quote(part), `"`)
		}
		b.WriteString(part)
		i += size
	}
	return b.String()
}

// mostName is how many bytes the name of an object has at most.
const mostName = 253

// Name returns the name of an object, or of a kind, for a line of text: as one word, and no longer than names are. The API server checks neither in
// an owner reference, which a tenant may write.
func Name(name string) string {
	return strings.ReplaceAll(Printable(Text(name, mostName)), " ", `\x20`)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
