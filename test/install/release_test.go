package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var released = flag.String("release", "", "directory with the files of a release, which `make release` writes")

// The files of a release are whole, and both the chart and the plugin work as a user installs them.
func TestRelease(t *testing.T) {
	if *released == "" {
		t.Skip("make release-dry-run builds a release and runs this test on it")
	}
	sums := checkSums(t)
	number := strings.TrimSpace(do(t, "sed", "-n", "s/^version: //p", "charts/stowage/Chart.yaml"))
	archiveOf := func(system, arch string) string { return fmt.Sprintf("stowage_v%s_%s_%s.tar.gz", number, system, arch) }

	t.Run("package managers", func(t *testing.T) {
		var plugin struct {
			Spec struct {
				Version   string
				Platforms []struct {
					Selector struct{ MatchLabels map[string]string }
					URI, Bin string
					SHA256   string `json:"sha256"`
				}
			}
		}
		data, err := os.ReadFile(filepath.Join(*released, "stowage-krew.yaml"))
		must(t, err)
		must(t, yaml.Unmarshal(data, &plugin))
		formula, err := os.ReadFile(filepath.Join(*released, "stowage.rb"))
		must(t, err)
		if len(plugin.Spec.Platforms) != 4 || plugin.Spec.Version != "v"+number {
			t.Errorf("the plugin's manifest is of version %s and has %d platforms", plugin.Spec.Version, len(plugin.Spec.Platforms))
		}
		for _, p := range plugin.Spec.Platforms {
			name := archiveOf(p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"])
			if p.SHA256 == "" || p.SHA256 != sums[name] || !strings.HasSuffix(p.URI, "/v"+number+"/"+name) {
				t.Errorf("the plugin's manifest has %s with the sum %s; it is %q", p.URI, p.SHA256, sums[name])
			}
			if !bytes.Contains(formula, []byte(`url "`+p.URI+"\"\n    sha256 \""+p.SHA256+`"`)) {
				t.Errorf("the formula has no %s with that sum", p.URI)
			}
		}
		if ruby, err := exec.LookPath("ruby"); err == nil {
			do(t, ruby, "-c", filepath.Join(*released, "stowage.rb"))
		}
	})

	dir := extract(t, filepath.Join(*released, archiveOf(runtime.GOOS, runtime.GOARCH)))
	t.Run("the plugin", func(t *testing.T) {
		must(t, os.Symlink("stowage", filepath.Join(dir, "kubectl-stowage")))
		t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
		if out := do(t, kubectl, "stowage", "version"); strings.TrimSpace(out) != "v"+number {
			t.Errorf("kubectl stowage version prints %q", out)
		}
		if out := do(t, kubectl, "__complete", "stowage", "sta"); !strings.Contains(out, "status") {
			t.Errorf("kubectl completes the plugin with %q", out)
		}
		for _, name := range []string{"stowage.bash", "_stowage", "stowage.fish"} {
			script, err := os.ReadFile(filepath.Join(dir, "completions", name))
			must(t, err)
			if !bytes.Contains(script, []byte("__complete")) {
				t.Errorf("%s completes nothing:\n%s", name, script)
			}
		}
	})

	t.Run("the plugin by krew", func(t *testing.T) {
		krew, err := exec.LookPath("krew")
		if err != nil && os.Getenv("CI") != "" {
			t.Fatal("the workflow has installed no krew")
		}
		if err != nil {
			t.Skip("krew is not on the PATH (go install sigs.k8s.io/krew/cmd/krew@v0.5.0)")
		}
		t.Setenv("KREW_ROOT", t.TempDir())
		archive, err := filepath.Abs(filepath.Join(*released, archiveOf(runtime.GOOS, runtime.GOARCH)))
		must(t, err)
		manifest, err := filepath.Abs(filepath.Join(*released, "stowage-krew.yaml"))
		must(t, err)
		do(t, krew, "install", "--manifest", manifest, "--archive", archive)
		t.Setenv("PATH", filepath.Join(os.Getenv("KREW_ROOT"), "bin")+string(os.PathListSeparator)+filepath.Dir(kubectl)+string(os.PathListSeparator)+"/usr/bin:/bin")
		if out := do(t, kubectl, "stowage", "version"); strings.TrimSpace(out) != "v"+number {
			t.Errorf("kubectl stowage version prints %q", out)
		}
	})

	t.Run("the chart", func(t *testing.T) {
		restricted(t)
		defer clean(t)
		built := binary
		binary = filepath.Join(dir, "stowage")
		defer func() { binary = built }()
		do(t, helm, "install", "stowage", filepath.Join(*released, "stowage-"+number+".tgz"), "--namespace", namespace, "--wait", "--timeout", "1m", "--set", "replicaCount=2")
		runInstalled(t)
		works(t)
		uninstall(t, func() { do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait") })
	})

	t.Run("the manifest", func(t *testing.T) {
		defer clean(t)
		built := binary
		binary = filepath.Join(dir, "stowage")
		defer func() { binary = built }()
		data, err := os.ReadFile(filepath.Join(*released, "install.yaml"))
		must(t, err)
		deployment := render(t, string(data))["Deployment/"+namespace+"/stowage"]
		image := get(t, deployment, "spec", "template", "spec", "containers", 0, "image").(string)
		if name, digest, pinned := strings.Cut(image, "@"); !strings.HasSuffix(name, "stowage:"+number) || pinned && digest != imageDigest(t, number) {
			t.Errorf("install.yaml names the image %s; the release has %s", image, imageDigest(t, number))
		}
		installs(t, *released, image)
		runInstalled(t)
		works(t)
		uninstalls(t, *released)
	})
}

// imageDigest is the digest of the release's image.
func imageDigest(t *testing.T, number string) string {
	t.Helper()
	digest, err := os.ReadFile(filepath.Join(*released, "stowage-image-"+number+".tar.digest"))
	must(t, err)
	return strings.TrimSpace(string(digest))
}

// checkSums compares all files of the release with their checksums, and returns these.
func checkSums(t *testing.T) map[string]string {
	t.Helper()
	list, err := os.ReadFile(filepath.Join(*released, "checksums.txt"))
	must(t, err)
	sums := map[string]string{}
	for line := range strings.Lines(string(list)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	files, err := os.ReadDir(*released)
	must(t, err)
	for _, f := range files {
		if f.Name() == "checksums.txt" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(*released, f.Name()))
		must(t, err)
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != sums[f.Name()] {
			t.Errorf("%s has the checksum %s; the list says %q", f.Name(), got, sums[f.Name()])
		}
	}
	// Four archives, the image and its digest, the chart, the list of modules, two manifests of package managers, install.yaml and
	// uninstall.yaml.
	if len(files) != len(sums)+1 || len(sums) != 12 {
		t.Errorf("there are %d files and %d checksums", len(files), len(sums))
	}
	return sums
}

// extract unpacks an archive into a new directory.
func extract(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(archive)
	must(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	must(t, err)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		must(t, os.MkdirAll(filepath.Dir(to), 0o755))
		must(t, os.WriteFile(to, content, h.FileInfo().Mode()))
	}
}
