package report

import "fmt"

// Counted returns the texts in their order, each of them once, and how often it was there if that is more than once.
func Counted(texts []string) []string {
	counts := map[string]int{}
	for _, text := range texts {
		counts[text]++
	}
	out := make([]string, 0, len(counts))
	for _, text := range texts {
		n := counts[text]
		if n == 0 {
			continue
		}
		delete(counts, text)
		if n > 1 {
			text = fmt.Sprintf("%s (%d times)", text, n)
		}
		out = append(out, text)
	}
	return out
}
