package controlplane

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// archive packs one program as etcd's releases do.
func archive(t *testing.T, name, program string) string {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	a := tar.NewWriter(zipped)
	for _, f := range []struct{ name, text string }{{"README.md", "read me"}, {name, program}} {
		if err := a.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// redirect sends every request to a server.
type redirect struct{ to *url.URL }

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(req)
}

// downloadTest is a repository that pins the programs, and the server of their releases.
type downloadTest struct {
	root   string
	paths  map[string]string
	client *http.Client
	server *httptest.Server
	asked  []string
}

func newDownloadTest(t *testing.T, served map[string]string, half string, pins ...string) *downloadTest {
	t.Helper()
	d := &downloadTest{root: t.TempDir()}
	for file, text := range map[string]string{
		"kubernetes/go.mod": "require (\n\tk8s.io/kubernetes v1.2.3\n\tgo.etcd.io/etcd/server/v3 v3.4.5\n)\n",
		"kwok/go.mod":       "require sigs.k8s.io/kwok v0.6.7\n",
		"checksums.txt":     "# pinned\n" + strings.Join(pins, "\n") + "\n",
	} {
		file = filepath.Join(d.root, "hack", "controlplane", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(d.root, "bin", "controlplane"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.asked = append(d.asked, r.URL.Path)
		text, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		if r.URL.Path == half {
			text = text[:len(text)/2] // and the connection ends
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(d.server.Close)
	to, err := url.Parse(d.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	d.client = &http.Client{Transport: redirect{to}}
	return d
}

// get downloads what can be, and returns the names of what is left to build, and what was said.
func (d *downloadTest) get(t *testing.T) (left []string, said string, err error) {
	t.Helper()
	paths, missing, err := plan(d.root, programs)
	if err != nil {
		t.Fatal(err)
	}
	d.paths = paths
	var progress bytes.Buffer
	rest, err := download(t.Context(), d.client, d.root, paths, missing, &progress)
	for _, p := range rest {
		left = append(left, p.name)
	}
	return left, progress.String(), err
}

func TestDownload(t *testing.T) {
	t.Setenv(SourceVariable, "")
	platform := runtime.GOOS + "-" + runtime.GOARCH
	kube := "/release/v1.2.3/bin/" + runtime.GOOS + "/" + runtime.GOARCH + "/"
	etcd := archive(t, "etcd-v3.4.5-"+platform+"/etcd", "the etcd")
	served := map[string]string{
		kube + "kube-apiserver": "the API server",
		kube + "kube-scheduler": "the scheduler, which stops half-way",
		kube + "kubectl":        "not the pinned kubectl",
		"/etcd-io/etcd/releases/download/v3.4.5/etcd-v3.4.5-" + platform + ".tar.gz": etcd,
		"/kubernetes-sigs/kwok/releases/download/v0.6.7/kwok-" + platform:            "the kwok",
	}
	d := newDownloadTest(t, served, kube+"kube-scheduler",
		sha("the API server")+"  kube-apiserver-v1.2.3-"+platform,
		sha(served[kube+"kube-scheduler"])+"  kube-scheduler-v1.2.3-"+platform,
		sha("the kubectl")+"  kubectl-v1.2.3-"+platform,
		sha(etcd)+"  etcd-v3.4.5-"+platform,
		sha("the kwok")+"  kwok-v0.6.7-"+platform,
	) // kube-controller-manager is not pinned
	left, said, err := d.get(t)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"kube-controller-manager", "kube-scheduler", "kubectl"}; !slices.Equal(left, want) {
		t.Errorf("left to build: %v, not %v\n%s", left, want, said)
	}
	for name, want := range map[string]string{"kube-apiserver": "the API server", "etcd": "the etcd", "kwok": "the kwok"} {
		have, err := os.ReadFile(d.paths[name])
		if err != nil || string(have) != want {
			t.Errorf("%s is %q, %v", name, have, err)
		}
		if info, err := os.Stat(d.paths[name]); err == nil && info.Mode().Perm() != 0o755 {
			t.Errorf("%s has the mode %s", name, info.Mode())
		}
	}
	for _, part := range []string{"kube-scheduler-v1.2.3-" + platform + " is built instead: ", "unexpected EOF", "the SHA-256 is " + sha("not the pinned kubectl")} {
		if !strings.Contains(said, part) {
			t.Errorf("nothing says %q:\n%s", part, said)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(d.root, "bin", "controlplane")); err != nil || len(entries) != 3 {
		t.Errorf("a part of a download is left: %v, %v", entries, err)
	}
}

func TestDownloadFails(t *testing.T) {
	platform := runtime.GOOS + "-" + runtime.GOARCH
	pin := sha("x") + "  kube-apiserver-v1.2.3-" + platform
	t.Run("the file is not there", func(t *testing.T) {
		t.Setenv(SourceVariable, "download")
		d := newDownloadTest(t, nil, "", pin)
		if left, said, err := d.get(t); err != nil || len(left) != len(programs) || !strings.Contains(said, "404 Not Found") {
			t.Errorf("%v, %v\n%s", left, err, said)
		}
	})
	t.Run("the archive lacks the program", func(t *testing.T) {
		t.Setenv(SourceVariable, "")
		text := archive(t, "other/etcd", "x")
		d := newDownloadTest(t, map[string]string{"/etcd-io/etcd/releases/download/v3.4.5/etcd-v3.4.5-" + platform + ".tar.gz": text}, "", sha(text)+"  etcd-v3.4.5-"+platform)
		if left, said, err := d.get(t); err != nil || len(left) != len(programs) || !strings.Contains(said, "the archive has no etcd-v3.4.5") {
			t.Errorf("%v, %v\n%s", left, err, said)
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		t.Setenv(SourceVariable, "")
		d := newDownloadTest(t, nil, "", pin, sha("x")+"  kubectl-v1.2.3-"+platform)
		d.server.Close()
		if left, said, err := d.get(t); err != nil || len(left) != len(programs) || strings.Count(said, "is built instead") != 1 {
			t.Errorf("%v, %v; one failure to connect is enough:\n%s", left, err, said)
		}
	})
	t.Run("build", func(t *testing.T) {
		t.Setenv(SourceVariable, "build")
		d := newDownloadTest(t, nil, "", pin)
		if left, said, err := d.get(t); err != nil || len(left) != len(programs) || len(d.asked) > 0 {
			t.Errorf("%v, %v, %v\n%s", left, err, d.asked, said)
		}
	})
	t.Run("another source", func(t *testing.T) {
		t.Setenv(SourceVariable, "guess")
		if _, _, err := newDownloadTest(t, nil, "", pin).get(t); err == nil || !strings.Contains(err.Error(), `CONTROLPLANE is "guess"; it must be download or build`) {
			t.Error(err)
		}
	})
	t.Run("a wrong line", func(t *testing.T) {
		t.Setenv(SourceVariable, "")
		if _, _, err := newDownloadTest(t, nil, "", "abc kubectl").get(t); err == nil || !strings.Contains(err.Error(), "is no line of a SHA-256") {
			t.Error(err)
		}
	})
}
