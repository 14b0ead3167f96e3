package node

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// The images of the tests.
const (
	pauseImage = "stowage.test/pause:1"
	toolImage  = "stowage.test/nodetool:1"
)

// writeImage packs a static program as an image, in the form of `docker save`
// (https://github.com/moby/docker-image-spec/blob/main/spec.md).
func writeImage(archive, name, program string, entrypoint ...string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer := archive + ".layer"
	defer func() { _ = os.Remove(layer) }()
	if err := writeTar(layer, file{"nodetool", content, 0o755}); err != nil {
		return err
	}
	packed, err := os.ReadFile(layer)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(packed))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	return writeTar(archive, file{"config.json", config, 0o644}, file{"layer.tar", packed, 0o644}, file{"manifest.json", manifest, 0o644})
}

type file struct {
	name    string
	content []byte
	mode    int64
}

func writeTar(path string, files ...file) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return errors.Join(err, out.Close())
		}
		if _, err := w.Write(f.content); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	return errors.Join(w.Close(), out.Close())
}
