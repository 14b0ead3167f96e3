package links

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index.html": `<a href="./a/">a</a> <a href="./a/#there">there</a> <a href="./a/#gone">gone</a> <a href="./b/">b</a>
			<a href="https://example.com/none">other</a> <a href="#top">top</a> <img src="/icon.svg"> <img src="./none.svg">`,
		"a/index.html": `<h2 id="there">There</h2> <a href="../">home</a> <a href="../c/">c</a>`,
		"c/index.html": `<a href="/a">a</a>`,
		"icon.svg":     `<svg/>`,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := Check(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"c/index.html: no link on the first page leads here",
		"index.html: the link #top leads to no heading",
		"index.html: the link ./a/#gone leads to no heading",
		"index.html: the link ./b/ leads to no file",
		"index.html: the link ./none.svg leads to no file",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	if _, err := Check(t.TempDir()); err == nil {
		t.Error("an empty directory is no site")
	}
}
