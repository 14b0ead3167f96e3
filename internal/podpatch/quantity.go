package podpatch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Quantity is a resource quantity as it was written. Most quantities that pass
// through here are only copied or compared with themselves; those that a decision
// needs are parsed then.
type Quantity string

// ResourceList is a corev1.ResourceList whose quantities are not parsed yet.
type ResourceList map[corev1.ResourceName]Quantity

// The longest quantity and the largest power of ten that are parsed. The API's own range ends at 10^18. The time that
// resource.Quantity takes grows with the power of ten, up to hours for a text of twelve bytes.
const (
	maxQuantityLength = 64
	maxExponent       = 30
)

// readQuantity takes a string, or a number as it stands.
func readQuantity(dec *jsontext.Decoder) (Quantity, error) {
	if dec.PeekKind() == '0' {
		token, err := dec.ReadToken()
		return Quantity(token.String()), err
	}
	text, err := readText(dec)
	return Quantity(text), err
}

// Parse returns the quantity's value. It fails, in bounded time, for what is no
// quantity and for what is far outside the range of quantities.
func (q Quantity) Parse() (resource.Quantity, error) {
	s := string(q)
	if len(s) > maxQuantityLength {
		return resource.Quantity{}, fmt.Errorf("quantity %q... is longer than %d characters", s[:16], maxQuantityLength)
	}
	// An exponent is an e or E that is followed by a number; E and Ei are exa and
	// exbi. Where something else follows, the text is a word.
	if i := strings.LastIndexAny(s, "eE"); i >= 0 && s[i+1:] != "" && s[i+1:] != "i" {
		switch n, err := strconv.Atoi(s[i+1:]); {
		case errors.Is(err, strconv.ErrSyntax):
			return resource.Quantity{}, fmt.Errorf("%q is not a quantity", s)
		case err != nil || n > maxExponent || n < -maxExponent:
			return resource.Quantity{}, fmt.Errorf("quantity %q has an exponent outside of -%d to %[2]d", s, maxExponent)
		}
	}
	v, err := resource.ParseQuantity(s)
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("%q is not a quantity", s)
	}
	return v, nil
}

// Same reports whether two quantities are the same amount, in whatever form: 1 and 1000m are.
// Of two that cannot be parsed, only equal texts are the same.
func (q Quantity) Same(other Quantity) bool {
	if q == other {
		return true
	}
	a, errA := q.Parse()
	b, errB := other.Parse()
	return errA == nil && errB == nil && a.Cmp(b) == 0
}
