package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is who the process is. It owns nothing and has no name.
const user = "65532:65532"

// build makes the image, writes and pushes it, and returns the digest of its index.
func build(ctx context.Context, o options) (v1.Hash, error) {
	dir, err := os.MkdirTemp("", "stowage-image-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// 1. A binary, and an image of it, for each platform.
	if o.binaries == "" {
		o.binaries = dir
		for _, p := range o.platforms {
			if err := compileFor(ctx, o, p); err != nil {
				return v1.Hash{}, err
			}
		}
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var inside []byte
	for i, p := range o.platforms {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			return v1.Hash{}, err
		}
		binary := binaryOf(o, p)
		image, err := imageOf(binary, platform, o)
		if err != nil {
			return v1.Hash{}, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
		if i == 0 { // the others have the same modules
			if inside, err = billOfMaterials(binary, o.version); err != nil {
				return v1.Hash{}, err
			}
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}

	// 2. The list of what is in it.
	if o.sbom != "" {
		if err := os.MkdirAll(filepath.Dir(o.sbom), 0o755); err != nil {
			return v1.Hash{}, err
		}
		if err := os.WriteFile(o.sbom, inside, 0o644); err != nil {
			return v1.Hash{}, err
		}
	}

	// 3. Where they go.
	if o.archive != "" {
		if err := writeArchive(filepath.Join(dir, "layout"), index, o); err != nil {
			return v1.Hash{}, fmt.Errorf("write %s: %w", o.archive, err)
		}
	}
	if o.push != "" {
		if err := push(ctx, index, inside, o); err != nil {
			return v1.Hash{}, fmt.Errorf("push %s: %w", o.push, err)
		}
	}
	return digest, nil
}

// compile builds the program so that the same source gives the same bytes anywhere.
func compile(ctx context.Context, o options, p *v1.Platform, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", // as the Makefile, for one build cache
		"-ldflags", "-s -w -buildid= -X github.com/stowage-dev/stowage/internal/platform/version.Version="+o.version, "-o", to, "./cmd/stowage")
	cmd.Dir = o.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOFLAGS=-mod=readonly",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off") // whatever the builder prefers
	if strings.HasPrefix(p.Variant, "v") {
		cmd.Env = append(cmd.Env, "GOARM="+p.Variant[1:])
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s: %w\n%s", p, err, out)
	}
	return nil
}

// imageOf returns an image with one file.
func imageOf(binary string, p *v1.Platform, o options) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: "stowage", Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg, ModTime: o.created, Format: tar.FormatPAX}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: p.Architecture, OS: p.OS, Variant: p.Variant, Created: v1.Time{Time: o.created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: user, Entrypoint: []string{"/stowage"}, Cmd: []string{"serve"}, WorkingDir: "/", Labels: labels(o)},
	}); err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "hack/release"}})
}

// labels are those of the OCI image specification (annotations.md).
func labels(o options) map[string]string {
	out := map[string]string{
		"org.opencontainers.image.title":       "stowage",
		"org.opencontainers.image.description": "Where a pod goes, how big it is, and what it really consumes",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/stowage-dev/stowage",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
	}
	if o.revision != "" {
		out["org.opencontainers.image.revision"] = o.revision
	}
	return out
}

// sbomType is the media type of CycloneDX as JSON.
const sbomType = "application/vnd.cyclonedx+json"

// attach returns the list as an artifact that refers to the image, so that registries find it.
func attach(index v1.ImageIndex, list []byte) (v1.Image, error) {
	subject, err := partial(index)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	if image, err = mutate.AppendLayers(image, static.NewLayer(list, sbomType)); err != nil {
		return nil, err
	}
	return mutate.Subject(image, *subject).(v1.Image), nil
}

// partial describes an index.
func partial(index v1.ImageIndex) (*v1.Descriptor, error) {
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	size, err := index.Size()
	if err != nil {
		return nil, err
	}
	return &v1.Descriptor{MediaType: types.OCIImageIndex, Digest: digest, Size: size}, nil
}

// writeArchive writes an OCI layout as a tar file. It has the image alone: runtimes try to
// unpack whatever is in one.
func writeArchive(dir string, index v1.ImageIndex, o options) error {
	ref, err := name.ParseReference(o.tag)
	if err != nil {
		return err
	}
	// As a kubelet looks for it: containerd takes this name as it is.
	full := strings.Replace(ref.Name(), name.DefaultRegistry+"/", "docker.io/", 1)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// Docker and containerd go by the first annotation, others by the second.
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": full, "org.opencontainers.image.ref.name": full,
	})); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.archive), 0o755); err != nil {
		return err
	}
	file, err := os.Create(o.archive)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(file, dir, o.created), file.Close())
}

// writeTar writes the files of a directory, in the order of their names.
func writeTar(to io.Writer, dir string, at time.Time) error {
	w := tar.NewWriter(to)
	files := os.DirFS(dir)
	if err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg, ModTime: at}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}

// push pushes the image, and the list of what is in it, which refers to the image.
func push(ctx context.Context, index v1.ImageIndex, inside []byte, o options) error {
	attached, err := attach(index, inside)
	if err != nil {
		return err
	}
	var how []name.Option
	if o.insecure {
		how = append(how, name.Insecure)
	}
	ref, err := name.ParseReference(o.push, how...)
	if err != nil {
		return err
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(ref, index, with...); err != nil {
		return err
	}
	digest, err := attached.Digest()
	if err != nil {
		return err
	}
	return remote.Write(ref.Context().Digest(digest.String()), attached, with...)
}
