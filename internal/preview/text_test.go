package preview

import (
	"strings"
	"testing"
	"unicode/utf16"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"веб-🚀 and ü\nnext":     "веб-🚀 and ü\nnext",
		"\x1b[31mred\x07":       `\x1b[31mred\a`,
		"a\tb\r":                `a\tb\r`,
		"bad \xff\xfe byte":     `bad \xff\xfe byte`,
		"left\u202eright":       `left\u202eright`,
		"zero\u200bwidth\u2028": `zero\u200bwidth\u2028`,
		`"quoted" \ kept`:       `"quoted" \ kept`,
		"\x9b31m":               `\x9b31m`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
	if got := line("a\nb\x1b"); got != `a\nb\x1b` {
		t.Errorf("a part of a line is %q", got)
	}
}

const podText = "apiVersion: v1\nkind: Pod\nmetadata: {name: %}\nspec: {containers: [{name: c}]}\n"

// wide is a text in UTF-16, with the byte of each unit that comes first.
func wide(text string, big bool) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(text)) {
		if big {
			b.WriteString(string([]byte{byte(u >> 8), byte(u)}))
		} else {
			b.WriteString(string([]byte{byte(u), byte(u >> 8)}))
		}
	}
	return b.String()
}

// An error names what the input is if it is no manifest, and the line of a mistake otherwise. Control characters are escaped.
func TestBytesAndNames(t *testing.T) {
	pod := func(name string) string { return strings.Replace(podText, "%", name, 1) }
	for name, tc := range map[string]struct {
		input string
		want  string // a part of the error; none if it is empty
	}{
		"a pod":                             {input: pod("p")},
		"one with a byte order mark":        {input: "\ufeff" + pod("p")},
		"JSON with a byte order mark":       {input: "\ufeff" + `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}`},
		"random bytes":                      {input: "\x89\x00\x13{{\xff\xfe\x00" + strings.Repeat("\x01\xee", 20), want: "it is no text"},
		"bytes without a zero":              {input: "\x89\x13{{\xff\xfe\x01\x02", want: "it is no text"},
		"UTF-16 with a mark":                {input: "\xff\xfe" + wide(pod("p"), false), want: "it is UTF-16; save it as UTF-8"},
		"the other UTF-16":                  {input: "\xfe\xff" + wide(pod("p"), true), want: "it is UTF-16; save it as UTF-8"},
		"UTF-16 without a mark":             {input: wide(pod("p"), false), want: "it is UTF-16; save it as UTF-8"},
		"UTF-32":                            {input: "\xff\xfe\x00\x00a\x00\x00\x00", want: "it is UTF-32; save it as UTF-8"},
		"a compressed file":                 {input: "\x1f\x8b\x08\x00", want: "it is no text but compressed"},
		"Latin-1":                           {input: "# one\n# gr\xfc\xdfe\n" + pod("p"), want: "line 2 is no UTF-8 (it has the byte 0xfc)"},
		"a template":                        {input: "{{ if .x }}\n" + pod("p"), want: "it is a template"},
		"a name with an escape":             {input: pod(`"a\e[31m"`), want: `document 1 (Pod default/a\x1b[31m): metadata.name is "a\x1b[31m": a lowercase RFC 1123`},
		"a name with a line break":          {input: pod(`"a\nWarning: all is well"`), want: `document 1 (Pod default/a\nWarning: all is well): metadata.name is "a\nWarning: all is well"`},
		"a name that is none":               {input: pod("веб-🚀"), want: `metadata.name is "веб-🚀": a lowercase RFC 1123`},
		"a name that YAML takes for a bool": {input: pod("y"), want: "document 1 (Pod): metadata.name is of type bool; expected a text"},
		"a namespace that is none":          {input: pod("p, namespace: A_b"), want: `metadata.namespace is "A_b"`},
		"a Namespace with a dot":            {input: pod("p") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a.b}\n", want: `document 2 (Namespace a.b): metadata.name is "a.b"`},
		"a beginning of a name":             {input: strings.Replace(pod("p"), "name: p", "generateName: p-", 1)},
		"a beginning that is none":          {input: strings.Replace(pod("p"), "name: p", "generateName: Pod-", 1), want: `metadata.generateName is "Pod-"`},
		"a kind with an escape":             {input: "apiVersion: v1\nkind: \"P\\e[1m\"\nmetadata: {name: p}\n", want: `(P\x1b[1m p): v1 has no kind "P\x1b[1m"`},
		"an unknown kind with an escape":    {input: "apiVersion: x.y/v1\nkind: \"P\\e[1m\"\nmetadata: {name: p}\n", want: `(only 1 P\x1b[1m)`},
		"an error in the second document":   {input: pod("p") + "---\n# one\n" + pod("q") + "a: b: c\n", want: "document 2: line 11: "},
		"a key twice in the second one":     {input: pod("p") + "...\r\n---\n" + pod("q") + "kind: Pod\n", want: "line 11: the key \"kind\" is written twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(t.Context(), Source{Names: []string{"-"}, In: strings.NewReader(tc.input), Namespace: "default"})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("the error is %v, want %q", err, tc.want)
			}
			if Printable(err.Error()) != err.Error() {
				t.Errorf("the error is printed raw: %q", err.Error())
			}
		})
	}
}

// Where documents end, and where they are.
func TestDocuments(t *testing.T) {
	input := "# only a comment\n---\na: 1\n--- # next\n--- {b: 2}\nc: |\n  ---x\n...\n\n---\r\nd: 4"
	want := []Document{{[]byte("a: 1\n"), 3}, {[]byte("--- {b: 2}\nc: |\n  ---x\n"), 5}, {[]byte("d: 4"), 11}}
	got := Documents([]byte(input))
	if len(got) != len(want) {
		t.Fatalf("there are %d documents: %+v", len(got), got)
	}
	for i := range want {
		if string(got[i].Text) != string(want[i].Text) || got[i].Line != want[i].Line {
			t.Errorf("document %d is %q in line %d, want %q in line %d", i, got[i].Text, got[i].Line, want[i].Text, want[i].Line)
		}
	}
}
