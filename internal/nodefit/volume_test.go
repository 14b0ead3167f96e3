package nodefit

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// need parses a requirement: key=a,b for In, key for Exists, and !key=a for NotIn.
func need(text string) corev1.NodeSelectorRequirement {
	r := corev1.NodeSelectorRequirement{Operator: corev1.NodeSelectorOpIn}
	if rest, not := strings.CutPrefix(text, "!"); not {
		text, r.Operator = rest, corev1.NodeSelectorOpNotIn
	}
	key, values, some := strings.Cut(text, "=")
	if r.Key = key; !some {
		r.Operator = corev1.NodeSelectorOpExists
	} else {
		r.Values = strings.Split(values, ",")
	}
	return r
}

// terms parses alternatives of requirements, which are separated by spaces.
func terms(texts ...string) (out []corev1.NodeSelectorTerm) {
	for _, text := range texts {
		t := corev1.NodeSelectorTerm{}
		for part := range strings.FieldsSeq(text) {
			t.MatchExpressions = append(t.MatchExpressions, need(part))
		}
		out = append(out, t)
	}
	return out
}

// Where a volume can be is what the scheduler's filters VolumeBinding and VolumeZone take for it.
func TestVolumeTerms(t *testing.T) {
	node := func(labels ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{}}}
		for _, l := range labels {
			k, v, _ := strings.Cut(l, "=")
			n.Labels[k] = v
		}
		return n
	}
	for name, tc := range map[string]struct {
		labels   map[string]string
		affinity []corev1.NodeSelectorTerm
		own      []corev1.NodeSelectorTerm // of the pod
		reaches  []*corev1.Node
		not      []*corev1.Node
		unknown  bool
	}{
		"anywhere":             {reaches: []*corev1.Node{node()}},
		"a zone":               {affinity: terms("zone=a"), reaches: []*corev1.Node{node("zone=a")}, not: []*corev1.Node{node("zone=b"), node()}},
		"one of two places":    {affinity: terms("zone=a", "host=x"), reaches: []*corev1.Node{node("zone=a"), node("host=x")}, not: []*corev1.Node{node("zone=b", "host=y")}},
		"an empty term":        {affinity: terms("", "zone=a"), reaches: []*corev1.Node{node("zone=a")}, not: []*corev1.Node{node()}},
		"only empty terms":     {affinity: terms(""), unknown: true},
		"a node by its name":   {affinity: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{need("metadata.name=n")}}}, unknown: true},
		"labels of zones":      {labels: map[string]string{corev1.LabelTopologyZone: "a__b"}, reaches: []*corev1.Node{node(corev1.LabelTopologyZone + "=b"), node()}, not: []*corev1.Node{node(corev1.LabelTopologyZone + "=c"), node(corev1.LabelTopologyRegion + "=a")}},
		"the labels of before": {labels: map[string]string{corev1.LabelFailureDomainBetaZone: "a"}, reaches: []*corev1.Node{node(corev1.LabelTopologyZone + "=a")}, not: []*corev1.Node{node(corev1.LabelTopologyZone + "=b")}},
		"labels and affinity": {
			labels: map[string]string{corev1.LabelTopologyZone: "a"}, affinity: terms("disk=ssd"),
			reaches: []*corev1.Node{node(corev1.LabelTopologyZone+"=a", "disk=ssd"), node("disk=ssd")}, not: []*corev1.Node{node(corev1.LabelTopologyZone + "=a")},
		},
		"beside what the pod asks for": {affinity: terms("zone=a", "zone=b"), own: terms("disk=ssd", "", "disk=hdd"), reaches: []*corev1.Node{node("zone=b", "disk=hdd")}, not: []*corev1.Node{node("zone=b"), node("disk=ssd")}},
	} {
		t.Run(name, func(t *testing.T) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}
			if tc.affinity != nil {
				v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: tc.affinity}}
			}
			of, known := VolumeTerms(v)
			if known == tc.unknown {
				t.Fatalf("it is known: %t", known)
			}
			if !known {
				return
			}
			pod := &corev1.Pod{}
			if tc.own != nil {
				pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: tc.own}}}
			}
			shared := *pod // as a successor shares what its pod has
			if !WithVolume(&shared, of) {
				t.Fatal("there are too many terms")
			}
			for _, n := range tc.reaches {
				if !Selects(&shared.Spec, n) {
					t.Errorf("no node with %v", n.Labels)
				}
			}
			for _, n := range tc.not {
				if Selects(&shared.Spec, n) {
					t.Errorf("a node with %v", n.Labels)
				}
			}
			if tc.own != nil && len(pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != len(tc.own) {
				t.Error("the pod itself was changed")
			}
		})
	}
	pod, many := &corev1.Pod{}, terms("a=1", "a=2", "a=3", "a=4", "a=5", "a=6", "a=7", "a=8", "a=9")
	if !WithVolume(pod, many) || WithVolume(pod, many) {
		t.Error("nine terms are too many, or 81 are not")
	}
}

// The labels of a cell show whether its nodes reach a volume, by its zone, also as drivers name it. They may leave that open. For a volume of
// certain nodes, only these nodes show it.
func TestReachOf(t *testing.T) {
	const zone, driver, host = corev1.LabelTopologyZone, "topology.ebs.csi.aws.com/zone", corev1.LabelHostname
	for name, tc := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		cell  string
		want  Reach
	}{
		"anywhere":                         {nil, "pool=a", Everywhere},
		"its zone":                         {terms(zone + "=a,b"), zone + "=b", Everywhere},
		"another zone":                     {terms(zone + "=a,b"), zone + "=c", Elsewhere},
		"one of the terms":                 {terms(zone+"=a", zone+"=c"), zone + "=c", Everywhere},
		"all of a term":                    {terms(zone + "=c pool=b"), zone + "=c", Perhaps},
		"a zone that the cell leaves open": {terms(zone + "=a"), "pool=a", Perhaps},
		"a zone as a driver has it":        {terms(driver + "=a"), zone + "=a", Everywhere},
		"another one":                      {terms(driver + "=b"), zone + "=a", Elsewhere},
		"a label that the cell has":        {terms("pool"), "pool=a", Everywhere},
		"one that it leaves open":          {terms("disk"), "pool=a", Perhaps},
		"not in another pool":              {terms("!pool=b"), "pool=a", Everywhere},
		"not in this one":                  {terms("!pool=a"), "pool=a", Elsewhere},
		"the node of a local volume":       {terms(host + "=n"), "pool=a", OfNodes},
		"a node and a zone":                {terms(host + "=n " + zone + "=a"), zone + "=b", Elsewhere},
		"a node, or a zone":                {terms(host+"=n", zone+"=a"), "pool=a", Perhaps},
	} {
		t.Run(name, func(t *testing.T) {
			k, v, _ := strings.Cut(tc.cell, "=")
			if got := ReachOf(tc.terms, nodeset.Set{Labels: map[string]string{k: v}}); got != tc.want {
				t.Errorf("it is %d, want %d", got, tc.want)
			}
		})
	}
	absent := terms("pool")
	absent[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpDoesNotExist
	if got := ReachOf(absent, nodeset.Set{Labels: map[string]string{"pool": "a"}}); got != Elsewhere {
		t.Errorf("without a label that the cell has: %d", got)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{zone: "a"}}}
	if !InReach(nil, n) || !InReach(terms(zone+"=a"), n) || InReach(terms(zone+"=b"), n) || InReach(terms("a=b=c/d"), n) {
		t.Error("a node reaches another volume than those of its zone")
	}
}

// A StorageClass makes volumes in its topologies, anywhere without any, and nowhere if none has an expression.
func TestTopologyTerms(t *testing.T) {
	topology := func(values ...string) corev1.TopologySelectorTerm {
		if values == nil {
			return corev1.TopologySelectorTerm{}
		}
		return corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}}}
	}
	for name, tc := range map[string]struct {
		topologies []corev1.TopologySelectorTerm
		terms      int
		some       bool
	}{
		"anywhere":         {nil, 0, true},
		"in two zones":     {[]corev1.TopologySelectorTerm{topology("1", "2")}, 1, true},
		"or in a third":    {[]corev1.TopologySelectorTerm{topology("1", "2"), topology("3")}, 2, true},
		"one matches none": {[]corev1.TopologySelectorTerm{topology("1"), topology()}, 1, true},
		"nowhere":          {[]corev1.TopologySelectorTerm{topology()}, 0, false},
	} {
		got, some := TopologyTerms(&storagev1.StorageClass{AllowedTopologies: tc.topologies})
		if len(got) != tc.terms || some != tc.some {
			t.Errorf("%s: %v, %t", name, got, some)
		}
	}
}
