package catalog

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Price is what something costs in an hour, if that is known.
type Price struct {
	Known  bool
	Micros int64 // millionths of a currency
}

// The most digits of a price, before and after the point.
const priceDigits = 6

// ParsePrice reads a decimal number such as 0.096. An empty text is a price that is not known.
func ParsePrice(text string) (Price, error) {
	if text == "" {
		return Price{}, nil
	}
	whole, part, point := strings.Cut(text, ".")
	if whole == "" || point && part == "" {
		return Price{}, fmt.Errorf("price %.32q is no decimal number, such as 0.096", text)
	}
	if len(whole) > priceDigits || len(part) > priceDigits {
		return Price{}, fmt.Errorf("price %.32q has more than %d digits before or after the point", text, priceDigits)
	}
	n, err := strconv.ParseUint(whole+part+strings.Repeat("0", priceDigits-len(part)), 10, 63)
	if err != nil {
		return Price{}, fmt.Errorf("price %.32q is no decimal number, such as 0.096", text)
	}
	return Price{true, int64(n)}, nil
}

// compare says which of two prices is lower. One that is not known comes last.
func (p Price) compare(other Price) int {
	switch {
	case p.Known == other.Known:
		return cmp.Compare(p.Micros, other.Micros)
	case p.Known:
		return -1
	}
	return 1
}

// String writes the price, or "" if it is not known.
func (p Price) String() string {
	if !p.Known {
		return ""
	}
	return Money(p.Micros)
}

// MarshalText writes the price as JSON and YAML have it.
func (p Price) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes, and fails as [ParsePrice] does.
func (p *Price) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePrice(string(text))
	return err
}

// Money writes an amount in millionths as a decimal number, without the zeros at its end.
func Money(micros int64) string {
	text := fmt.Sprintf("%d.%06d", micros/1e6, micros%1e6)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
