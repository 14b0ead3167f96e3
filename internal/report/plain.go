package report

import (
	"fmt"
	"regexp"
	"strings"
)

// wrongType is what encoding/json says of a value of another type than its field.
var wrongType = regexp.MustCompile(`(?:json: )?cannot unmarshal (\w+) into Go (?:struct field \w+\.(\S+)|value) of type ([\w.\[\]*]+)`)

// ofGo are other texts in which the libraries of Go name their own functions and types, and what a user reads instead. What $1 names of a match
// stays. Those of a context count at the end alone: a manifest may have the same words in a name.
var ofGo = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`error unmarshaling JSON: |while decoding JSON: `), ""},
	{regexp.MustCompile(`cannot unmarshal !!(\w+)(?: (.*))? into \S+`), "$2 is of type $1, and another type is expected"},
	{regexp.MustCompile(`unmarshal errors:\n\s+`), ""},
	{regexp.MustCompile(`json: unsupported value: (?:NaN|[+-]Inf)`), "a value is .nan or .inf; write a plain number"},
	{regexp.MustCompile(`key (".*") already set in map`), "the key $1 is written twice"},
	{regexp.MustCompile(`strconv\.\w+: parsing ("(?:[^"\\]|\\.)*"): invalid syntax`), "$1 is no number"},
	{regexp.MustCompile(`strconv\.\w+: parsing ("(?:[^"\\]|\\.)*"): value out of range`), "$1 is too large a number"},
	{regexp.MustCompile(`Invalid value: "(integer|number|boolean)": must be of type string: "\w+"`), "it is of type $1, and a text is expected; write it in quotes (YAML reads 1, yes and Off as a number or a boolean)"},
	{regexp.MustCompile(`Invalid value: "(\w+)": must be of type (\w+): "\w+"`), "it is of type $1, and one of type $2 is expected"},
	{regexp.MustCompile(`parse error on line \d+, column \d+: .*`), "it has a quotation mark in a value; leave it out, or write the value in quotation marks"},
	{regexp.MustCompile(`(^|: )(?:client rate limiter Wait returned an error: )?context canceled$`), "${1}ended by a signal"},
	{regexp.MustCompile(`(^|: )(?:client rate limiter Wait returned an error: )?context deadline exceeded(?: \(Client\.Timeout[^)]*\))?$`), "${1}there was no answer in time"},
	{regexp.MustCompile(`(^|: |\n)(?:json|yaml): `), "$1"},
}

// Plain is an error's text in words that need no knowledge of Go.
func Plain(text string) string {
	text = wrongType.ReplaceAllStringFunc(text, func(match string) string {
		m := wrongType.FindStringSubmatch(match)
		field := m[2]
		if field == "" {
			field = "the value"
		}
		return fmt.Sprintf("%s is of type %s; expected %s", field, m[1], inWords(m[3]))
	})
	for _, words := range ofGo {
		text = words.pattern.ReplaceAllString(text, words.instead)
	}
	return text
}

// inWords says what a manifest has for a type of Go.
func inWords(goType string) string {
	switch kind := strings.TrimPrefix(goType, "*"); {
	case kind == "string":
		return "a text"
	case kind == "bool":
		return "true or false"
	case strings.HasPrefix(kind, "[]"):
		return "a list"
	case strings.HasPrefix(kind, "map["):
		return "a map"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.Contains(kind, "."): // a struct
		return "an object with fields"
	}
	return "another structure"
}
