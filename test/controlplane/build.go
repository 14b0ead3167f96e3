package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Binaries are the paths of the control plane's programs.
type Binaries struct {
	Etcd              string
	APIServer         string
	ControllerManager string
	Scheduler         string
	Kubectl           string
	Kwok              string
	// Kubelet and KubeProxy are for real nodes. [BuildNodePrograms] makes them.
	Kubelet   string
	KubeProxy string
	// KwokStages is a directory of kwok's own Stage files: how its nodes and
	// pods behave.
	KwokStages string
}

// program is one binary and where its source is pinned.
type program struct {
	name    string // of the binary
	module  string // directory under hack/controlplane whose go.mod pins it
	pin     string // module whose version names the binary
	pkg     string // main package
	ldflags func(version string) string
}

// nodePrograms are what a real node runs beside its container runtime.
var nodePrograms = []program{
	{"kubelet", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kubelet", kubernetesVersion},
	{"kube-proxy", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kube-proxy", kubernetesVersion},
}

const kubernetesModule = "k8s.io/kubernetes"

var programs = []program{
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", nil},
	{"kube-apiserver", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kube-apiserver", kubernetesVersion},
	{"kube-controller-manager", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kube-controller-manager", kubernetesVersion},
	{"kube-scheduler", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kube-scheduler", kubernetesVersion},
	{"kubectl", "kubernetes", kubernetesModule, "k8s.io/kubernetes/cmd/kubectl", kubernetesVersion},
	{"kwok", "kwok", "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok", nil},
}

// VersionVariable is the environment variable that chooses another version of Kubernetes than the newest, such
// as v1.30.14. Its module is in hack/controlplane/versions.
const VersionVariable = "KUBERNETES_VERSION"

// chosen returns the programs of the version that the environment chooses.
func chosen(root string) ([]program, error) {
	version := os.Getenv(VersionVariable)
	if version == "" {
		return programs, nil
	}
	module := filepath.Join("versions", version)
	if _, err := os.Stat(filepath.Join(root, "hack", "controlplane", module, "go.mod")); err != nil {
		have, _ := filepath.Glob(filepath.Join(root, "hack", "controlplane", "versions", "v*"))
		for i := range have {
			have[i] = filepath.Base(have[i])
		}
		return nil, fmt.Errorf("%s is %q; it must be one of %s, or empty for the newest", VersionVariable, version, strings.Join(have, ", "))
	}
	out := slices.Clone(programs)
	for i := range out {
		// Any kubectl serves, and etcd is not Kubernetes' own.
		if out[i].pin == kubernetesModule && out[i].name != "kubectl" {
			out[i].module = module
		}
	}
	return out, nil
}

// kubernetesVersion sets the version that the release build sets; without it a
// server says v0.0.0-master and clients refuse to parse it.
func kubernetesVersion(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s", pkg, version, parts[0], parts[1]))
	}
	return strings.Join(flags, " ")
}

// kwokStageFiles are the stages in use, in the kwok module.
var kwokStageFiles = []string{
	"kustomize/stage/node/fast/node-initialize.yaml",
	"kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
	"kustomize/stage/pod/fast/pod-ready.yaml",
	"kustomize/stage/pod/fast/pod-complete.yaml",
	"kustomize/stage/pod/fast/pod-delete.yaml",
}

// Locate returns the programs that Build made, or an error that says how to make
// them.
func Locate(root string) (Binaries, error) {
	chosen, err := chosen(root)
	if err != nil {
		return Binaries{}, err
	}
	paths, missing, err := plan(root, chosen)
	if err != nil {
		return Binaries{}, err
	}
	if len(missing) > 0 {
		return Binaries{}, fmt.Errorf("the control plane is not built (%s is missing): run `make controlplane`", paths[missing[0].name])
	}
	return Binaries{
		Etcd: paths["etcd"], APIServer: paths["kube-apiserver"], ControllerManager: paths["kube-controller-manager"],
		Scheduler: paths["kube-scheduler"], Kubectl: paths["kubectl"], Kwok: paths["kwok"], KwokStages: paths["kwok"] + stagesSuffix,
	}, nil
}

// LocateNodePrograms returns the same with the programs that [BuildNodePrograms] made.
func LocateNodePrograms(root string) (Binaries, error) {
	b, err := Locate(root)
	if err != nil {
		return Binaries{}, err
	}
	paths, missing, err := plan(root, nodePrograms)
	if err != nil {
		return Binaries{}, err
	}
	if len(missing) > 0 {
		return Binaries{}, fmt.Errorf("%s is not built", paths[missing[0].name])
	}
	b.Kubelet, b.KubeProxy = paths["kubelet"], paths["kube-proxy"]
	return b, nil
}

// stagesSuffix is what the name of the directory of kwok's stages has beyond that of kwok.
const stagesSuffix = "-stages"

// plan returns where each program belongs and which ones are not there yet.
func plan(root string, programs []program) (paths map[string]string, missing []program, err error) {
	paths = map[string]string{}
	for _, p := range programs {
		version, err := p.version(root)
		if err != nil {
			return nil, nil, err
		}
		path := filepath.Join(root, "bin", "controlplane", p.name+"-"+version)
		paths[p.name] = path
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, p)
		}
	}
	return paths, missing, nil
}

// version reads the pinned version from the program's go.mod.
func (p *program) version(root string) (string, error) {
	file := filepath.Join(root, "hack", "controlplane", p.module, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(p.pin) + ` (v\S+)`).FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s pins no version of %s", file, p.pin)
	}
	return string(m[1]), nil
}

// Build makes the programs that are missing, telling progress what it does. It downloads those whose checksum is
// pinned: see [SourceVariable]. The first build of the others takes minutes, because it compiles Kubernetes.
func Build(ctx context.Context, root string, progress io.Writer) error {
	programs, err := chosen(root)
	if err != nil {
		return err
	}
	paths, err := build(ctx, root, programs, progress)
	if err != nil {
		return err
	}
	// A bare machine can look around with this one.
	link := filepath.Join(root, "bin", "kubectl")
	if target, _ := os.Readlink(link); target != paths["kubectl"] {
		_ = os.Remove(link)
		if err := os.Symlink(paths["kubectl"], link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// BuildNodePrograms makes the kubelet and kube-proxy that are missing, as Build does.
func BuildNodePrograms(ctx context.Context, root string, progress io.Writer) error {
	_, err := build(ctx, root, nodePrograms, progress)
	return err
}

// build makes the programs that are missing, and returns where all are.
func build(ctx context.Context, root string, programs []program, progress io.Writer) (map[string]string, error) {
	paths, missing, err := plan(root, programs)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(root, "bin", "controlplane"), 0o755); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(missing, func(p program) bool { return p.name == "kwok" }) {
		if err := copyStages(ctx, root, paths["kwok"]+stagesSuffix); err != nil {
			return nil, fmt.Errorf("kwok's stages: %w", err)
		}
	}
	if missing, err = download(ctx, newDownloadClient(), root, paths, missing, progress); err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		fmt.Fprintf(progress, "Building %d control-plane programs from Go modules (once; some minutes)\n", len(missing))
	}
	// The programs of a module have one build: while the one is linked, the next is compiled.
	of := map[string][]program{}
	for _, p := range missing {
		of[p.module] = append(of[p.module], p)
	}
	for _, module := range slices.Sorted(maps.Keys(of)) {
		if err := buildModule(ctx, root, of[module], paths, progress); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// buildModule builds programs that one module pins.
func buildModule(ctx context.Context, root string, programs []program, paths map[string]string, progress io.Writer) error {
	// Build beside the targets and rename: a build that is cut off leaves nothing that looks finished, and two at once
	// do not mix.
	dir, err := os.MkdirTemp(filepath.Join(root, "bin", "controlplane"), "build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	args := []string{"build", "-mod=readonly", "-trimpath", "-o", dir, "-ldflags", "-s -w"}
	var names, packages []string
	for _, p := range programs {
		version, err := p.version(root)
		if err != nil {
			return err
		}
		if p.ldflags != nil {
			args = append(args, "-ldflags", p.pkg+"=-s -w "+p.ldflags(version))
		}
		packages = append(packages, p.pkg)
		names = append(names, filepath.Base(paths[p.name]))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = filepath.Join(root, "hack", "controlplane", programs[0].module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	fmt.Fprintf(progress, "  %s\n", strings.Join(names, ", "))
	for {
		select {
		case <-tick.C:
			ready, _ := os.ReadDir(dir)
			fmt.Fprintf(progress, "  %d of %d ... %s\n", len(ready), len(programs), time.Since(start).Round(time.Second))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, output.String())
			}
			for _, p := range programs {
				if err := os.Rename(filepath.Join(dir, executableName(p.pkg)), paths[p.name]); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

// executableName is the name that go build gives to the program of a package: the last element of its path that is no
// version, such as server for go.etcd.io/etcd/server/v3.
func executableName(pkg string) string {
	if base := path.Base(pkg); !regexp.MustCompile(`^v[0-9]+$`).MatchString(base) {
		return base
	}
	return path.Base(path.Dir(pkg))
}

func copyStages(ctx context.Context, root, to string) error {
	module := filepath.Join(root, "hack", "controlplane", "kwok")
	download := exec.CommandContext(ctx, "go", "mod", "download", "sigs.k8s.io/kwok")
	download.Dir = module
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	list.Dir = module
	out, err := list.Output()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, file := range kwokStageFiles {
		data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// goBuild runs go build in the repository.
func goBuild(ctx context.Context, root string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-ldflags=-s -w"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image, so that they share a build cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// BuildImage builds the image of the repository for this machine into an archive, which containerd can import.
func BuildImage(ctx context.Context, root, archive, tag string) error {
	cmd := exec.CommandContext(ctx, "go", "-C", "hack/release", "run", ".", "-root", root, "-platforms", "linux/"+runtime.GOARCH, "-o", archive, "-tag", tag)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image: %w\n%s", err, out)
	}
	return nil
}

// Extract writes the files of a commit of the repository to a new directory.
func Extract(ctx context.Context, root, commit, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	archive := dir + ".tar"
	defer func() { _ = os.Remove(archive) }()
	for _, args := range [][]string{
		{"git", "-C", root, "archive", "--format", "tar", "--output", archive, commit},
		{"tar", "-C", dir, "-xf", archive},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// NewestVersion returns the version of Kubernetes that is pinned, such as v1.37.0.
func NewestVersion(root string) (string, error) {
	i := slices.IndexFunc(programs, func(p program) bool { return p.pin == kubernetesModule })
	return programs[i].version(root)
}
