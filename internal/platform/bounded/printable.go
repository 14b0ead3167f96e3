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

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
