package migrate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// VMSize is the size of a type of VMs, and what one costs in an hour, if that is known.
type VMSize struct {
	VCPUs        int32
	Memory       resource.Quantity
	PricePerHour string
}

// ParseVMSize reads NAME=VCPUS:MEMORY, or NAME=VCPUS:MEMORY:PRICE, such as m5.large=2:8Gi:0.096.
func ParseVMSize(text string) (name string, size VMSize, err error) {
	name, rest, _ := strings.Cut(text, "=")
	parts := strings.Split(rest, ":")
	if name == "" || len(parts) < 2 || len(parts) > 3 {
		return "", size, fmt.Errorf("%.100q is no type; write NAME=VCPUS:MEMORY or NAME=VCPUS:MEMORY:PRICE, such as m5.large=2:8Gi:0.096", text)
	}
	vcpus, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil || vcpus < 1 || vcpus > 4096 {
		return "", size, fmt.Errorf("%.100q: the vCPUs are %.32q; they must be a whole number from 1 to 4096", text, parts[0])
	}
	memory, err := resource.ParseQuantity(parts[1])
	if err != nil || memory.Value() < 1<<20 {
		return "", size, fmt.Errorf("%.100q: the memory is %.32q; it must be a quantity of 1Mi and more, such as 8Gi", text, parts[1])
	}
	size = VMSize{VCPUs: int32(vcpus), Memory: memory}
	if len(parts) == 3 {
		if _, err := catalog.ParsePrice(parts[2]); err != nil {
			return "", size, fmt.Errorf("%.100q: %w", text, err)
		}
		size.PricePerHour = parts[2]
	}
	return name, size, nil
}

// mostTypes is how many types a VMCatalog has at most.
const mostTypes = 500

// Adaptor returns a VMCatalog of the types that the ConfigMap of cloud-api-adaptor names. Sizes are those that are given or, where the names
// of types tell them, those.
func Adaptor(objects []*unstructured.Unstructured, sizes map[string]VMSize) (Policy, error) {
	for _, o := range objects {
		data, _, _ := unstructured.NestedStringMap(o.Object, "data")
		names, key := catalog.AdaptorTypes(data)
		if o.GetKind() != "ConfigMap" || key == "" {
			continue
		}
		return adaptorCatalog(o.GetName(), data["CLOUD_PROVIDER"], key, names, data[key] != "", sizes)
	}
	var lists []string
	for _, keys := range catalog.AdaptorKeys {
		lists = append(lists, keys.List)
	}
	slices.Sort(lists)
	return Policy{}, fmt.Errorf("no ConfigMap of the input names types of VMs: none has one of %s", strings.Join(lists, ", "))
}

func adaptorCatalog(configMap, provider, key string, names []string, listed bool, sizes map[string]VMSize) (Policy, error) {
	o := &stowage.VMCatalog{
		TypeMeta:   metav1.TypeMeta{APIVersion: stowage.GroupVersion.String(), Kind: "VMCatalog"},
		ObjectMeta: metav1.ObjectMeta{Name: "peer-pods"},
	}
	p := Policy{Object: o}
	if provider != "" {
		o.Name = provider
	}
	var unknown []string
	priced := false
	for _, name := range names {
		size, known := sizes[name]
		if !known {
			size, known = sizeByName(provider, name)
		}
		if !known {
			unknown = append(unknown, name)
			continue
		}
		priced = priced || size.PricePerHour != ""
		o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: name, VCPUs: size.VCPUs, Memory: size.Memory, PricePerHour: size.PricePerHour})
	}
	if len(names) == 0 {
		return p, fmt.Errorf("ConfigMap %s names no type of VMs: neither %s nor the default type is in it", configMap, key)
	}
	if len(o.Spec.Types) > mostTypes {
		p.Notes = append(p.Notes, fmt.Sprintf("left out the last %d types, because a VMCatalog has %d at most", len(o.Spec.Types)-mostTypes, mostTypes))
		o.Spec.Types = o.Spec.Types[:mostTypes]
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if !slices.Contains(names, name) {
			return p, fmt.Errorf("--vm-type: ConfigMap %s does not name type %.64q", configMap, name)
		}
	}
	if len(o.Spec.Types) == 0 {
		return p, fmt.Errorf("the sizes of the types of ConfigMap %s are not known: %s; give each with --vm-type NAME=VCPUS:MEMORY", configMap, strings.Join(unknown, ", "))
	}
	if len(unknown) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("left out, because their sizes are not known; give each with --vm-type NAME=VCPUS:MEMORY: %s", strings.Join(unknown, ", ")))
	}
	if !priced {
		p.Notes = append(p.Notes, "no type has a price, so the one with the fewest vCPUs is taken; add pricePerHour to each")
	}
	if !listed {
		p.Notes = append(p.Notes, fmt.Sprintf("the ConfigMap has no %s, so the program that makes VMs refuses all types but the default one", key))
	}
	p.Notes = append(p.Notes, "the ConfigMap does not say which types have GPUs; add gpus where a type has some")
	return p, nil
}

// families are the names of types that tell their vCPUs, with the GiB of memory for each, by the value of CLOUD_PROVIDER. A name that no pattern
// matches, and a size that the pattern would get wrong, is not known.
var families = map[string][]struct {
	name *regexp.Regexp
	gib  int64 // for each vCPU
	most int64 // vCPUs up to which that holds
}{
	// https://docs.aws.amazon.com/ec2/latest/instancetypes/gp.html and its brothers: large has two vCPUs, xlarge four, and 2xlarge eight.
	"aws": {
		{regexp.MustCompile(`^c(?:5|5a|6i|6a|7i|7a)\.(\d*xlarge|large)$`), 2, 96},
		{regexp.MustCompile(`^m(?:5|5a|6i|6a|7i|7a)\.(\d*xlarge|large)$`), 4, 96},
		{regexp.MustCompile(`^r(?:5|5a|6i|6a|7i|7a)\.(\d*xlarge|large)$`), 8, 96},
	},
	// https://learn.microsoft.com/azure/virtual-machines/sizes/overview: the number is of vCPUs. The largest of the E family have less memory.
	"azure": {
		{regexp.MustCompile(`^Standard_D(\d+)(?:s|as|ds|ads)_v[45]$`), 4, 96},
		{regexp.MustCompile(`^Standard_DC(\d+)(?:as|ads)_v5$`), 4, 96},
		{regexp.MustCompile(`^Standard_E(\d+)(?:s|as|ds|ads)_v[45]$`), 8, 48},
		{regexp.MustCompile(`^Standard_EC(\d+)(?:as|ads)_v5$`), 8, 48},
	},
}

// profile is a profile of IBM Cloud VPC, whose name has its vCPUs and GiB
// (https://cloud.ibm.com/docs/vpc?topic=vpc-profiles).
var profile = regexp.MustCompile(`^[a-z]+\d+[a-z]*-(\d+)x(\d+)$`)

// sizeByName returns the size that the name of a type tells.
func sizeByName(provider, name string) (VMSize, bool) {
	if m := profile.FindStringSubmatch(name); provider == "ibmcloud" && m != nil {
		return sized(m[1], m[2])
	}
	for _, f := range families[provider] {
		m := f.name.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		vcpus := vcpusOf(m[1])
		if vcpus < 1 || vcpus > f.most {
			return VMSize{}, false
		}
		return sized(strconv.FormatInt(vcpus, 10), strconv.FormatInt(vcpus*f.gib, 10))
	}
	return VMSize{}, false
}

// vcpusOf reads a number of vCPUs, or one of Amazon's sizes. It returns 0 for another text.
func vcpusOf(text string) int64 {
	switch text {
	case "large":
		return 2
	case "xlarge":
		return 4
	}
	times, isSize := strings.CutSuffix(text, "xlarge")
	n, err := strconv.ParseInt(times, 10, 16)
	if err != nil {
		return 0
	}
	if isSize {
		return 4 * n
	}
	return n
}

func sized(vcpus, gib string) (VMSize, bool) {
	n, err := strconv.ParseInt(vcpus, 10, 32)
	memory, wrong := resource.ParseQuantity(gib + "Gi")
	return VMSize{VCPUs: int32(n), Memory: memory}, err == nil && wrong == nil && n > 0 && memory.Sign() > 0
}
