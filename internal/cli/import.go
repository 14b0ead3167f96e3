package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/migrate"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/preview"
)

const importHelp = `Print the objects that stand for the settings of another program.

datadog reads the settings of the spot scheduling of Datadog's Cluster Agent: a
DatadogAgent with the default ones, and workloads with the label
autoscaling.datadoghq.com/spot-enabled. It prints

  - a ClusterSpreadPolicy in mode Audit for the default settings;
  - a PodDistributor for each workload with settings of its own. Its name is
    the workload's with the kind, such as web-deployment.

vmcatalog reads the ConfigMap peer-pods-cm of cloud-api-adaptor. It prints a
VMCatalog of the types of VMs that the ConfigMap lists. The sizes are those of
--vm-type, or those that the names of the types tell: of Amazon EC2, Azure and
IBM Cloud VPC. Prices are yours to add.

A comment before each object names what has no counterpart, or another meaning.`

// importOptions are the settings of the command import.
type importOptions struct {
	files                     []string
	onDemand, spot, namespace string
	vmTypes                   []string
}

func newImportCommand(s Streams) *cobra.Command {
	o := &importOptions{onDemand: "karpenter.sh/capacity-type=on-demand", spot: "karpenter.sh/capacity-type=spot", namespace: "default"}
	cmd := &cobra.Command{
		Use:   "import datadog|vmcatalog FILE...",
		Short: "Print the objects for the settings of another program",
		Long:  importHelp,
		Example: `  # The workloads and the agent of a cluster
  kubectl get datadogagents,deployments,statefulsets -A -o yaml | stowage import datadog - > policies.yaml

  # Nodes with other labels
  stowage import datadog workloads.yaml --spot autoscaling.datadoghq.com/capacity-type=interruptible --on-demand pool=stable

  # The types of VMs of cloud-api-adaptor, one with its size and price
  kubectl -n confidential-containers-system get configmap peer-pods-cm -o yaml | stowage import vmcatalog - --vm-type m5.large=2:8Gi:0.096`,
		ValidArgs: []string{"datadog", "vmcatalog"},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "datadog" && args[0] != "vmcatalog" {
				return config.NewUsageError(errors.New("name what is read: datadog, or vmcatalog"))
			}
			o.files = append(o.files, args[1:]...)
			if args[0] == "vmcatalog" {
				return o.vmCatalog(s)
			}
			onDemand, err := onDemandNodes(o.onDemand)
			spot, wrong := nodeLabel("spot", o.spot)
			if err := errors.Join(checkFiles(o.files), err, wrong); err != nil {
				return config.NewUsageError(err)
			}
			objects, err := readObjects(o.files, s.In)
			if err != nil {
				return err
			}
			policies, err := migrate.Datadog(objects, migrate.Options{OnDemand: onDemand, Spot: spot, Namespace: o.namespace})
			if err != nil {
				return err
			}
			return printPolicies(s.Out, policies)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", o.files, "File of manifests, or - for standard input; may be repeated, and -f may be left out")
	fs.StringVar(&o.onDemand, "on-demand", o.onDemand, "Label of the nodes that are on demand, as key=value; or !key for the nodes without a label, such as that of spot nodes")
	fs.StringVar(&o.spot, "spot", o.spot, "Label of the spot nodes, as key=value. Their taint has the same key and value")
	fs.StringArrayVar(&o.vmTypes, "vm-type", o.vmTypes, "Size of a type of VMs for vmcatalog, as NAME=VCPUS:MEMORY or NAME=VCPUS:MEMORY:PRICE; may be repeated")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "Namespace of objects that name none")
	return cmd
}

// vmCatalog prints the catalog for the ConfigMap of cloud-api-adaptor.
func (o *importOptions) vmCatalog(s Streams) error {
	sizes := map[string]migrate.VMSize{}
	errs := []error{checkFiles(o.files)}
	for _, text := range o.vmTypes {
		name, size, err := migrate.ParseVMSize(text)
		if _, twice := sizes[name]; err == nil && twice {
			err = fmt.Errorf("%.64q is there twice", name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--vm-type: %w", err))
		}
		sizes[name] = size
	}
	if err := errors.Join(errs...); err != nil {
		return config.NewUsageError(err)
	}
	objects, err := readObjects(o.files, s.In)
	if err != nil {
		return err
	}
	p, err := migrate.Adaptor(objects, sizes)
	if err != nil {
		return err
	}
	return printPolicies(s.Out, []migrate.Policy{p})
}

// nodeLabel reads the value of a flag.
func nodeLabel(flag, text string) (migrate.Label, error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
		return migrate.Label{}, fmt.Errorf("--%s is %q; it must be a label, as key=value", flag, text)
	}
	return migrate.Label{Key: key, Value: value}, nil
}

// onDemandNodes reads which nodes are on demand: those with a label, or those without one.
func onDemandNodes(text string) (migrate.Label, error) {
	key, absent := strings.CutPrefix(text, "!")
	if !absent {
		return nodeLabel("on-demand", text)
	}
	if len(validation.IsQualifiedName(key)) > 0 {
		return migrate.Label{}, fmt.Errorf("--on-demand is %q; it must be a label, as key=value, or !key for the nodes without one", text)
	}
	return migrate.Label{Key: key, Absent: true}, nil
}

// readObjects reads manifests of any kind, and the items of lists.
func readObjects(files []string, in io.Reader) (out []*unstructured.Unstructured, err error) {
	for _, name := range files {
		r := in
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer func() { _ = file.Close() }()
			r = file
		}
		objects, err := decodeObjects(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

func decodeObjects(r io.Reader) (out []*unstructured.Unstructured, err error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(r, 4096)
	for n := 1; ; n++ {
		u := &unstructured.Unstructured{}
		switch err := decoder.Decode(&u.Object); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", n, err)
		case len(u.Object) == 0: // only comments
			continue
		case !u.IsList():
			out = append(out, u)
			continue
		}
		if err := u.EachListItem(func(o runtime.Object) error {
			out = append(out, o.(*unstructured.Unstructured))
			return nil
		}); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// printPolicies prints objects, each with its notes as comments.
func printPolicies(out io.Writer, policies []migrate.Policy) error {
	for i, p := range policies {
		if i > 0 {
			fmt.Fprintln(out, "---")
		}
		for _, note := range p.Notes {
			fmt.Fprintf(out, "# %s.\n", bounded.Printable(note))
		}
		data, err := preview.Manifest(p.Object)
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return nil
}
