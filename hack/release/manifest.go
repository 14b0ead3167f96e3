package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// The files that install and remove Stowage with kubectl alone.
const (
	installFile   = "install.yaml"
	uninstallFile = "uninstall.yaml"
)

// The texts before their objects: version, and where the file is downloaded from.
const (
	installHead = `# Stowage %s: all of it, with a certificate that it makes itself. It needs Kubernetes 1.30 or newer.
#
#   kubectl apply --server-side -f %s
#
# The same line upgrades an installation. Remove Stowage with uninstall.yaml, which keeps the policies: to delete the objects
# of this file deletes the kinds, and with them every PodDistributor and FlexDaemonsetTemplate.
`
	uninstallHead = `# Removes Stowage %s, its registration first, so that no pod waits for it:
#
#   kubectl delete --ignore-not-found -f %s
#
# The kinds, the policies and the namespace stay, with the key that signs seats. Pods keep what Stowage gave them.
`
)

// writeManifests writes what installs and what removes Stowage into a directory. The image is a whole reference.
func writeManifests(o options, dir, image string) error {
	objects, err := readConfig(o.root, image)
	if err != nil {
		return err
	}
	from := ""
	if o.dir != "" { // of a release
		from = downloads + "/" + o.version + "/"
	}
	var install, uninstall bytes.Buffer
	fmt.Fprintf(&install, installHead, o.version, from+installFile)
	fmt.Fprintf(&uninstall, uninstallHead, o.version, from+uninstallFile)
	for _, r := range objects {
		text, err := r.AsYAML()
		if err != nil {
			return err
		}
		fmt.Fprintf(&install, "---\n%s", text)
	}
	for _, r := range slices.Backward(objects) {
		if kind := r.GetKind(); kind == "CustomResourceDefinition" || kind == "Namespace" {
			continue
		}
		name := map[string]string{"name": r.GetName()}
		if r.GetNamespace() != "" {
			name["namespace"] = r.GetNamespace()
		}
		text, err := yaml.Marshal(map[string]any{"apiVersion": r.GetApiVersion(), "kind": r.GetKind(), "metadata": name})
		if err != nil {
			return err
		}
		fmt.Fprintf(&uninstall, "---\n%s", text)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, installFile), install.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, uninstallFile), uninstall.Bytes(), 0o644),
	)
}

// readConfig returns the objects of config/default with an image. Each comes after what it needs, and the registrations
// come last.
func readConfig(root, image string) ([]*resource.Resource, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), filepath.Join(root, "config", "default"))
	if err != nil {
		return nil, err
	}
	// The policies bound Stowage from its first request to its last.
	list := objects.Resources()
	slices.SortStableFunc(list, func(a, b *resource.Resource) int { return cmp.Compare(phase(a.GetKind()), phase(b.GetKind())) })
	for _, r := range list {
		if r.GetKind() != "Deployment" {
			continue
		}
		if _, err := r.Pipe(yaml.Lookup("spec", "template", "spec", "containers", "[name=stowage]"), yaml.SetField("image", yaml.NewStringRNode(image))); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// phase orders kinds before kustomize's order does: namespace and kinds, then policies, then the rest.
func phase(kind string) int {
	switch kind {
	case "Namespace", "CustomResourceDefinition":
		return 0
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return 1
	}
	return 2
}
