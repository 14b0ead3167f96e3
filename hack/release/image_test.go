package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const root = "../.."

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// here builds for this machine alone, which is enough to look at.
func here(root, archive string) options {
	return options{
		root: root, platforms: []string{"linux/" + runtime.GOARCH}, version: "v1.2.3", revision: "abc", created: time.Unix(1700000000, 0).UTC(),
		archive: archive, tag: "stowage:v1.2.3", sbom: archive + ".cdx.json",
	}
}

func sum(t *testing.T, file string) [32]byte {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	return sha256.Sum256(data)
}

// dockerContext copies into dir what the Dockerfile copies into its build stage.
func dockerContext(t *testing.T, dir string) {
	t.Helper()
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	must(t, err)
	ignore, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	must(t, err)
	sent := strings.Split(string(ignore), "\n")
	copies := 0
	for line := range strings.Lines(string(dockerfile)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "COPY" || strings.HasPrefix(words[1], "--") {
			continue
		}
		for _, part := range words[1 : len(words)-1] {
			copies++
			part = strings.TrimSuffix(part, "/")
			if !slices.Contains(sent, "!"+part) {
				t.Errorf(".dockerignore does not send %s, which the Dockerfile copies", part)
			}
			from, to := filepath.Join(root, part), filepath.Join(dir, part)
			must(t, os.MkdirAll(filepath.Dir(to), 0o755))
			if info, err := os.Stat(from); err == nil && !info.IsDir() {
				data, err := os.ReadFile(from)
				must(t, err)
				must(t, os.WriteFile(to, data, 0o644))
				continue
			}
			must(t, os.CopyFS(to, os.DirFS(from)))
		}
	}
	if copies == 0 {
		t.Fatal("the Dockerfile copies nothing")
	}
}

// Two builds of the same source in two places are equal. The second place has only what the Dockerfile
// copies, so the test also fails if the Dockerfile leaves out a package.
func TestReproducible(t *testing.T) {
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "elsewhere")
	dockerContext(t, elsewhere)
	a, b := here(root, filepath.Join(dir, "a.tar")), here(elsewhere, filepath.Join(dir, "b.tar"))
	first, err := build(t.Context(), a)
	must(t, err)
	second, err := build(t.Context(), b)
	must(t, err)
	if first != second {
		t.Errorf("the digests are %s and %s", first, second)
	}
	if sum(t, a.archive) != sum(t, b.archive) || sum(t, a.sbom) != sum(t, b.sbom) {
		t.Error("the archives or the lists differ")
	}
}

// The image is one binary, run by nobody in particular.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	o := here(root, filepath.Join(dir, "image.tar"))
	digest, err := build(t.Context(), o)
	must(t, err)
	unpacked := filepath.Join(dir, "layout")
	untar(t, o.archive, unpacked)
	path, err := layout.FromPath(unpacked)
	must(t, err)
	all, err := path.ImageIndex()
	must(t, err)
	list, err := all.IndexManifest()
	must(t, err)
	if len(list.Manifests) != 1 || list.Manifests[0].Digest != digest || list.Manifests[0].Annotations["io.containerd.image.name"] != "docker.io/library/stowage:v1.2.3" {
		t.Fatalf("the layout has %+v", list.Manifests)
	}

	index, err := all.ImageIndex(digest)
	must(t, err)
	platforms, err := index.IndexManifest()
	must(t, err)
	if len(platforms.Manifests) != 1 || platforms.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the index has %+v", platforms.Manifests)
	}
	image, err := index.Image(platforms.Manifests[0].Digest)
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	c := config.Config
	if c.User != "65532:65532" || strings.Join(append(c.Entrypoint, c.Cmd...), " ") != "/stowage serve" {
		t.Errorf("the configuration is %+v", c)
	}
	if c.Labels["org.opencontainers.image.version"] != "v1.2.3" || c.Labels["org.opencontainers.image.revision"] != "abc" || c.Labels["org.opencontainers.image.licenses"] != "Apache-2.0" {
		t.Errorf("the labels are %v", c.Labels)
	}
	layers, err := image.Layers()
	must(t, err)
	if len(layers) != 1 {
		t.Fatalf("%d layers", len(layers))
	}
	files, err := layers[0].Uncompressed()
	must(t, err)
	r := tar.NewReader(files)
	h, err := r.Next()
	must(t, err)
	if h.Name != "stowage" || h.Mode != 0o755 || h.Uid != 0 {
		t.Errorf("the file is %+v", h)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("there is more than one file: %v", err)
	}

	// The list names what go.mod names.
	data, err := os.ReadFile(o.sbom)
	must(t, err)
	var bom cdx.BOM
	must(t, json.NewDecoder(bytes.NewReader(data)).Decode(&bom))
	found := map[string]bool{}
	for _, c := range *bom.Components {
		found[c.Name] = c.Version != ""
	}
	for _, want := range []string{"std", "k8s.io/api", "sigs.k8s.io/controller-runtime"} {
		if !found[want] {
			t.Errorf("%s is not in the list of %d modules", want, len(found))
		}
	}
}

// A push needs no daemon, and registries find the list by the image.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer server.Close()
	o := here(root, "")
	o.sbom = ""
	o.push, o.insecure = strings.TrimPrefix(server.URL, "http://")+"/stowage:v1.2.3", true
	digest, err := build(t.Context(), o)
	must(t, err)
	ref, err := name.ParseReference(o.push, name.Insecure)
	must(t, err)
	pulled, err := remote.Index(ref)
	must(t, err)
	if got, err := pulled.Digest(); err != nil || got != digest {
		t.Errorf("pulled %s, %v; pushed %s", got, err, digest)
	}
	referrers, err := remote.Referrers(ref.Context().Digest(digest.String()))
	must(t, err)
	list, err := referrers.IndexManifest()
	must(t, err)
	if len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != sbomType {
		t.Errorf("what refers to the image is %+v", list.Manifests)
	}
}

func TestWrongPlatform(t *testing.T) {
	o := here(root, filepath.Join(t.TempDir(), "image.tar"))
	o.platforms = []string{"amd64"}
	if _, err := build(t.Context(), o); err == nil || !strings.Contains(err.Error(), `"amd64" is no platform`) {
		t.Errorf("got %v", err)
	}
}

func untar(t *testing.T, archive, to string) {
	t.Helper()
	file, err := os.Open(archive)
	must(t, err)
	defer func() { _ = file.Close() }()
	r := tar.NewReader(file)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		must(t, err)
		path := filepath.Join(to, h.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		data, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o644))
	}
}
