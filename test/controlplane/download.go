package controlplane

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// SourceVariable is the environment variable that says where the programs come from. With "build", all are built. With
// "download" or nothing, those whose checksum is pinned are downloaded first, and built where that fails.
const SourceVariable = "CONTROLPLANE"

// checksumsFile has the pinned checksums, below the root. Each line is a SHA-256 and the name of a release file.
const checksumsFile = "hack/controlplane/checksums.txt"

// release is a file of a program's own release.
type release struct {
	// name is that of the file in [checksumsFile]: the program, its version, and the platform.
	name string
	url  string
	// member is the program's path in a .tar.gz archive. It is empty if the file is the program.
	member string
}

// releaseOf returns the file that a program's project has released, or false if it releases none.
func (p *program) releaseOf(version string) (release, bool) {
	platform := runtime.GOOS + "-" + runtime.GOARCH
	r := release{name: fmt.Sprintf("%s-%s-%s", p.name, version, platform)}
	switch {
	case p.pin == kubernetesModule:
		r.url = fmt.Sprintf("https://dl.k8s.io/release/%s/bin/%s/%s/%s", version, runtime.GOOS, runtime.GOARCH, p.name)
	case p.name == "etcd":
		archive := fmt.Sprintf("etcd-%s-%s", version, platform)
		r.url = fmt.Sprintf("https://github.com/etcd-io/etcd/releases/download/%s/%s.tar.gz", version, archive)
		r.member = path.Join(archive, "etcd")
	case p.name == "kwok":
		r.url = fmt.Sprintf("https://github.com/kubernetes-sigs/kwok/releases/download/%s/kwok-%s", version, platform)
	default:
		return release{}, false
	}
	return r, true
}

// checksums reads the pinned checksums, by the names of files.
func checksums(root string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(checksumsFile)))
	if err != nil {
		return nil, err
	}
	pins := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		sum, name, ok := strings.Cut(line, "  ")
		if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size {
			return nil, fmt.Errorf("%s: %q is no line of a SHA-256, two spaces and a name", checksumsFile, line)
		}
		pins[name] = sum
	}
	return pins, nil
}

// newDownloadClient returns a client that gives up soon where the release addresses are out of reach.
func newDownloadClient() *http.Client {
	return &http.Client{
		Timeout: 10 * time.Minute,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 20 * time.Second,
		},
	}
}

// download gets the missing programs whose checksum is pinned, and returns those that are still missing. A failure is
// one line of progress, because what is missing is built. After a failure to connect no further download is tried.
func download(ctx context.Context, client *http.Client, root string, paths map[string]string, missing []program, progress io.Writer) ([]program, error) {
	switch source := os.Getenv(SourceVariable); source {
	case "build":
		return missing, nil
	case "", "download":
	default:
		return nil, fmt.Errorf("%s is %q; it must be download or build", SourceVariable, source)
	}
	pins, err := checksums(root)
	if err != nil {
		return nil, err
	}
	var left []program
	reached := true
	for _, p := range missing {
		version, err := p.version(root)
		if err != nil {
			return nil, err
		}
		r, ok := p.releaseOf(version)
		sum := pins[r.name]
		if !ok || sum == "" || !reached {
			left = append(left, p)
			continue
		}
		fmt.Fprintf(progress, "  downloading %s\n", r.name)
		if err := r.get(ctx, client, sum, paths[p.name]); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			unreachable := new(net.OpError)
			reached = !errors.As(err, &unreachable)
			fmt.Fprintf(progress, "  %s is built instead: %v\n", r.name, err)
			left = append(left, p)
		}
	}
	return left, nil
}

// get downloads the file, checks it and puts the program to a path.
func (r release) get(ctx context.Context, client *http.Client, sum, to string) error {
	body, err := r.open(ctx, client)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	file, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(file, hash), body); err != nil {
		return fmt.Errorf("GET %s: %w", r.url, err)
	}
	if have := hex.EncodeToString(hash.Sum(nil)); have != sum {
		return fmt.Errorf("GET %s: the SHA-256 is %s, not %s", r.url, have, sum)
	}
	if r.member != "" {
		if err := extract(file, r.member); err != nil {
			return fmt.Errorf("%s: %w", r.url, err)
		}
	}
	if err := errors.Join(file.Chmod(0o755), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), to)
}

// extract replaces an archive by one of its members.
func extract(file *os.File, member string) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive has no %s", member)
		}
		if err != nil {
			return err
		}
		if path.Clean(header.Name) != member {
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := file.Truncate(0); err != nil {
			return err
		}
		_, err = file.Write(data)
		return err
	}
}

// Pin downloads the release files of the newest version, and writes their checksums, for platforms that it can run on.
func Pin(ctx context.Context, root string, progress io.Writer) error {
	client := newDownloadClient()
	pins, err := checksums(root)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, p := range slices.Concat(programs, nodePrograms) {
		version, err := p.version(root)
		if err != nil {
			return err
		}
		r, ok := p.releaseOf(version)
		if !ok {
			continue
		}
		fmt.Fprintf(progress, "  %s\n", r.name)
		sum, err := r.sum(ctx, client)
		if err != nil {
			return err
		}
		if before := pins[r.name]; before != "" && before != sum {
			return fmt.Errorf("%s has the SHA-256 %s, and %s pins %s: somebody has changed a released file", r.url, sum, checksumsFile, before)
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, r.name)
	}
	file := filepath.Join(root, filepath.FromSlash(checksumsFile))
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			kept.WriteString(line)
		}
	}
	return os.WriteFile(file, []byte(kept.String()+lines.String()), 0o644)
}

// sum downloads the file and returns its SHA-256.
func (r release) sum(ctx context.Context, client *http.Client) (string, error) {
	body, err := r.open(ctx, client)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, body); err != nil {
		return "", fmt.Errorf("GET %s: %w", r.url, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// open begins to download the file.
func (r release) open(ctx context.Context, client *http.Client) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", r.url, resp.Status)
	}
	return resp.Body, nil
}
