package main

import (
	"fmt"
	"regexp"
	"strings"
)

// block is a paragraph, a list item, a comment or a text of a program. Code in it is one word, `code`.
type block struct {
	line int
	text string
}

// mistake is what a rule says about a line.
type mistake struct {
	line int
	text string
}

const (
	maxWords = 25
	// maxPassive is the part of a page's sentences that may be passive, and minSentences how many sentences a page must
	// have for that to mean anything.
	maxPassive   = 0.4
	minSentences = 20
)

// words are what readers had to translate, and what to write instead.
var words = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(made|makes|make|making) anew\b`), "recreate"},
	{regexp.MustCompile(`(?i)\bc(a|o)me(s)? past\b`), "bypass the webhook"},
	{regexp.MustCompile(`(?i)\b(one|replica) that leads\b`), "leader"},
	{regexp.MustCompile(`(?i)\bwhat answers\b`), "the webhook"},
	{regexp.MustCompile(`(?i)\b(pod|node|object|template|field|annotation|label|registration|condition|webhook|Service|policy)s? (tells?|says?|told|said)\b`), "shows, names, or the verb for what it does"},
	{regexp.MustCompile(`(?i)\b(takes?|taken|took) (it|them|this|that|pods?|nodes?) for what\b`), "treat as"},
	{regexp.MustCompile(`(?i)\bhouse\b`), "the plain name of the thing"},
	{regexp.MustCompile(`(?i)\bwithout end\b`), "for ever, or a time"},
	{regexp.MustCompile(`(?i)\b(wish|wishes|wished)\b`), "size, request or want"},
}

var (
	passive = regexp.MustCompile(`(?i)\b(is|are|was|were|be|been|being|gets?|got)( not| never| always| only| also| then| still| already)? ([a-z]+ed|made|seen|sent|kept|given|taken|written|read|found|held|left|set|told|known|shown|lost|built|run|put|cut|drawn|chosen|born)\b`)
	code    = regexp.MustCompile("`[^`]*`")
	// A sentence ends with a mark, perhaps a closing bracket, and a space before the next.
	ends = regexp.MustCompile("([.!?][)\"']?)(?:\\s+\\S|\\s*$)")
	word = regexp.MustCompile(`[\p{L}\p{N}][\p{L}\p{N}'’./_:=%-]*`)
)

// sentences splits a text. Abbreviations end none.
func sentences(text string) []string {
	text = code.ReplaceAllString(text, "`code`")
	var out []string
	for text != "" {
		at := 0
		for {
			m := ends.FindStringSubmatchIndex(text[at:])
			if m == nil {
				return append(out, strings.TrimSpace(text))
			}
			stop := at + m[3]
			if before := text[:stop]; strings.HasSuffix(before, "e.g.") || strings.HasSuffix(before, "i.e.") || strings.HasSuffix(before, "vs.") {
				at = stop
				continue
			}
			out, text = append(out, strings.TrimSpace(text[:stop])), strings.TrimSpace(text[stop:])
			break
		}
	}
	return out
}

// mistakes applies the rules to a file's text. The share of passive sentences is a rule for pages.
func mistakes(blocks []block, page bool) []mistake {
	var out []mistake
	all, passives := 0, 0
	for _, b := range blocks {
		for _, s := range sentences(b.text) {
			all++
			if passive.MatchString(s) {
				passives++
			}
			if n := len(word.FindAllString(s, -1)); n > maxWords {
				out = append(out, mistake{b.line, fmt.Sprintf("a sentence of %d words: %s", n, s)})
			}
			for _, w := range words {
				if found := w.pattern.FindString(s); found != "" {
					out = append(out, mistake{b.line, fmt.Sprintf("%q: write %s: %s", found, w.instead, s)})
				}
			}
		}
	}
	if share := float64(passives) / float64(max(1, all)); page && all >= minSentences && share > maxPassive {
		out = append(out, mistake{1, fmt.Sprintf("%.0f%% of the sentences are passive; at most %.0f%% may be", share*100, maxPassive*100)})
	}
	return out
}
