package report

import "testing"

// What libraries say of their types and functions reaches nobody.
func TestPlainWords(t *testing.T) {
	for text, want := range map[string]string{
		`spec.across.domains[1].value: Invalid value: "integer": must be of type string: "integer"`:                         "spec.across.domains[1].value: it is of type integer, and a text is expected; write it in quotes (YAML reads 1, yes and Off as a number or a boolean)",
		`spec.pools: Invalid value: "integer": must be of type array: "integer"`:                                            "spec.pools: it is of type integer, and one of type array is expected",
		`strconv.ParseInt: parsing "abc": invalid syntax`:                                                                   `"abc" is no number`,
		`error unmarshaling JSON: while decoding JSON: json: cannot unmarshal string into Go value of type policytest.File`: "the value is of type string; expected an object with fields",
		`json: cannot unmarshal number into Go struct field File.files of type []string`:                                    "files is of type number; expected a list",
		`read pods: client rate limiter Wait returned an error: context deadline exceeded`:                                  "read pods: there was no answer in time",
		"line 1\nyaml: unmarshal errors:\n  line 3: key \"kind\" already set in map":                                        "line 1\nline 3: the key \"kind\" is written twice",
		"half.json: pool spot has no room":                                                                                  "half.json: pool spot has no room",
		`read pods: Get "https://10.0.0.1": context canceled`:                                                               `read pods: Get "https://10.0.0.1": ended by a signal`,
		`metadata.name is "context canceled"; it is no name`:                                                                `metadata.name is "context canceled"; it is no name`,
		"pool spot has no room": "pool spot has no room",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
