package peerpod_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// envPod is a pod whose container c has an environment of references, each "NAME container resource divisor".
func envPod(t *testing.T, more string, refs ...string) *podpatch.Pod {
	t.Helper()
	env := `{"name":"FIRST","value":"resourceFieldRef"}`
	for _, ref := range refs {
		parts := strings.Split(ref, " ")
		env += fmt.Sprintf(`,{"name":%q,"valueFrom":{"resourceFieldRef":{"containerName":%q,"resource":%q,"divisor":%q}}}`, parts[0], parts[1], parts[2], parts[3])
	}
	p, err := podpatch.Decode([]byte(`{"metadata":{"name":"p","annotations":{}},"spec":{"runtimeClassName":"kata-remote",` + more + `
		"initContainers":[{"name":"i","resources":{"limits":{"memory":"1Gi"}}}],
		"containers":[
			{"name":"c","resources":{"requests":{"cpu":"1500m","memory":"2Gi","ephemeral-storage":"1Gi"},"limits":{"memory":"4Gi"}},"env":[` + env + `]},
			{"name":"other","resources":{"limits":{"cpu":"250m"}}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What containers read of their resources from their environment is written out: as it was, or for a limit that is not set the size of the VM. The
// rounding is the kubelet's.
func TestEnvironment(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	for ref, want := range map[string]string{
		"A c limits.memory 0":              "4294967296",
		"A  limits.memory 0":               "4294967296", // of itself
		"A c limits.memory 1Mi":            "4096",
		"A c limits.memory 3Gi":            "2", // rounded up
		"A c requests.memory 1Mi":          "2048",
		"A c requests.cpu 0":               "2",
		"A c requests.cpu 1m":              "1500",
		"A c limits.cpu 0":                 "2", // of the VM: 1.5 and 0.25 of the containers
		"A c limits.cpu 1m":                "2000",
		"A other limits.cpu 1m":            "250",
		"A other limits.cpu 1":             "1",
		"A other limits.memory 1Mi":        "5120", // of the VM
		"A i limits.memory 1Gi":            "1",
		"A c requests.ephemeral-storage 0": "1073741824",
		"A other requests.memory 0":        "-", // 0, as before
		"A c limits.ephemeral-storage 0":   "-", // of the node's disk, as before
		"A gone limits.cpu 0":              "-", // the API server refuses it
		"A c limits.cpu 1x":                "2",
		"A c limits.cpu -1":                "2",
		"A c memory 0":                     "-",
	} {
		p := envPod(t, "", ref)
		got, warnings := convert(t, &cfg, p)
		value := "-"
		if e := got.Spec.Containers[0].Env[0]; e.Value != nil {
			value = *e.Value
		}
		if value != want || len(warnings) > 0 {
			t.Errorf("%s is %s, want %s; warnings %q", ref, value, want, warnings)
		}
		data, err := podpatch.Diff(p, got).JSON()
		if written := strings.Contains(string(data), `{"op":"replace","path":"/spec/containers/0/env/1","value":{"name":"A","value":"`+value+`"}}`); err != nil || written != (want != "-") {
			t.Errorf("%s: the patch is %s, %v", ref, data, err)
		}
	}
}

// The size of the VM is the one that a user wrote, and where nobody knows it a warning says so. Files are not written out.
func TestEnvironmentOfVM(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	p := envPod(t, "", "A c limits.cpu 1")
	p.SetAnnotation("io.katacontainers.config.hypervisor.default_vcpus", "16")
	if got, _ := convert(t, &cfg, p); *got.Spec.Containers[0].Env[0].Value != "16" {
		t.Errorf("of a VM of 16 it reads %s", *got.Spec.Containers[0].Env[0].Value)
	}
	p = envPod(t, `"resources":{"limits":{"cpu":"3500m"}},`, "A c limits.cpu 1m")
	if got, _ := convert(t, &cfg, p); *got.Spec.Containers[0].Env[0].Value != "3500" {
		t.Errorf("with a limit of the pod it reads %s", *got.Spec.Containers[0].Env[0].Value)
	}
	p = envPod(t, "", "A c limits.cpu 1")
	p.Spec.Containers[0].Resources, p.Spec.Containers[1].Resources = nil, nil
	got, warnings := convert(t, &cfg, p)
	if got.Spec.Containers[0].Env[0].Value != nil || len(warnings) != 1 || !strings.Contains(warnings[0], `container "c": the environment variable A has limits.cpu of the node, and not of the VM, whose size is not known; set a limit`) {
		t.Errorf("of a VM without a size: %q", warnings)
	}
	p = envPod(t, `"volumes":[{"name":"podinfo","downwardAPI":{"items":[{"path":"cpu","resourceFieldRef":{"containerName":"c","resource":"limits.cpu"}}]}},`+
		`{"name":"token","projected":{"sources":[{"serviceAccountToken":{"path":"token"}}]}}],`)
	if _, warnings := convert(t, &cfg, p); len(warnings) != 1 || !strings.Contains(warnings[0], `volume "podinfo": its files have resources of containers`) {
		t.Errorf("of files: %q", warnings)
	}
}

// A sidecar that another webhook adds between two passes gets its values, and the first pass's stay.
func TestEnvironmentOfLaterSidecars(t *testing.T) {
	cfg := peerpod.DefaultConfig()
	first, _ := convert(t, &cfg, envPod(t, "", "A c limits.memory 1Mi"))
	first.Spec.Containers[0].Env = nil // as the API server has it now: a value
	var sidecar podpatch.Container
	if err := json.Unmarshal([]byte(`{"Name":"proxy","Resources":{"limits":{"cpu":"2","memory":"1Gi"}}}`), &sidecar); err != nil {
		t.Fatal(err)
	}
	sidecar.Env = podpatch.EnvOfResources{{Name: "GOMAXPROCS", Ref: podpatch.ResourceRef{Resource: "limits.cpu"}}, {Index: 1, Name: "OF_C", Ref: podpatch.ResourceRef{ContainerName: "c", Resource: "limits.memory", Divisor: "1Mi"}}}
	first.Spec.Containers = append(first.Spec.Containers, sidecar)
	got, _ := convert(t, &cfg, first)
	if env := got.Spec.Containers[2].Env; env[0].Value == nil || *env[0].Value != "2" || *env[1].Value != "4096" {
		t.Errorf("the sidecar reads %+v", env)
	}
}
