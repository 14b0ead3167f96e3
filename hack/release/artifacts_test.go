package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A release has the version of the chart.
func TestChartVersion(t *testing.T) {
	dir := t.TempDir()
	chart := filepath.Join(dir, "charts", "stowage", "Chart.yaml")
	must(t, os.MkdirAll(filepath.Dir(chart), 0o755))
	for text, want := range map[string]string{
		"version: 1.2.3\nappVersion: 1.2.3\n": "",
		"version: 1.2.4\nappVersion: 1.2.3\n": "version must be v1.2.3",
		"version: 1.2.3\nappVersion: 1.2.2\n": "appVersion must be v1.2.3",
		"name: stowage\n":                     "version must be v1.2.3",
	} {
		must(t, os.WriteFile(chart, []byte(text), 0o644))
		number, err := chartVersion(options{root: dir, version: "v1.2.3"})
		switch {
		case want == "" && (err != nil || number != "1.2.3"):
			t.Errorf("%q: version %q, error %v", text, number, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// An archive depends on its files alone, not on their order.
func TestArchiveIsReproducible(t *testing.T) {
	at := time.Unix(1700000000, 0)
	a, b := file{"a", 0o644, []byte("one")}, file{"b", 0o755, []byte("two")}
	var first, second bytes.Buffer
	must(t, writeTarGzip(&first, []file{a, b}, at))
	must(t, writeTarGzip(&second, []file{b, a}, at))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same files in another order give another archive")
	}
	second.Reset()
	must(t, writeTarGzip(&second, []file{a}, at))
	if bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("other files give the same archive")
	}
}

// The checksums list all files, and a second call lists the same.
func TestWriteChecksums(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "b"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o644))
	must(t, writeChecksums(dir))
	must(t, writeChecksums(dir))
	got, err := os.ReadFile(filepath.Join(dir, checksumFile))
	must(t, err)
	// sha256sum prints these.
	const want = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  a\n" +
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"
	if string(got) != want {
		t.Errorf("checksums\n%swant\n%s", got, want)
	}
}

// kubectl completes the plugin by the program that an archive has: it asks the plugin on the PATH for words, with the arguments as they
// are.
func TestPluginCompletion(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kubectl_complete-stowage": string(pluginCompletion),
		"kubectl-stowage":          "#!/usr/bin/env sh\nprintf '[%s]' \"$@\"\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "kubectl_complete-stowage"), "explain", "pod", "a b", "")
	cmd.Env = []string{"PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if want := "[__complete][explain][pod][a b][]"; err != nil || string(out) != want {
		t.Errorf("it printed %q (%v), want %q", out, err, want)
	}
}
