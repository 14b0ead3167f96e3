// Command release builds Stowage's container image without a daemon, and with -dir all files of a release. The image has
// one static binary for each platform and nothing else. Builds of one commit by one Go release are equal, byte by byte.
// A list in CycloneDX's format names the modules in the binary. In a registry, the list is an artifact of the image.
//
//	go -C hack/release run . -root ../.. -o ../../bin/stowage-image.tar -tag stowage:dev
//	go -C hack/release run . -root ../.. -push registry.example/stowage:v1
//	go -C hack/release run . -root ../.. -version v0.1.0 -helm ../../bin/tools/helm -dir ../../bin/release
//	go -C hack/release run . -root ../.. -manifests ../../bin -tag registry.example/stowage:v1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

// options say what to build, and where to put it.
type options struct {
	root      string // the repository
	platforms []string
	version   string // of Stowage
	revision  string // the commit
	created   time.Time
	archive   string // file of the OCI archive; empty writes none
	tag       string // name in the archive
	sbom      string // file of the list of what is in the binary; empty writes none
	push      string // reference in a registry; empty pushes nothing
	insecure  bool   // the registry speaks plain HTTP
	dir       string // where the files of a release go; empty builds the image alone
	helm      string // the program that packs the chart
	registry  string // where the chart of a release finds the image; empty leaves it to the chart's user
	manifests string // directory for install.yaml and uninstall.yaml with the image tag; empty writes none alone
	binaries  string // where the programs are built already; empty builds them
}

func main() {
	var o options
	var platforms string
	var created int64
	flag.StringVar(&o.root, "root", ".", "The repository")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "Platforms, comma-separated")
	flag.StringVar(&o.version, "version", "devel", "Version of Stowage")
	flag.StringVar(&o.revision, "revision", "", "Commit that it is built from")
	flag.Int64Var(&created, "created", 0, "When that was made, in seconds since 1970")
	flag.StringVar(&o.archive, "o", "", "File to write the OCI archive to")
	flag.StringVar(&o.tag, "tag", "stowage:dev", "Name of the image in the archive")
	flag.StringVar(&o.sbom, "sbom", "", "File to write the list of modules in the binary to, as CycloneDX JSON")
	flag.StringVar(&o.push, "push", "", "Where to push the image, such as registry.example/stowage:v1")
	flag.BoolVar(&o.insecure, "insecure", false, "Push by plain HTTP")
	flag.StringVar(&o.dir, "dir", "", "Directory to make, with all files of a release")
	flag.StringVar(&o.helm, "helm", "helm", "Helm, which packs the chart of a release")
	flag.StringVar(&o.registry, "registry", "", "Registry of the image that the chart of a release names")
	flag.StringVar(&o.manifests, "manifests", "", "Directory to write install.yaml and uninstall.yaml to, with the image of -tag, and nothing else")
	flag.Parse()
	if err := run(o, platforms, created); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(o options, platforms string, created int64) error {
	if o.archive == "" && o.push == "" && o.dir == "" && o.manifests == "" {
		return errors.New("nothing to do: name a file with -o, a registry with -push, or a directory with -dir or -manifests")
	}
	if o.manifests != "" {
		return writeManifests(o, o.manifests, o.tag)
	}
	o.created, o.platforms = time.Unix(created, 0).UTC(), strings.Split(platforms, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if o.dir != "" {
		return release(ctx, o)
	}
	digest, err := build(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}
