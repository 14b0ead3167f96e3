package catalog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

func TestAdaptorTypes(t *testing.T) {
	for name, tc := range map[string]struct {
		data  map[string]string
		names []string
		key   string
	}{
		"a list":                         {map[string]string{"CLOUD_PROVIDER": "aws", "PODVM_INSTANCE_TYPES": "b, a,,b", "PODVM_INSTANCE_TYPE": "c"}, []string{"b", "a"}, "PODVM_INSTANCE_TYPES"},
		"the default alone":              {map[string]string{"CLOUD_PROVIDER": "aws", "PODVM_INSTANCE_TYPE": " c "}, []string{"c"}, "PODVM_INSTANCE_TYPES"},
		"neither":                        {map[string]string{"CLOUD_PROVIDER": "aws"}, nil, "PODVM_INSTANCE_TYPES"},
		"the list of another provider":   {map[string]string{"CLOUD_PROVIDER": "aws", "GCP_INSTANCE_TYPES": "a"}, nil, "PODVM_INSTANCE_TYPES"},
		"no provider":                    {map[string]string{"GCP_INSTANCE_TYPES": "a"}, []string{"a"}, "GCP_INSTANCE_TYPES"},
		"no provider, and lists of two":  {map[string]string{"GCP_INSTANCE_TYPES": "g", "AZURE_INSTANCE_SIZES": "a"}, []string{"a"}, "AZURE_INSTANCE_SIZES"},
		"no provider, and no list":       {map[string]string{"PODVM_INSTANCE_TYPE": "c"}, nil, ""},
		"a provider that is not known":   {map[string]string{"CLOUD_PROVIDER": "own", "OWN_TYPES": "a"}, nil, ""},
		"one that uses another one's":    {map[string]string{"CLOUD_PROVIDER": "own", "GCP_INSTANCE_TYPES": "a"}, []string{"a"}, "GCP_INSTANCE_TYPES"},
		"a ConfigMap without any values": {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			names, key := AdaptorTypes(tc.data)
			if diff := cmp.Diff(tc.names, names); diff != "" || key != tc.key {
				t.Errorf("key %q, names (-want +got):\n%s", key, diff)
			}
		})
	}
	if diff := cmp.Diff([]string{"a", "c"}, closing("c b a").Unlisted([]string{"b", "d"})); diff != "" {
		t.Errorf("missing are (-want +got):\n%s", diff)
	}
}

// A pod's user reads which type the pod has, and what each type that fits would cost.
func TestOffer(t *testing.T) {
	c := closing("a b c d e f", is(Closed, "other", "a"))
	c.Name = "c"
	one := closing("a")
	one.Name = "c"
	gpu := Compile(&stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: stowage.VMCatalogSpec{Types: []stowage.VMType{{Name: "gpu", VCPUs: 8, Memory: resource.MustParse("1.5Gi"), GPUs: 2}}}})
	const nothing = "It asks for nothing, so VMCatalog c gives it no type: it has the default type of the program that makes VMs."
	for name, tc := range map[string]struct {
		of   *Catalog
		need Need
		is   string
		own  bool
		want []string
	}{
		"it has a type, of six": {c, Need{NanoCPU: 1e9}, "b", false, []string{
			"Its type is b, at 2 an hour.",
			"Of VMCatalog c, these fit 1 CPU, the cheapest first: a (1 vCPU, 1Gi, 1 an hour), b (1 vCPU, 1Gi, 2 an hour), c (1 vCPU, 1Gi, 3 an hour), d (1 vCPU, 1Gi, 4 an hour), and 2 more.",
		}},
		"it has none":                 {one, Need{MilliMemory: 1 << 20 * 1000}, "", false, []string{"It has no type; a new pod like it would get one of VMCatalog c.", "Of VMCatalog c, these fit 1Mi of memory, the cheapest first: a (1 vCPU, 1Gi, 1 an hour)."}},
		"its own type":                {one, Need{VCPUs: 1, Memory: 1 << 30}, "mine", true, []string{"Its type is mine, whose price is not known, which is its own and not chosen by Stowage.", "Of VMCatalog c, these fit a VM of 1 vCPU, a VM of 1Gi, the cheapest first: a (1 vCPU, 1Gi, 1 an hour)."}},
		"its own type of the catalog": {one, Need{}, "a", true, []string{"Its type is a, at 1 an hour, which is its own and not chosen by Stowage."}},
		"it asks for nothing":         {one, Need{}, "", false, []string{nothing}},
		"it is too large":             {one, Need{NanoCPU: 3e9}, "", false, []string{"No type of VMCatalog c fits 3 CPU: the nearest type, a, lacks 2 CPU."}},
		"a type without a price":      {gpu, Need{GPUs: 2, VCPUs: 2}, "gpu", false, []string{"Its type is gpu, whose price is not known.", "Of VMCatalog c, these fit a VM of 2 vCPUs, 2 GPUs, the cheapest first: gpu (8 vCPUs, 1536Mi, 2 GPUs)."}},
		"one GPU, a byte too many":    {gpu, Need{GPUs: 1, MilliMemory: 1<<30*1000 + 1}, "gpu", false, []string{"Its type is gpu, whose price is not known.", "Of VMCatalog c, these fit 1025Mi of memory, 1 GPU, the cheapest first: gpu (8 vCPUs, 1536Mi, 2 GPUs)."}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.of.Offer(&tc.need, "ns", tc.is, tc.own).Sentences()); diff != "" {
				t.Errorf("it says (-want +got):\n%s", diff)
			}
		})
	}
}
