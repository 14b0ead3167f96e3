package sizing

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

func podOf(request, limit podpatch.Quantity) *podpatch.Pod {
	r := &podpatch.Resources{}
	if request != "" {
		r.Requests = podpatch.ResourceList{"cpu": request}
	}
	if limit != "" {
		r.Limits = podpatch.ResourceList{"cpu": limit}
	}
	return &podpatch.Pod{Spec: podpatch.Spec{Containers: []podpatch.Container{{Name: "c", Resources: r}}}}
}

func TestResize(t *testing.T) {
	cases := map[string]struct {
		now, want *podpatch.Pod
		patch     string // "" is none
	}{
		"nothing to do":                                {podOf("1", "1"), podOf("1", "1"), ""},
		"the same amount in another form":              {podOf("1", "500m"), podOf("1000m", "0.5"), ""},
		"grow":                                         {podOf("1", "1"), podOf("2", "2"), `[{"name":"c","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]`},
		"a limit that is to go stays":                  {podOf("1", "4"), podOf("2", ""), `[{"name":"c","resources":{"requests":{"cpu":"2"}}}]`},
		"a limit equal to the request follows":         {podOf("1", "1"), podOf("2", ""), `[{"name":"c","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]`},
		"a limit equal to the request follows it down": {podOf("2", "2"), podOf("1", ""), `[{"name":"c","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}}]`},
		"a limit that the request outgrows follows":    {podOf("1", "1500m"), podOf("2", ""), `[{"name":"c","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]`},
		"a request is never removed":                   {podOf("1", ""), podOf("", ""), ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			resized := Resize(tc.now, tc.want)
			if same := SameSize(tc.now, resized); same != (tc.patch == "") {
				t.Errorf("the size is the same: %t", same)
			}
			var got struct {
				Metadata struct{ UID string }
				Spec     struct{ Containers json.RawMessage }
			}
			if err := json.Unmarshal(ResizePatch("u", tc.now, resized), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.patch, string(got.Spec.Containers)); diff != "" || got.Metadata.UID != "u" {
				t.Errorf("UID %q, patch (-want +got):\n%s", got.Metadata.UID, diff)
			}
		})
	}
}

func TestKeepMemory(t *testing.T) {
	memory := func(cpu, request, limit podpatch.Quantity) *podpatch.Pod {
		return &podpatch.Pod{Spec: podpatch.Spec{Containers: []podpatch.Container{{Name: "c", Resources: &podpatch.Resources{
			Requests: podpatch.ResourceList{"cpu": cpu, "memory": request}, Limits: podpatch.ResourceList{"memory": limit},
		}}}}}
	}
	for name, tc := range map[string]struct{ now, want, get *podpatch.Pod }{
		"a lower limit stays, with its request": {memory("1", "2Gi", "2Gi"), memory("2", "1Gi", "1Gi"), memory("2", "2Gi", "2Gi")},
		"a higher one is taken":                 {memory("1", "1Gi", "1Gi"), memory("2", "2Gi", "2Gi"), memory("2", "2Gi", "2Gi")},
		"a lower request alone is taken":        {memory("1", "2Gi", "2Gi"), memory("1", "1Gi", "2Gi"), memory("1", "1Gi", "2Gi")},
	} {
		t.Run(name, func(t *testing.T) {
			resized := Resize(tc.now, tc.want)
			KeepMemory(tc.now, resized)
			if diff := cmp.Diff(tc.get.Spec.Containers, resized.Spec.Containers); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

// A change of a request or of a limit is a change of the resource. Another form of the same amount is none.
func TestChanges(t *testing.T) {
	of := func(requests, limits podpatch.ResourceList) *podpatch.Resources {
		return &podpatch.Resources{Requests: requests, Limits: limits}
	}
	for name, tc := range map[string]struct {
		a, b *podpatch.Resources
		want bool
	}{
		"none":            {},
		"one is new":      {b: of(podpatch.ResourceList{"cpu": "1"}, nil), want: true},
		"the request":     {a: of(podpatch.ResourceList{"cpu": "1"}, nil), b: of(podpatch.ResourceList{"cpu": "2"}, nil), want: true},
		"the limit":       {a: of(nil, podpatch.ResourceList{"cpu": "1"}), b: of(nil, podpatch.ResourceList{"cpu": "2"}), want: true},
		"another form":    {a: of(podpatch.ResourceList{"cpu": "1"}, nil), b: of(podpatch.ResourceList{"cpu": "1000m"}, nil)},
		"of another kind": {a: of(podpatch.ResourceList{"memory": "1"}, nil), b: of(podpatch.ResourceList{"memory": "2"}, nil)},
	} {
		if got := Changes(tc.a, tc.b, "cpu"); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
