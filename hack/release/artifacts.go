package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// downloads is where GitHub serves the files of a release.
const downloads = "https://github.com/stowage-dev/stowage/releases/download"

// cliPlatforms are those of the command line.
var cliPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// completions are the files of an archive that shells read, and the arguments that print them.
var completions = []struct {
	name string
	args []string
}{
	{"completions/stowage.bash", []string{"completion", "bash"}},
	{"completions/_stowage", []string{"completion", "zsh"}},
	{"completions/stowage.fish", []string{"completion", "fish"}},
}

// pluginCompletion is the program with which kubectl completes the plugin. `make build` puts it beside the plugin, too.
//
//go:embed kubectl_complete-stowage
var pluginCompletion []byte

// release builds all files of a release into o.dir, which must not exist yet: the image, the command line for each
// platform, the chart, the list of modules, the manifests of package managers, and the checksums.
func release(ctx context.Context, o options) error {
	number, err := chartVersion(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(o.dir, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "stowage-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()

	o.binaries = work
	for _, p := range cliPlatforms {
		if err := compileFor(ctx, o, p); err != nil {
			return err
		}
	}
	o.archive, o.sbom, o.tag = filepath.Join(o.dir, "stowage-image-"+number+".tar"), filepath.Join(o.dir, "stowage-"+number+".cdx.json"), "stowage:"+number
	digest, err := build(ctx, o)
	if err != nil {
		return err
	}
	// What is pushed later must have this digest.
	if err := os.WriteFile(o.archive+".digest", []byte(digest.String()+"\n"), 0o644); err != nil {
		return err
	}
	archives, err := archive(ctx, o)
	if err != nil {
		return err
	}
	if err := packageChart(ctx, o, number, work); err != nil {
		return err
	}
	if err := writeManifests(o, o.dir, imageOfRelease(o.registry, number, digest)); err != nil {
		return err
	}
	for _, m := range []struct{ file, text string }{{"stowage-krew.yaml", krew}, {"stowage.rb", homebrew}} {
		if err := writeManifest(filepath.Join(o.dir, m.file), m.text, o.version, number, archives); err != nil {
			return err
		}
	}
	return writeChecksums(o.dir)
}

// imageOfRelease is the image that install.yaml names. In a registry, the digest says which one it is.
func imageOfRelease(registry, number string, digest v1.Hash) string {
	if registry == "" {
		return "stowage:" + number
	}
	return registry + "/stowage:" + number + "@" + digest.String()
}

// chartVersion returns the version of the chart. The release has to have the same.
func chartVersion(o options) (string, error) {
	data, err := os.ReadFile(filepath.Join(o.root, "charts", "stowage", "Chart.yaml"))
	if err != nil {
		return "", err
	}
	for _, field := range []string{"version", "appVersion"} {
		m := regexp.MustCompile(`(?m)^` + field + `: (\S+)$`).FindSubmatch(data)
		if m == nil || "v"+string(m[1]) != o.version {
			return "", fmt.Errorf("charts/stowage/Chart.yaml: %s must be %s without its v", field, o.version)
		}
	}
	return strings.TrimPrefix(o.version, "v"), nil
}

// binaryOf is where the program for a platform is.
func binaryOf(o options, platform string) string {
	return filepath.Join(o.binaries, strings.ReplaceAll(platform, "/", "-"))
}

func compileFor(ctx context.Context, o options, p string) error {
	platform, err := v1.ParsePlatform(p)
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return fmt.Errorf("%q is no platform; write linux/amd64 or the like", p)
	}
	fmt.Fprintf(os.Stderr, "Building for %s\n", p)
	return compile(ctx, o, platform, binaryOf(o, p))
}

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// archive writes the archives of the command line, and returns their checksums by platform.
func archive(ctx context.Context, o options) (map[string]string, error) {
	licence, err := os.ReadFile(filepath.Join(o.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	files := []file{{"LICENSE", 0o644, licence}, {"kubectl_complete-stowage", 0o755, pluginCompletion}}
	host := runtime.GOOS + "/" + runtime.GOARCH
	if !slices.Contains(cliPlatforms, host) {
		return nil, fmt.Errorf("a release is built on one of %s, because the command line prints its own completions", strings.Join(cliPlatforms, ", "))
	}
	for _, c := range completions {
		script, err := exec.CommandContext(ctx, binaryOf(o, host), c.args...).Output()
		if err != nil {
			return nil, fmt.Errorf("print %s: %w", c.name, err)
		}
		files = append(files, file{c.name, 0o644, script})
	}
	sums := map[string]string{}
	for _, p := range cliPlatforms {
		binary, err := os.ReadFile(binaryOf(o, p))
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := writeTarGzip(&out, append([]file{{"stowage", 0o755, binary}}, files...), o.created); err != nil {
			return nil, err
		}
		name := archiveName(o.version, p)
		fmt.Fprintf(os.Stderr, "Writing %s\n", name)
		if err := os.WriteFile(filepath.Join(o.dir, name), out.Bytes(), 0o644); err != nil {
			return nil, err
		}
		sums[p] = fmt.Sprintf("%x", sha256.Sum256(out.Bytes()))
	}
	return sums, nil
}

func archiveName(version, platform string) string {
	return fmt.Sprintf("stowage_%s_%s.tar.gz", version, strings.ReplaceAll(platform, "/", "_"))
}

// writeTarGzip writes files in the order of their names. The bytes depend on the arguments alone.
func writeTarGzip(to io.Writer, files []file, at time.Time) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.name, b.name) }) {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg, ModTime: at}); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

// packageChart lets Helm pack the chart, and packs what Helm packed once more: without the time of day, and with the
// registry of the image.
func packageChart(ctx context.Context, o options, number, work string) error {
	fmt.Fprintln(os.Stderr, "Packing the chart")
	helm, err := filepath.Abs(o.helm)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, helm, "package", filepath.Join(o.root, "charts", "stowage"), "--destination", work)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm package: %w\n%s", err, out)
	}
	name := "stowage-" + number + ".tgz"
	packed, err := os.Open(filepath.Join(work, name))
	if err != nil {
		return err
	}
	defer func() { _ = packed.Close() }()
	z, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	var files []file
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if h.Name == "stowage/values.yaml" && o.registry != "" {
			const none = "\n  registry: \"\"\n"
			if bytes.Count(content, []byte(none)) != 1 {
				return errors.New("charts/stowage/values.yaml has no image.registry that is empty")
			}
			content = bytes.Replace(content, []byte(none), fmt.Appendf(nil, "\n  registry: %q\n", o.registry), 1)
		}
		if h.Name == "stowage/Chart.yaml" && o.registry != "" {
			image := []byte("image: stowage:" + number)
			if bytes.Count(content, image) != 1 {
				return errors.New("charts/stowage/Chart.yaml does not list the image once: run make generate")
			}
			content = bytes.Replace(content, image, []byte("image: "+o.registry+"/stowage:"+number), 1)
		}
		files = append(files, file{h.Name, 0o644, content})
	}
	var out bytes.Buffer
	if err := writeTarGzip(&out, files, o.created); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.dir, name), out.Bytes(), 0o644)
}

// krew is a manifest of a kubectl plugin (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
const krew = `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: stowage
spec:
  version: {{.Version}}
  homepage: https://github.com/stowage-dev/stowage
  shortDescription: Explain where pods go and how big they are
  description: |
    Stowage divides the pods of a workload over node pools, gives the pods of
    DaemonSets a share of their node, and counts the VMs of peer pods.
    The plugin compares the cluster with the policies, explains single pods,
    and shows what would be decided about manifests.
  platforms:
{{- range .Archives}}
  - selector:
      matchLabels:
        os: {{.OS}}
        arch: {{.Arch}}
    uri: {{.URL}}
    sha256: {{.Sum}}
    bin: stowage
{{- end}}
`

// homebrew is a formula (https://docs.brew.sh/Formula-Cookbook).
const homebrew = `class Stowage < Formula
  desc "Admission system that decides where Kubernetes pods go and how big they are"
  homepage "https://github.com/stowage-dev/stowage"
  version "{{.Number}}"
  license "Apache-2.0"
{{range .Archives}}
  if {{if eq .OS "darwin"}}OS.mac?{{else}}OS.linux?{{end}} && Hardware::CPU.{{if eq .Arch "arm64"}}arm?{{else}}intel?{{end}}
    url "{{.URL}}"
    sha256 "{{.Sum}}"
  end
{{end}}
  def install
    bin.install "stowage"
    bin.install "kubectl_complete-stowage"
    bin.install_symlink "stowage" => "kubectl-stowage"
    bash_completion.install "completions/stowage.bash" => "stowage"
    zsh_completion.install "completions/_stowage"
    fish_completion.install "completions/stowage.fish"
  end

  test do
    assert_match "{{.Version}}", shell_output("#{bin}/stowage version")
  end
end
`

func writeManifest(path, text, version, number string, sums map[string]string) error {
	type archived struct{ OS, Arch, URL, Sum string }
	var archives []archived
	for _, p := range cliPlatforms {
		system, arch, _ := strings.Cut(p, "/")
		archives = append(archives, archived{system, arch, downloads + "/" + version + "/" + archiveName(version, p), sums[p]})
	}
	var out bytes.Buffer
	if err := template.Must(template.New(path).Parse(text)).Execute(&out, map[string]any{"Version": version, "Number": number, "Archives": archives}); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// checksumFile lists the SHA-256 of all other files, as sha256sum does.
const checksumFile = "checksums.txt"

func writeChecksums(dir string) error {
	var out bytes.Buffer
	files, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Name() == checksumFile {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(data), f.Name())
	}
	return os.WriteFile(filepath.Join(dir, checksumFile), out.Bytes(), 0o644)
}
