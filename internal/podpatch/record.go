package podpatch

import (
	"crypto/sha256"
	"fmt"
)

// keptRecord is how many bytes of a record are kept as they are.
const keptRecord = 4 << 10

// KeepRecord returns what to keep of a record, to know copies of it: the text, or the hash of a long one.
func KeepRecord(text string) string {
	if len(text) <= keptRecord {
		return text
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
}

// IsCopy reports whether kept is what KeepRecord kept of a record, or the record itself.
func IsCopy(text, kept string) bool { return text == kept || KeepRecord(text) == kept }
