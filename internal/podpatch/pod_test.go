package podpatch_test

import (
	"testing"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

func TestPlausible(t *testing.T) {
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'a'
	}
	for name, tc := range map[string]struct {
		owner podpatch.Owner
		want  bool
	}{
		"an owner":                   {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: "n", UID: "0-1"}, true},
		"no UID":                     {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: "n"}, false},
		"a UID that is no name":      {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: "n", UID: "a/b"}, false},
		"a name that is a path":      {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: "../x", UID: "u"}, false},
		"a name with a percent sign": {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: "a%2fb", UID: "u"}, false},
		"a name that is long":        {podpatch.Owner{APIVersion: "v1", Kind: "K", Name: string(long), UID: "u"}, false},
	} {
		if got := tc.owner.Plausible(); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestChoosesNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		apiVersion, kind string
		want             bool
	}{
		"a DaemonSet":                 {"apps/v1", "DaemonSet", true},
		"a DaemonSet of another kind": {"apps.kruise.io/v1alpha1", "DaemonSet", false},
		"a static pod":                {"v1", "Node", true},
		"a ReplicaSet":                {"apps/v1", "ReplicaSet", false},
	} {
		if got := (&podpatch.Owner{APIVersion: tc.apiVersion, Kind: tc.kind}).ChoosesNodes(); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
