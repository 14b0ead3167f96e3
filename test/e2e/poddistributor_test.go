package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// What the API server accepts, fills in and refuses of a PodDistributor.
func TestPodDistributorValidation(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	must(t, cluster.ApplyFiles(t.Context(), filepath.Join(repo, "config", "crd", "bases", "versprei.versprei.io_poddistributors.yaml")))
	const head = "apiVersion: versprei.versprei.io/v1beta1\nkind: PodDistributor\nmetadata: {name: web}\n"
	try := func(spec string) (*unstructured.Unstructured, error) {
		u := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(head+"spec: "+spec), &u.Object))
		u.SetNamespace(n.Namespace)
		return u, n.Create(t.Context(), u, client.DryRunAll)
	}
	const target = "target: {apiVersion: apps/v1, kind: Deployment, name: nginx-deployment}"
	documented := "{distribution: [{nodeLabel: {type: default}, weight: 80}, {nodeLabel: {type: spot}, weight: 20}], " + target + "}"
	eventually(t, "the kind is served", func() (bool, error) {
		_, err := try(documented)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return false, nil
		}
		return err == nil, err
	})

	t.Run("the documented manifest, with defaults", func(t *testing.T) {
		got, err := try(documented)
		must(t, err)
		want := map[string]any{}
		must(t, yaml.Unmarshal([]byte(`
distribution:
- {nodeLabel: {type: default}, weight: 80}
- {nodeLabel: {type: spot}, weight: 20}
target: {apiVersion: apps/v1, kind: Deployment, name: nginx-deployment}
enforcement: Required
rebalance: Never
`), &want))
		// YAML has one kind of number, the API server's JSON two.
		gotYAML, err := yaml.Marshal(got.Object["spec"])
		must(t, err)
		wantYAML, err := yaml.Marshal(want)
		must(t, err)
		if diff := cmp.Diff(string(wantYAML), string(gotYAML)); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
	})

	cases := map[string]struct {
		spec string
		want string // a part of the refusal; "" is accepted
	}{
		"everything":                {spec: "{distribution: [{name: a, nodeLabel: {type: a, karpenter.sh/capacity-type: spot}, base: 2, weight: 1, maxReplicas: 2, tolerations: [{key: spot, operator: Exists}]}, {name: b, nodeLabel: {type: b}}], enforcement: Preferred, rebalance: Evict, " + target + "}"},
		"a pool switched off":       {spec: "{distribution: [{nodeLabel: {type: a}, weight: 100}, {nodeLabel: {type: b}, weight: 0}], " + target + "}"},
		"no pools":                  {spec: "{distribution: [], " + target + "}", want: "spec.distribution: Invalid value: 0: spec.distribution in body should have at least 1 items"},
		"no distribution":           {spec: "{" + target + "}", want: "spec.distribution: Required value"},
		"no target":                 {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1}]}", want: "spec.target: Required value"},
		"all weights zero":          {spec: "{distribution: [{nodeLabel: {type: a}, base: 1}, {nodeLabel: {type: b}, weight: 0}], " + target + "}", want: "give at least one pool a weight from 1 to 100"},
		"a negative weight":         {spec: "{distribution: [{nodeLabel: {type: a}, weight: -1}], " + target + "}", want: "spec.distribution[0].weight: Invalid value: -1"},
		"a negative base":           {spec: "{distribution: [{nodeLabel: {type: a}, base: -1, weight: 1}], " + target + "}", want: "spec.distribution[0].base: Invalid value: -1"},
		"a weight above 100":        {spec: "{distribution: [{nodeLabel: {type: a}, weight: 101}], " + target + "}", want: "spec.distribution[0].weight: Invalid value: 101"},
		"a fraction":                {spec: "{distribution: [{nodeLabel: {type: a}, weight: 0.5}], " + target + "}", want: "spec.distribution[0].weight: Invalid value"},
		"equal pools":               {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1}, {nodeLabel: {type: a}, weight: 2}], " + target + "}", want: "two pools have the same nodeLabel"},
		"equal names":               {spec: "{distribution: [{name: x, nodeLabel: {type: a}, weight: 1}, {name: x, nodeLabel: {type: b}, weight: 2}], " + target + "}", want: "two pools have the same name"},
		"a pool without label":      {spec: "{distribution: [{nodeLabel: {}, weight: 1}], " + target + "}", want: "spec.distribution[0].nodeLabel"},
		"a label value":             {spec: "{distribution: [{nodeLabel: {type: a/b}, weight: 1}], " + target + "}", want: "spec.distribution[0].nodeLabel.type"},
		"a name":                    {spec: "{distribution: [{name: A_B, nodeLabel: {type: a}, weight: 1}], " + target + "}", want: "spec.distribution[0].name"},
		"a base above maximum":      {spec: "{distribution: [{nodeLabel: {type: a}, base: 3, maxReplicas: 2, weight: 1}], " + target + "}", want: "base is above maxReplicas"},
		"a percentage":              {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, base: 3, maxReplicas: 50%}, {nodeLabel: {type: b}, weight: 1}], " + target + "}"},
		"100 percent":               {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, maxReplicas: 100%}, {nodeLabel: {type: b}, weight: 1}], " + target + "}", want: "spec.distribution[0].maxReplicas"},
		"percentages alone":         {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, maxReplicas: 50%}, {nodeLabel: {type: b}, base: 1}], " + target + "}", want: "the maxReplicas of each pool with a weight is a percentage"},
		"a percentage and maxSpill": {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, maxReplicas: 50%}, {nodeLabel: {type: b}, weight: 1, spill: {maxSpill: 1}}], " + target + "}", want: "cannot be in one object"},
		"domains":                   {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1}], across: {topologyKey: topology.kubernetes.io/zone, domains: [{value: a}, {value: b, weight: 2}]}, " + target + "}"},
		"a domain twice":            {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1}], across: {topologyKey: zone, domains: [{value: a}, {value: a}]}, " + target + "}", want: "two domains have the same value"},
		"no domains":                {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1}], across: {topologyKey: zone, domains: []}, " + target + "}", want: "spec.across.domains"},
		"a pool of one domain":      {spec: "{distribution: [{nodeLabel: {type: a, zone: a}, weight: 1}], across: {topologyKey: zone, domains: [{value: a}]}, " + target + "}", want: "across.topologyKey is a key of a pool's nodeLabel"},
		"a name of digits":          {spec: "{distribution: [{name: '0', nodeLabel: {type: a}, weight: 1}], " + target + "}", want: "spec.distribution[0].name"},
		"a label key":               {spec: "{distribution: [{nodeLabel: {node size: a}, weight: 1}], " + target + "}", want: "a key of nodeLabel is no label key"},
		"an operator":               {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, tolerations: [{key: a, operator: Exist}]}], " + target + "}", want: "operator is Equal or Exists"},
		"no key":                    {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, tolerations: [{value: a}]}], " + target + "}", want: "without a key has the operator Exists"},
		"an effect":                 {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, tolerations: [{key: a, effect: Never}]}], " + target + "}", want: "effect is NoSchedule"},
		"seconds":                   {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, tolerations: [{key: a, tolerationSeconds: 3}]}], " + target + "}", want: "has the effect NoExecute"},
		"a value to no end":         {spec: "{distribution: [{nodeLabel: {type: a}, weight: 1, tolerations: [{key: a, operator: Exists, value: b}]}], " + target + "}", want: "operator Exists has no value"},
		"an enforcement":            {spec: "{enforcement: Maybe, distribution: [{nodeLabel: {type: a}, weight: 1}], " + target + "}", want: `spec.enforcement: Unsupported value: "Maybe"`},
		"a rebalance":               {spec: "{rebalance: Always, distribution: [{nodeLabel: {type: a}, weight: 1}], " + target + "}", want: `spec.rebalance: Unsupported value: "Always"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			switch _, err := try(tc.spec); {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want a refusal with %q", err, tc.want)
			}
		})
	}
}
