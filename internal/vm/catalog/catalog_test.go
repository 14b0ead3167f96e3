package catalog

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

func read(t testing.TB, file string) *stowage.VMCatalog {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := &stowage.VMCatalog{}
	if err := yaml.UnmarshalStrict(data, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// cheapest is the type that a pod should get, from the definition alone: of all that fit, the one that no other comes before. The numbers are
// exact, and nothing is sorted.
func cheapest(o *stowage.VMCatalog, n *Need) string {
	price := func(t *stowage.VMType) *big.Rat {
		if t.PricePerHour == "" {
			return big.NewRat(1<<40, 1)
		}
		r, _ := new(big.Rat).SetString(t.PricePerHour)
		return r
	}
	exact := func(q *resource.Quantity) *big.Rat {
		if q == nil {
			return new(big.Rat)
		}
		r, _ := new(big.Rat).SetString(q.AsDec().String())
		return r
	}
	var best *stowage.VMType
	for i := range o.Spec.Types {
		t := &o.Spec.Types[i]
		cpu := new(big.Rat).Add(big.NewRat(n.NanoCPU, 1e9), exact(o.Spec.Reserved.CPU))
		memory := new(big.Rat).Add(big.NewRat(n.MilliMemory, 1000), exact(o.Spec.Reserved.Memory))
		fits := (n.NanoCPU == 0 || cpu.Cmp(big.NewRat(int64(t.VCPUs), 1)) <= 0) && (n.MilliMemory == 0 || memory.Cmp(exact(&t.Memory)) <= 0) &&
			int64(t.GPUs) >= n.GPUs && (n.GPUs == 0 || n.Model == "" || n.Model == t.GPUModel) && (len(n.Zones) == 0 || len(t.Zones) == 0 || slices.ContainsFunc(t.Zones, func(zone string) bool { return slices.Contains(n.Zones, zone) }))
		if !fits {
			continue
		}
		if best == nil || cmp.Or(price(t).Cmp(price(best)), cmp.Compare(t.VCPUs, best.VCPUs), exact(&t.Memory).Cmp(exact(&best.Memory)), strings.Compare(t.Name, best.Name)) < 0 {
			best = t
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

func chosen(c *Catalog, n *Need) string {
	if choice := c.Choose(n, "ns", nil); choice.Type != nil {
		return choice.Type.Name
	}
	return ""
}

func TestChooseAgainstBruteForce(t *testing.T) {
	pick := func(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }
	seeds := uint64(2000)
	if testing.Short() { // for mutants
		seeds = 50
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		o := &stowage.VMCatalog{}
		for i := range 1 + r.IntN(30) {
			ty := stowage.VMType{
				Name: fmt.Sprintf("t%d", i), VCPUs: 1 + r.Int32N(16), PricePerHour: pick(r, "", "0", "0.1", "0.100", "0.25", "1.000001", "1.000002", "12"),
				Memory: resource.MustParse(pick(r, "1Gi", "1.5Gi", "2Gi", "4G", "8Gi", "16Gi", "64Gi", "1073741825")),
			}
			if r.IntN(4) == 0 {
				ty.GPUs, ty.GPUModel = 1+r.Int32N(4), pick(r, "", "tesla", "l4")
			}
			if r.IntN(3) == 0 {
				ty.Zones = strings.Fields(pick(r, "a c", "b c", "a"))
			}
			o.Spec.Types = append(o.Spec.Types, ty)
		}
		if r.IntN(2) == 0 {
			o.Spec.Reserved.CPU = new(resource.MustParse(pick(r, "100m", "0.25", "1", "20")))
			o.Spec.Reserved.Memory = new(resource.MustParse(pick(r, "128Mi", "0.1Gi", "1Gi")))
		}
		c := Compile(o)
		for range 50 {
			n := &Need{NanoCPU: r.Int64N(17e9), MilliMemory: r.Int64N(70<<30) * 1000, Zones: strings.Fields(pick(r, "", "", "a", "c", "z", "b z"))}
			switch r.IntN(6) {
			case 0:
				n.GPUs, n.Model = r.Int64N(4), pick(r, "", "tesla")
			case 1:
				n.NanoCPU = 0
			case 2:
				n.MilliMemory = 0
			case 3:
				n.NanoCPU, n.MilliMemory = r.Int64N(17)*1e9, r.Int64N(64)<<30*1000
			}
			if got, want := chosen(c, n), cheapest(o, n); got != want {
				t.Fatalf("seed %d: %+v gets %q, want %q of %v", seed, n, got, want, o.Spec.Types)
			}
		}
	}
}

// bestFit is the rule of cloud-api-adaptor: types sorted by GPUs, memory and vCPUs, and a binary search for the first with enough of both
// (https://github.com/confidential-containers/cloud-api-adaptor/blob/v0.22.0/src/cloud-providers/util.go, GetBestFitInstanceType). What it
// searches for is not monotone in that order, so it misses types.
func bestFit(types []Type, n *Need) string {
	sorted := slices.Clone(types)
	slices.SortFunc(sorted, func(a, b Type) int { return cmp.Or(cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.VCPUs, b.VCPUs)) })
	at := sort.Search(len(sorted), func(i int) bool {
		return sorted[i].Memory*1000 >= n.MilliMemory && sorted[i].VCPUs*1e9 >= n.NanoCPU
	})
	if at == len(sorted) {
		return ""
	}
	return sorted[at].Name
}

// Of 4,096 requests, the adaptor's search finds another type than the first that fits in its own order 672 times. What Stowage chooses is the
// cheapest each time, and costs less than the adaptor's choice where they differ.
func TestBesideTheAdaptor(t *testing.T) {
	o := read(t, "testdata/twelve.yaml")
	c := Compile(o)
	missed, dearer := 0, 0
	for vcpus := int64(1); vcpus <= 16; vcpus++ {
		for half := int64(1); half <= 256; half++ {
			n := &Need{NanoCPU: vcpus * 1e9, MilliMemory: half << 29 * 1000}
			got := chosen(c, n)
			if want := cheapest(o, n); got != want {
				t.Errorf("%d vCPUs and %d x 512Mi get %q, want %q", vcpus, half, got, want)
			}
			first := ""
			sorted := slices.Clone(c.types)
			slices.SortFunc(sorted, func(a, b Type) int { return cmp.Or(cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.VCPUs, b.VCPUs)) })
			for i := range sorted {
				if sorted[i].Fits(n) {
					first = sorted[i].Name
					break
				}
			}
			theirs := bestFit(c.types, n)
			if theirs != first {
				missed++
			}
			switch {
			case theirs == "" || got == "":
			case c.Type(theirs).Price.compare(c.Type(got).Price) > 0:
				dearer++
			case c.Type(theirs).Price.compare(c.Type(got).Price) < 0:
				t.Errorf("%d vCPUs and %d x 512Mi get %s, which costs more than %s", vcpus, half, got, theirs)
			}
		}
	}
	t.Logf("the adaptor's search misses the first type that fits %d times of 4,096, and its type costs more %d times", missed, dearer)
	if missed != 672 {
		t.Errorf("the adaptor's search misses %d times, want 672", missed)
	}
}

func TestUnfit(t *testing.T) {
	gpus := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{Types: []stowage.VMType{
		{Name: "small", VCPUs: 2, Memory: resource.MustParse("4Gi"), Zones: []string{"a"}},
		{Name: "gpu", VCPUs: 8, Memory: resource.MustParse("32Gi"), GPUs: 1, GPUModel: "tesla"},
	}}}
	for _, tc := range []struct {
		name string
		of   *stowage.VMCatalog
		need Need
		want string
	}{
		{"too much memory", read(t, "testdata/twelve.yaml"), Need{NanoCPU: 1e9, MilliMemory: 130 << 30 * 1000}, "the nearest type, r5.4xlarge, lacks 2Gi of memory"},
		{"too much of both", read(t, "testdata/twelve.yaml"), Need{NanoCPU: 17.5e9, MilliMemory: 129 << 30 * 1000}, "the nearest type, r5.4xlarge, lacks 1500m CPU and 1Gi of memory"},
		{"too many vCPUs", read(t, "testdata/twelve.yaml"), Need{NanoCPU: 20e9}, "the nearest type, c5.4xlarge, lacks 4 CPU"},
		{"too many GPUs", gpus, Need{GPUs: 2}, "no type has 2 GPU(s)"},
		{"another model", gpus, Need{GPUs: 1, Model: "l4", Zones: []string{"b"}}, "no type has 1 GPU(s) of the model l4 in zone b"},
		{"too many GPUs in two zones", gpus, Need{GPUs: 2, Zones: []string{"b", "c"}}, "no type has 2 GPU(s) in the zones b, c"},
		{"a GPU type that is too small", gpus, Need{NanoCPU: 9e9, GPUs: 1}, "the nearest type, gpu, lacks 1 CPU"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Compile(tc.of)
			if got := chosen(c, &tc.need); got != "" {
				t.Fatalf("it gets %s", got)
			}
			if got := c.Unfit(&tc.need); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestPrice(t *testing.T) {
	for text, want := range map[string]string{"": "", "0": "0", "0.10": "0.1", "12": "12", "0.000001": "0.000001", "999999.999999": "999999.999999", "007.5": "7.5"} {
		p, err := ParsePrice(text)
		if err != nil || p.String() != want {
			t.Errorf("%q is %q, error %v; want %q", text, p, err, want)
		}
	}
	for _, text := range []string{"1e3", "-1", "1.2.3", "x", "1234567", "0.1234567", "+1", ".5", "1."} {
		if p, err := ParsePrice(text); err == nil {
			t.Errorf("%q is %q, want an error", text, p)
		}
	}
}

// A pod of a RuntimeClass has the oldest catalog that names it.
func TestFor(t *testing.T) {
	named := func(name string, classes ...string) *Catalog { return &Catalog{Name: name, classes: classes} }
	all := []*Catalog{named("gpu", "kata-gpu"), named("any"), named("later", "kata-remote")}
	for class, want := range map[string]string{"kata-gpu": "gpu", "kata-remote": "any"} {
		if got := For(all, class); got.Name != want {
			t.Errorf("%s has catalog %s, want %s", class, got.Name, want)
		}
	}
	if got := For(all[:1], "kata-remote"); got != nil {
		t.Errorf("kata-remote has catalog %s, want none", got.Name)
	}
}

// A pod asks for something if it asks for one thing.
func TestNeedOfNothing(t *testing.T) {
	for _, n := range []Need{{NanoCPU: 1}, {MilliMemory: 1}, {VCPUs: 1}, {Memory: 1}, {GPUs: 1}} {
		if n.Nothing() {
			t.Errorf("%+v asks for nothing", n)
		}
	}
	if n := (Need{Model: "l4", Zones: []string{"a"}}); !n.Nothing() {
		t.Errorf("%+v asks for something", n)
	}
	texts := map[string]bool{}
	for _, n := range []Need{{}, {NanoCPU: 1}, {MilliMemory: 1}, {VCPUs: 1}, {Memory: 1}, {GPUs: 1}, {Model: "a"}, {Zones: []string{"a"}}, {Zones: []string{"a", "b"}}} {
		texts[n.String()] = true
	}
	if len(texts) != 9 {
		t.Errorf("needs that differ are written as %v", texts)
	}
}

func BenchmarkChoose(b *testing.B) {
	o := &stowage.VMCatalog{}
	for i := range 500 {
		o.Spec.Types = append(o.Spec.Types, stowage.VMType{
			Name: fmt.Sprintf("t%d", i), VCPUs: int32(1 + i/8), Memory: *resource.NewQuantity(int64(1+i)<<29, resource.BinarySI), PricePerHour: fmt.Sprintf("%d.%d", i/10, i%10),
		})
	}
	c := Compile(o)
	for _, tc := range []struct {
		name string
		need Need
	}{{"first", Need{NanoCPU: 1}}, {"last", Need{NanoCPU: 63e9, MilliMemory: 250 << 30 * 1000}}, {"none", Need{NanoCPU: 64e9, MilliMemory: 300 << 30 * 1000}}} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Choose(&tc.need, "ns", nil)
			}
		})
	}
}
