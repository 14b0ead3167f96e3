package site

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeAll(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func source(dir string) Source {
	return Source{Docs: filepath.Join(dir, "docs"), Assets: "../assets", Template: "../page.html", Navigation: filepath.Join(dir, "navigation.txt")}
}

var pages = map[string]string{
	"docs/README.md":                   "# Documents\n\n[one](one.md)\n",
	"docs/one.md":                      "# One & only\n\n<!-- a comment -->\n\n[two](two/README.md#a-b-c) [code](../cmd/main.go) [other](https://example.com)\n\n## A `b`, (c)!\n\nText of it.\n\n## A `b`, (c)!\n\n| a | b |\n| - | - |\n| 1 | 2 |\n",
	"docs/two/README.md":               "# Two\n\n## A b c\n\n[back](../one.md) [schema](../reference/schemas/a_v1.json) [other](../reference/other.json)\n",
	"docs/icon.svg":                    "<svg/>",
	"docs/pictures/none.svg":           "<svg/>",
	"docs/reference/schemas/a_v1.json": "{}",
	"navigation.txt":                   "Start\n  one\n  two\n",
}

func TestBuild(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	writeAll(t, dir, pages)
	if err := Build(source(dir), out); err != nil {
		t.Fatal(err)
	}
	one, err := os.ReadFile(filepath.Join(out, "one.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"<title>One &amp; only · Stowage</title>", `<h2 id="a-b-c">`, `<h2 id="a-b-c-1">`, `href="two/index.html#a-b-c"`, `href="https://github.com/stowage-dev/stowage/blob/main/cmd/main.go"`,
		`href="https://example.com"`, `<td data-label="a">1</td>`, `<a href="#a-b-c-1">A b, (c)!</a>`, `aria-current="page">One &amp; only`, `rel="next" href="two/index.html">Two`,
	} {
		if !strings.Contains(string(one), part) {
			t.Errorf("the page has no %s:\n%s", part, one)
		}
	}
	two, err := os.ReadFile(filepath.Join(out, "two", "index.html"))
	if err != nil || !strings.Contains(string(two), `href="../one.html">back`) || !strings.Contains(string(two), `src="../site.`) {
		t.Errorf("%v\n%s", err, two)
	}
	// A schema is a file of the site, and another file one of the repository.
	if schema, err := os.ReadFile(filepath.Join(out, "reference", "schemas", "a_v1.json")); err != nil || string(schema) != "{}" || !strings.Contains(string(two), `href="../reference/schemas/a_v1.json"`) ||
		!strings.Contains(string(two), `href="https://github.com/stowage-dev/stowage/blob/main/docs/reference/other.json"`) {
		t.Errorf("the schema: %q, %v\n%s", schema, err, two)
	}
	found, err := filepath.Glob(filepath.Join(out, "search.*.js"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if index, err := os.ReadFile(found[0]); err != nil || !strings.Contains(string(index), `{"at":"one.html#a-b-c","page":"One \u0026 only","heading":"A b, (c)!","text":"Text of it."}`) {
		t.Errorf("%v\n%s", err, index)
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"a page that is not named": {"docs/three.md", "# Three\n", `does not name "three"`},
		"a name without a page":    {"navigation.txt", "Start\n  one\n  two\n  none\n", `names "none"`},
		"a link to no page":        {"docs/one.md", "# One\n\n[x](none.md)\n", `no page "none.md"`},
		"HTML":                     {"docs/one.md", "# One\n\n<b>bold</b>\n", "it has HTML"},
		"no heading":               {"docs/one.md", "text\n", "no heading of the first level"},
		"a name without a heading": {"navigation.txt", "  one\n", "stands below no title"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeAll(t, dir, pages)
			writeAll(t, dir, map[string]string{tc.file: tc.text})
			if err := Build(source(dir), t.TempDir()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPage(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a block of YAML":         {"```yaml\nkind: Pod # <it>\n```\n", `<pre><code class="language-yaml"><span class="nt">kind</span>`},
		"what YAML must not be":   {"```yaml\nkind: Pod # <it>\n```\n", "# &lt;it&gt;"},
		"a block of no language":  {"```\na <b>\n```\n", `<pre><code class="language-">a &lt;b&gt;`},
		"an unknown language":     {"```text\na\n```\n", `<pre><code class="language-text">a`},
		"links alone":             {"[two](two/README.md) · [other](https://example.com)\n", `<p class="buttons"><a href="two/index.html">`},
		"one link":                {"[two](two/README.md)\n", `<p><a href="two/index.html">`},
		"links in a sentence":     {"[two](two/README.md) and [other](https://example.com)\n", `<p><a href="two/index.html">`},
		"what the page is about":  {"It is *short*. And clear.\n", `<meta name="description" content="It is short. And clear.">`},
		"after links and a table": {"[a](two/README.md) [b](two/README.md)\n\n| a |\n| - |\n| 1 |\n\nA text.\n", `<meta name="description" content="A text.">`},
		"a long text":             {strings.Repeat("One sentence of words. ", 20) + "\n", `content="` + strings.TrimSpace(strings.Repeat("One sentence of words. ", 6)) + `">`},
		"a long sentence":         {strings.Repeat("word ", 100) + "\n", `word …">`},
		"no text":                 {"", "<h1"},
		"its version":             {"", `<li><a href="../main/index.html" aria-current="true">main</a></li>`},
		"another version":         {"", `<li><a href="../v0.1.0/index.html">v0.1.0</a></li>`},
	} {
		t.Run(name, func(t *testing.T) {
			dir, out := t.TempDir(), t.TempDir()
			writeAll(t, dir, pages)
			writeAll(t, dir, map[string]string{"docs/one.md": "# One\n\n" + tc.text})
			from := source(dir)
			from.Version, from.Versions = "main", []string{"main", "v0.1.0"}
			if err := Build(from, out); err != nil {
				t.Fatal(err)
			}
			if page, err := os.ReadFile(filepath.Join(out, "one.html")); err != nil || !strings.Contains(string(page), tc.want) {
				t.Errorf("%v: the page has no %s:\n%s", err, tc.want, page)
			}
		})
	}
}
