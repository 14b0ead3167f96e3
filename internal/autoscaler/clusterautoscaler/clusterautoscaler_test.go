package clusterautoscaler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

func TestParseNodeGroups(t *testing.T) {
	have, err := ParseNodeGroups("eks-od-*=type=default; eks-spot=type=spot, example.com/zone=a;")
	if err != nil {
		t.Fatal(err)
	}
	want := []NodeGroup{
		{"eks-od-*", map[string]string{"type": "default"}},
		{"eks-spot", map[string]string{"type": "spot", "example.com/zone": "a"}},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if none, err := ParseNodeGroups(" "); err != nil || none != nil {
		t.Errorf("no node group: %v, %v", none, err)
	}
	for text, message := range map[string]string{
		"spot":              `node group spot has ""`,
		"spot=":             `node group spot has ""`,
		"spot=type":         `node group spot has "type"`,
		"spot=ty pe=spot":   `node group spot has "ty pe=spot"`,
		"spot=type=sp ot":   `node group spot has "type=sp ot"`,
		"=type=spot":        "begins with no name",
		"*=type=spot":       "begins with no name",
		"a*b=type=spot":     "begins with no name",
		"a=type=spot,;b=c=": `node group a has ""`,
	} {
		if _, err := ParseNodeGroups(text); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

var now = time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)

// status is a text of the form that the autoscaler writes.
func status(groups ...string) string {
	return "time: 2026-01-01 00:00:00.090873082 +0000 UTC\nautoscalerStatus: Running\nclusterWide: {health: {status: Healthy}}\nnodeGroups:\n" + strings.Join(groups, "")
}

func groupText(name, scaleUp string, target, most int) string {
	return fmt.Sprintf("- name: %s\n  health: {status: Healthy, cloudProviderTarget: %d, minSize: 0, maxSize: %d}\n  scaleUp: {status: %s}\n", name, target, most, scaleUp)
}

func TestStatus(t *testing.T) {
	described, err := ParseNodeGroups("od-*=type=default; spot-a-*=type=spot,zone=a; spot-b-*=type=spot,zone=b")
	if err != nil {
		t.Fatal(err)
	}
	pool := func(label ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(label); i += 2 {
			m[label[i]] = label[i+1]
		}
		return m
	}
	for name, tc := range map[string]struct {
		status            string
		pool              map[string]string
		now               time.Time
		onWay, cannotMake bool
	}{
		"no activity":       {status(groupText("od-1", "NoActivity", 1, 5)), pool("type", "default"), now, false, false},
		"back-off":          {status(groupText("od-1", "Backoff", 1, 5)), pool("type", "default"), now, false, true},
		"at its maximum":    {status(groupText("od-1", "NoActivity", 5, 5)), pool("type", "default"), now, false, true},
		"on the way":        {status(groupText("od-1", "InProgress", 3, 5)), pool("type", "default"), now, true, false},
		"the last one":      {status(groupText("od-1", "InProgress", 5, 5)), pool("type", "default"), now, true, false},
		"an old status":     {status(groupText("od-1", "Backoff", 1, 5)), pool("type", "default"), now.Add(time.Hour), false, false},
		"a group of two":    {status(groupText("spot-a-1", "Backoff", 1, 5), groupText("spot-b-1", "NoActivity", 1, 5)), pool("type", "spot"), now, false, false},
		"both groups":       {status(groupText("spot-a-1", "Backoff", 1, 5), groupText("spot-b-1", "Backoff", 1, 5)), pool("type", "spot"), now, false, true},
		"one zone":          {status(groupText("spot-a-1", "Backoff", 1, 5), groupText("spot-b-1", "NoActivity", 1, 5)), pool("type", "spot", "zone", "a"), now, false, true},
		"one is on the way": {status(groupText("spot-a-1", "Backoff", 1, 5), groupText("spot-b-1", "InProgress", 1, 5)), pool("type", "spot"), now, true, false},
		"not reported":      {status(groupText("spot-a-1", "Backoff", 1, 5)), pool("type", "spot"), now, false, false},
		"not described":     {status(groupText("gpu", "Backoff", 1, 5)), pool("type", "gpu"), now, false, false},
	} {
		s, err := ParseStatus(tc.status)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if have := s.OnWay(described, nodeset.Set{Labels: tc.pool}, tc.now); have != tc.onWay {
			t.Errorf("%s: on the way %t", name, have)
		}
		if have := s.CannotMake(described, nodeset.Set{Labels: tc.pool}, tc.now); have != tc.cannotMake {
			t.Errorf("%s: cannot make %t", name, have)
		}
	}
	var none *Status
	if none.OnWay(described, nodeset.Set{Labels: pool("type", "spot")}, now) || none.CannotMake(described, nodeset.Set{Labels: pool("type", "spot")}, now) {
		t.Error("without a status nothing is known")
	}
	for text, message := range map[string]string{
		"":                         "of what time",
		"time: yesterday at noon.": "the time of the status",
		// Version 1.29 and earlier.
		"Cluster-autoscaler status at 2026-01-01 00:00:00 +0000 UTC:\nCluster-wide:\n  Health:      Healthy (ready=1)\n": "",
	} {
		if _, err := ParseStatus(text); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
