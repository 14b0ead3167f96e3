package report

import "regexp"

// ofGo are the texts in which the libraries of Go name their own functions and types, and what a user reads instead. The parts of a match
// that $1 and $2 name are kept.
var ofGo = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`error unmarshaling JSON: |while decoding JSON: `), ""},
	{regexp.MustCompile(`(?:json: )?cannot unmarshal (\w+) into Go struct field \w+\.(\S+) of type .*`), "$2 is a $1, and another type is expected"},
	{regexp.MustCompile(`(?:json: )?cannot unmarshal (\w+) into Go value of type .*`), "it is a $1, and an object with fields is expected"},
	{regexp.MustCompile(`cannot unmarshal !!(\w+)(?: (.*))? into \S+`), "$2 is a $1, and another type is expected"},
	{regexp.MustCompile(`unmarshal errors:\n\s+`), ""},
	{regexp.MustCompile(`key (".*") already set in map`), "the key $1 is written twice"},
	{regexp.MustCompile(`strconv\.\w+: parsing ("(?:[^"\\]|\\.)*"): invalid syntax`), "$1 is no number"},
	{regexp.MustCompile(`strconv\.\w+: parsing ("(?:[^"\\]|\\.)*"): value out of range`), "$1 is too large a number"},
	{regexp.MustCompile(`Invalid value: "(integer|number|boolean)": must be of type string: "\w+"`), "it is of type $1, and a text is expected; write it in quotes (YAML takes 1, yes and Off for other values than texts)"},
	{regexp.MustCompile(`Invalid value: "(\w+)": must be of type (\w+): "\w+"`), "it is of type $1, and one of type $2 is expected"},
	{regexp.MustCompile(`parse error on line \d+, column \d+: .*`), "it has a quotation mark in a value; leave it out, or write the value in quotation marks"},
	{regexp.MustCompile(`(?:client rate limiter Wait returned an error: )?context canceled`), "interrupted"},
	{regexp.MustCompile(`(?:client rate limiter Wait returned an error: )?context deadline exceeded(?: \(Client\.Timeout[^)]*\))?`), "there was no answer in time"},
	{regexp.MustCompile(`(^|: |\n)(?:json|yaml): `), "$1"},
}

// Plain is a text in words that need no knowledge of Go.
func Plain(text string) string {
	for _, words := range ofGo {
		text = words.pattern.ReplaceAllString(text, words.instead)
	}
	return text
}
