package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// The image, unpacked, runs: as the user that it names, with nothing beside the binary but
// what a kubelet would mount, and nothing that it may write.
func TestImageRuns(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change its root directory and its user")
	}
	defer clean(t)
	do(t, kubectl, "apply", "--server-side", "-k", "config/default")

	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	archive := filepath.Join(dir, "image.tar")
	must(t, controlplane.BuildImage(t.Context(), repo, archive, "stowage:dev"))
	config, root := unpack(t, archive, filepath.Join(dir, "root"))
	if config.User != "65532:65532" {
		t.Fatalf("the user is %q", config.User)
	}

	// What a kubelet mounts: the account's token and the authority.
	mount := filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount")
	must(t, os.MkdirAll(mount, 0o755))
	token := do(t, kubectl, "-n", namespace, "create", "token", "stowage-controllers")
	must(t, os.WriteFile(filepath.Join(mount, "token"), []byte(strings.TrimSpace(token)), 0o644))
	must(t, os.WriteFile(filepath.Join(mount, "ca.crt"), cluster.Config.CAData, 0o644))
	must(t, os.WriteFile(filepath.Join(mount, "namespace"), []byte(namespace), 0o644))
	host, port, _ := strings.Cut(strings.TrimPrefix(cluster.Config.Host, "https://"), ":")

	health, err := controlplane.FreeAddress()
	must(t, err)
	args := append(append([]string{}, config.Entrypoint[1:]...), config.Cmd...)
	cmd := exec.CommandContext(t.Context(), config.Entrypoint[0], append(args, "--controllers", "--health-probe-bind-address="+health, "--metrics-bind-address=0", "--shutdown-delay=0s")...)
	cmd.Env = []string{"POD_NAMESPACE=" + namespace, "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	cmd.Dir = "/"
	logFile, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer func() { _ = logFile.Close() }()
	cmd.Stderr = logFile
	log := func() string {
		data, _ := os.ReadFile(logFile.Name())
		return string(data)
	}
	must(t, cmd.Start())
	eventually(t, "it answers /healthz and /readyz", func() error {
		for _, path := range []string{"/healthz", "/readyz"} {
			resp, err := http.Get("http://" + health + path)
			if err != nil {
				return fmt.Errorf("%w\n%s", err, log())
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", path, resp.Status)
			}
		}
		return nil
	})
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v:\n%s", err, log())
		}
	case <-time.After(30 * time.Second):
		t.Error("it did not end")
	}
}

// imageConfig is what of the OCI image configuration says how to run it.
type imageConfig struct {
	User            string
	Entrypoint, Cmd []string
}

// unpack unpacks the only image of an OCI archive, as a container runtime would.
func unpack(t *testing.T, archive, to string) (imageConfig, string) {
	t.Helper()
	file, err := os.Open(archive)
	must(t, err)
	defer func() { _ = file.Close() }()
	blobs := map[string][]byte{}
	for name, data := range entries(t, file) {
		blobs[strings.Replace(strings.TrimPrefix(name, "blobs/"), "/", ":", 1)] = data
	}
	type descriptor struct{ Digest string }
	var list struct{ Manifests []descriptor }
	must(t, json.Unmarshal(blobs["index.json"], &list))
	must(t, json.Unmarshal(blobs[list.Manifests[0].Digest], &list)) // of the platforms
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	must(t, json.Unmarshal(blobs[list.Manifests[0].Digest], &manifest))
	var config struct{ Config imageConfig }
	must(t, json.Unmarshal(blobs[manifest.Config.Digest], &config))
	must(t, os.MkdirAll(to, 0o755))
	for _, l := range manifest.Layers {
		layer, err := gzip.NewReader(bytes.NewReader(blobs[l.Digest]))
		must(t, err)
		for name, data := range entries(t, layer) {
			must(t, os.WriteFile(filepath.Join(to, name), data, 0o755))
		}
	}
	return config.Config, to
}

// entries reads the files of a tar archive.
func entries(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	r := tar.NewReader(from)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		out[h.Name], err = io.ReadAll(r)
		must(t, err)
	}
}
