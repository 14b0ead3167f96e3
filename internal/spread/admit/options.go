package admit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/config"
)

// Options are the settings of the feature, which `stowage preview` has, too.
type Options struct {
	Enabled            bool
	ExcludedNamespaces []string
	NamespaceLabel     string
}

// DefaultOptions returns the settings that hold unless others are given.
func DefaultOptions() Options { return Options{Enabled: true} }

// AddFlags adds a flag for every setting of the feature.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	f := config.Flags{FlagSet: fs}
	f.Toggle(&o.Enabled, "spread", "STOWAGE_SPREAD", "Divide the pods of workloads with a strategy over node pools")
	f.List(&o.ExcludedNamespaces, "blocklisted-namespaces", "BLOCKLISTED_NAMESPACE_LIST", "Namespaces in which strategies in annotations are ignored, comma-separated; PodDistributors are not")
	f.Text(&o.NamespaceLabel, "spread-namespace-label", "STOWAGE_SPREAD_NAMESPACE_LABEL", "Label, as key=value, that a namespace must have for strategies in annotations to be looked at, such as custom-kube-scheduler-webhook=enabled; empty asks for none")
}

// Validate reports every invalid setting, joined.
func (o *Options) Validate() error {
	var errs []error
	o.ExcludedNamespaces = config.Trimmed(o.ExcludedNamespaces)
	for _, n := range o.ExcludedNamespaces {
		if len(validation.IsDNS1123Label(n)) > 0 {
			errs = append(errs, fmt.Errorf("--blocklisted-namespaces has %q; it must be a namespace's name", n))
		}
	}
	if o.NamespaceLabel != "" {
		key, value, ok := strings.Cut(o.NamespaceLabel, "=")
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			errs = append(errs, fmt.Errorf("--spread-namespace-label is %q; it must be a label, as key=value", o.NamespaceLabel))
		}
	}
	return errors.Join(errs...)
}
