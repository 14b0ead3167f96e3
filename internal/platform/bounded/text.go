package bounded

import "strings"

// Text shortens a text to a number of bytes, at the end of a character.
func Text(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len("...")], "") + "..."
}
