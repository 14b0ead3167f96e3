package karpenter

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// set is the nodes of a strategy's pool, as an annotation has it.
func set(t *testing.T, text string) nodeset.Set {
	t.Helper()
	s, err := sequence.Parse(text + ",weight=1")
	if err != nil {
		t.Fatal(err)
	}
	return s.Nodes(0, -1)
}

func TestNodePool(t *testing.T) {
	p, err := ParseNodePool(object(t, `
metadata: {name: spot}
spec:
  limits: {cpu: 10, memory: 64Gi}
  template:
    metadata: {labels: {team: web}}
    spec:
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
      - {key: size, operator: Exists}
      - {key: zone, operator: NotIn, values: [c]}
      taints: [{key: gpu, effect: NoSchedule}]
      startupTaints: [{key: agent, effect: NoSchedule}]
status: {resources: {cpu: "8", memory: 8Gi}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"its capacity type":         {map[string]string{"karpenter.sh/capacity-type": "spot"}, true},
		"another":                   {map[string]string{"karpenter.sh/capacity-type": "on-demand"}, false},
		"its label":                 {map[string]string{"team": "web"}, true},
		"another value":             {map[string]string{"team": "db"}, false},
		"its name":                  {map[string]string{"karpenter.sh/nodepool": "spot"}, true},
		"another name":              {map[string]string{"karpenter.sh/nodepool": "od"}, false},
		"any value":                 {map[string]string{"size": "4", "zone": "a"}, true},
		"a value that is ruled out": {map[string]string{"zone": "c"}, false},
		"a well-known label":        {map[string]string{"topology.kubernetes.io/zone": "a"}, true},
		"a label that nobody names": {map[string]string{"disk": "ssd"}, false},
	} {
		if got := p.Makes(nodeset.Set{Labels: tc.labels}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for text, want := range map[string]bool{
		"!disk": true, "disk!=ssd": true, "!team": false, "team!=db": true, "team!=web": false, "!size": false, "size!=4": true, "!zone": true, "zone!=a": true,
		"!karpenter.sh/capacity-type": false, "karpenter.sh/capacity-type!=on-demand": true, "karpenter.sh/capacity-type!=spot": false,
		"!topology.kubernetes.io/zone": false, "topology.kubernetes.io/zone!=a": true, "!karpenter.sh/nodepool": false, "karpenter.sh/nodepool!=od": true,
	} {
		if got := p.Makes(set(t, text)); got != want {
			t.Errorf("it makes nodes of %s: %t", text, got)
		}
	}
	for cpu, want := range map[string]bool{"1": false, "2": false, "3": true} {
		if got := p.AtLimit(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}); got != want {
			t.Errorf("at its limit for a pod of %s CPUs: %t", cpu, got)
		}
	}
	tolerates := []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"it tolerates the taint":     {corev1.PodSpec{Tolerations: tolerates}, true},
		"it does not":                {corev1.PodSpec{}, false},
		"it selects what may be":     {corev1.PodSpec{Tolerations: tolerates, NodeSelector: map[string]string{"team": "web", "topology.kubernetes.io/zone": "a"}}, true},
		"it selects what cannot be":  {corev1.PodSpec{Tolerations: tolerates, NodeSelector: map[string]string{"team": "db"}}, false},
		"it selects what nobody has": {corev1.PodSpec{Tolerations: tolerates, NodeSelector: map[string]string{"disk": "ssd"}}, false},
	} {
		if got := p.Takes(set(t, "karpenter.sh/capacity-type=spot"), &tc.spec); got != tc.want {
			t.Errorf("a pod that may run there, %s: %t", name, got)
		}
		if p.Takes(set(t, "karpenter.sh/capacity-type=on-demand"), &tc.spec) {
			t.Errorf("it takes pods for nodes that it does not make, %s", name)
		}
	}
	if _, err := ParseNodePool(object(t, "spec: {limits: [1]}")); err == nil {
		t.Error("a NodePool of another form is read")
	}
}

func TestNodeClaim(t *testing.T) {
	const claim = `
metadata: {name: spot-1, labels: {karpenter.sh/nodepool: spot}}
spec:
  requirements:
  - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
`
	for name, tc := range map[string]struct {
		status string
		coming bool
	}{
		"it is new":         {"", true},
		"it was launched":   {"status: {conditions: [{type: Launched, status: 'True'}, {type: Ready, status: Unknown}]}", true},
		"its node is there": {"status: {conditions: [{type: Ready, status: 'True'}]}", false},
	} {
		c, err := ParseNodeClaim(object(t, claim+tc.status))
		if err != nil || c.Coming != tc.coming || c.NodePool != "spot" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		for text, want := range map[string]bool{
			"karpenter.sh/capacity-type=spot": true, "karpenter.sh/capacity-type=on-demand": false, "karpenter.sh/capacity-type!=spot": false, "!karpenter.sh/capacity-type": false,
			"disk=ssd": false, "!disk": true, "disk!=ssd": true, "topology.kubernetes.io/zone=a": false, "topology.kubernetes.io/zone!=a": true, "!topology.kubernetes.io/zone": false,
		} {
			if got := c.Of(set(t, text)); got != want {
				t.Errorf("%s: it is a node of %s: %t", name, text, got)
			}
		}
	}
}
