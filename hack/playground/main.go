// Command playground builds the page of docs/playground: one file, with the program in it.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("o", "bin/playground/index.html", "the page")
	flag.Parse()
	if err := build(*out); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// limit is how large the page may be, in bytes, compressed by gzip.
const limit = 8 << 20

func build(out string) error {
	// 1. The program, and the script of Go that runs it.
	dir, err := os.MkdirTemp("", "playground-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	wasm := filepath.Join(dir, "playground.wasm")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", wasm, "./cmd/playground")
	cmd.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	program, err := os.ReadFile(wasm)
	if err != nil {
		return err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	support, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		return err
	}
	packed, err := compress(program)
	if err != nil {
		return err
	}

	// 2. The examples, in the order of their names.
	files, err := filepath.Glob("docs/playground/examples/*.yaml")
	if err != nil {
		return err
	}
	type example struct {
		Name      string `json:"name"`
		Manifests string `json:"manifests"`
	}
	var examples []example
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "-")
		examples = append(examples, example{strings.ReplaceAll(name, "-", " "), string(data)})
	}
	texts, err := json.Marshal(examples) // it escapes <, so that no example ends the script
	if err != nil {
		return err
	}

	// 3. One page. The worker of the page takes the script of Go from an element of it.
	if bytes.Contains(support, []byte("</script")) {
		return errors.New("the script of Go ends the element that it is in")
	}
	page, err := os.ReadFile("docs/playground/page.html")
	if err != nil {
		return err
	}
	parts := fmt.Sprintf("<script type=\"application/json\" id=\"exampleTexts\">%s</script>\n<script type=\"text/plain\" id=\"program\">%s</script>\n<script type=\"text/plain\" id=\"support\">%s</script>",
		texts, base64.StdEncoding.EncodeToString(packed), support)
	page = bytes.Replace(page, []byte("<!-- program -->"), []byte(parts), 1)
	if packed, err = compress(page); err != nil {
		return err
	}
	if len(packed) > limit {
		return fmt.Errorf("the page has %d bytes, compressed by gzip; %d are allowed", len(packed), limit)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MiB; compressed by gzip %.1f MiB, with %.1f MiB of the program\n", out, mib(len(page)), mib(len(packed)), mib(len(program)))
	return os.WriteFile(out, page, 0o644)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
