package catalog

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Price is a price in millionths of a currency, plus one: the price that nobody knows is 0, and free is 1.
type Price int64

// The most digits of a price, before and after the point.
const priceDigits = 6

// ParsePrice reads a decimal number such as 0.096. An empty text is a price that is not known.
func ParsePrice(text string) (Price, error) {
	if text == "" {
		return 0, nil
	}
	whole, part, point := strings.Cut(text, ".")
	if whole == "" || point && part == "" {
		return 0, fmt.Errorf("price %.32q is no decimal number, such as 0.096", text)
	}
	if len(whole) > priceDigits || len(part) > priceDigits {
		return 0, fmt.Errorf("price %.32q has more than %d digits before or after the point", text, priceDigits)
	}
	n, err := strconv.ParseUint(whole+part+strings.Repeat("0", priceDigits-len(part)), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("price %.32q is no decimal number, such as 0.096", text)
	}
	return Price(n) + 1, nil
}

// Known reports whether the price is known.
func (p Price) Known() bool { return p > 0 }

// compare says which of two prices is lower. One that is not known comes last.
func (p Price) compare(other Price) int { return cmp.Compare(uint64(p)-1, uint64(other)-1) }

// Micros returns the price in millionths, and 0 for one that is not known.
func (p Price) Micros() int64 { return max(0, int64(p)-1) }

// String writes the price, or "" if it is not known.
func (p Price) String() string {
	if !p.Known() {
		return ""
	}
	return Money(p.Micros())
}

// Money writes an amount in millionths as a decimal number, without the zeros at its end.
func Money(micros int64) string {
	text := fmt.Sprintf("%d.%06d", micros/1e6, micros%1e6)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
