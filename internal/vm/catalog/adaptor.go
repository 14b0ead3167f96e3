package catalog

import (
	"maps"
	"slices"
	"strings"
)

// AdaptorKeys are the keys of cloud-api-adaptor's ConfigMap that name types of VMs: the default, and the list of those that a pod may choose, by
// the value of CLOUD_PROVIDER (https://github.com/confidential-containers/cloud-api-adaptor/tree/v0.22.0/src/cloud-providers).
var AdaptorKeys = map[string]struct{ Default, List string }{
	"aws":      {"PODVM_INSTANCE_TYPE", "PODVM_INSTANCE_TYPES"},
	"azure":    {"AZURE_INSTANCE_SIZE", "AZURE_INSTANCE_SIZES"},
	"gcp":      {"GCP_MACHINE_TYPE", "GCP_INSTANCE_TYPES"},
	"ibmcloud": {"IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME", "IBMCLOUD_PODVM_INSTANCE_PROFILE_LIST"},
}

// AdaptorTypes returns the types that an adaptor with such a ConfigMap makes for pods that name them, and the key that lists them. Without a list,
// it is the default alone. It returns no key where the ConfigMap names no types.
func AdaptorTypes(data map[string]string) (names []string, key string) {
	of, known := AdaptorKeys[data["CLOUD_PROVIDER"]]
	if !known {
		for _, provider := range slices.Sorted(maps.Keys(AdaptorKeys)) { // a ConfigMap of another making may leave it out
			if keys := AdaptorKeys[provider]; !known && data[keys.List] != "" {
				of, known = keys, true
			}
		}
	}
	if !known {
		return nil, ""
	}
	for name := range strings.SplitSeq(data[of.List], ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if name := strings.TrimSpace(data[of.Default]); len(names) == 0 && name != "" {
		names = append(names, name)
	}
	return names, of.List
}

// Unlisted returns the types of the catalog that are not among some names.
func (c *Catalog) Unlisted(names []string) (missing []string) {
	for i := range c.types {
		if !slices.Contains(names, c.types[i].Name) {
			missing = append(missing, c.types[i].Name)
		}
	}
	slices.Sort(missing)
	return missing
}
