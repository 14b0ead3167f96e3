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
		"nothing to do":                        {podOf("1", "1"), podOf("1", "1"), ""},
		"the same amount in another form":      {podOf("1", "500m"), podOf("1000m", "0.5"), ""},
		"grow":                                 {podOf("1", "1"), podOf("2", "2"), `[{"name":"c","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]`},
		"a limit that is to go stays":          {podOf("1", "4"), podOf("2", ""), `[{"name":"c","resources":{"requests":{"cpu":"2"}}}]`},
		"a limit equal to the request follows": {podOf("1", "1"), podOf("2", ""), `[{"name":"c","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]`},
		"a request is never removed":           {podOf("1", ""), podOf("", ""), ""},
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
