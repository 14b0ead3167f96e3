package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/supply"
)

// VMUse is the VMs of the peer pods of a namespace with one type, with what they have and cost in an hour.
type VMUse struct {
	Namespace    string `json:"namespace"`
	Type         string `json:"type,omitempty"` // of a VMCatalog
	VMs          int64  `json:"vms"`
	VCPUs        int64  `json:"vcpus"`
	Memory       string `json:"memory"`
	PricePerHour string `json:"pricePerHour,omitempty"`
}

// listCatalogs lists the VMCatalogs.
func (i *Inspector) listCatalogs(ctx context.Context) (objects []stowage.VMCatalog, err error) {
	err = each(ctx, i, &stowage.VMCatalogList{}, func(o *stowage.VMCatalog) { objects = append(objects, *o) })
	return objects, err
}

// catalogs adds which types of VMs the peer pods have and what they cost, and what of it is not as it should be.
func (i *Inspector) catalogs(ctx context.Context, s *snapshot, namespace string, r *Report) error {
	if !i.VMs {
		return nil
	}
	objects, err := i.listCatalogs(ctx)
	if err != nil || len(objects) == 0 {
		return err
	}
	all := catalog.CompileAll(objects)
	of := map[*catalog.Catalog][]*supply.Peer{}
	for _, pod := range s.pods {
		if pod.Labels[stowage.PeerPodLabel] == "" || pod.Spec.RuntimeClassName == nil || namespace != "" && pod.Namespace != namespace {
			continue
		}
		if c := catalog.For(all, *pod.Spec.RuntimeClassName); c != nil {
			of[c] = append(of[c], supply.PeerOf(&i.PeerPods, pod))
		}
	}
	var uses []supply.Use
	for _, c := range all {
		counts := supply.Count(c, of[c])
		uses = append(uses, counts.Uses()...)
		i.catalogProblems(all, c, counts, namespace, r)
	}
	slices.SortFunc(uses, func(a, b supply.Use) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Price, a.Price), strings.Compare(a.Type, b.Type))
	})
	for _, u := range uses {
		r.VMTypes = append(r.VMTypes, useOf(u))
	}
	if total := supply.Total(uses); len(uses) > 0 {
		r.VMsInAll = new(useOf(total))
	}
	return nil
}

func useOf(u supply.Use) VMUse {
	use := VMUse{Namespace: u.Namespace, Type: u.Type, VMs: u.VMs, VCPUs: u.VCPUs, Memory: catalog.Memory(u.Memory)}
	if u.Price > 0 { // else no type has a price that is known, or it is free
		use.PricePerHour = catalog.Money(u.Price)
	}
	return use
}

// catalogProblems adds what is not as it should be with a catalog.
func (i *Inspector) catalogProblems(all []*catalog.Catalog, c *catalog.Catalog, counts *supply.Counts, namespace string, r *Report) {
	problem := func(reason finding.Reason, values finding.Values) {
		r.problem(finding.Finding{Reason: reason, Kind: "VMCatalog", Name: c.Name, Values: values})
	}
	if reason, message := supply.Standing(all, c, i.PeerPods.RuntimeClasses); reason != stowage.ReasonCounted {
		problem(finding.CatalogUnused, finding.Values{Text: message})
		return
	}
	closures := c.Closures()
	slices.SortFunc(closures, func(a, b catalog.Closure) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Namespace, b.Namespace))
	})
	for _, closure := range closures {
		if namespace == "" || closure.Namespace == "" || closure.Namespace == namespace {
			problem(finding.VMTypeClosed, finding.Values{Other: closure.Type, In: closure.Namespace, Text: closure.Text()})
		}
	}
	if unfit := counts.Unfit(); unfit != nil {
		r.problem(finding.Finding{Reason: finding.NoVMType, Namespace: unfit.Namespace, Kind: "Pod", Name: unfit.Name, Values: finding.Values{
			Count: unfit.Count, Source: "VMCatalog " + c.Name, Text: unfit.Message,
		}})
	}
}

// adaptorProblems adds the types of catalogs that the program which makes VMs does not make.
func (i *Inspector) adaptorProblems(ctx context.Context, a *Answer) error {
	if !i.VMs {
		return nil
	}
	objects, err := i.listCatalogs(ctx)
	if err != nil || len(objects) == 0 {
		return readable(err)
	}
	var places []types.NamespacedName
	if i.Capacity != nil {
		places = append(places, types.NamespacedName{Namespace: i.Capacity.DaemonNamespace, Name: stowage.PeerPodsConfigMap}, i.Capacity.ConfigMap)
	}
	for _, place := range places {
		var cm corev1.ConfigMap
		if place.Namespace == "" {
			continue
		}
		if err := i.Client.Get(ctx, place, &cm); err != nil {
			if apierrors.IsForbidden(err) || client.IgnoreNotFound(err) == nil {
				continue
			}
			return err
		}
		names, key := catalog.AdaptorTypes(cm.Data)
		if key == "" {
			continue
		}
		for _, c := range catalog.CompileAll(objects) {
			if missing := c.Unlisted(names); len(missing) > 0 {
				shown := strings.Join(missing[:min(5, len(missing))], ", ")
				if more := len(missing) - 5; more > 0 {
					shown += fmt.Sprintf(" and %d more", more)
				}
				a.add(finding.Finding{Reason: finding.TypesNotListed, Kind: "VMCatalog", Name: c.Name, Values: finding.Values{
					Count: int64(len(missing)), Objects: shown, Other: fmt.Sprintf("%s of ConfigMap %s", key, place),
				}})
			}
		}
		return nil
	}
	return nil
}

// vmTypeTable has the VMs by namespace and type.
func (r *Report) vmTypeTable() report.Table {
	if r.VMsInAll == nil {
		return report.Table{}
	}
	t := report.Table{Head: []string{"NAMESPACE", "TYPE", "VMS", "VCPUS", "MEMORY", "PRICE/H"}}
	row := func(namespace string, u VMUse) {
		t.Rows = append(t.Rows, []string{namespace, cmp.Or(u.Type, "-"), fmt.Sprint(u.VMs), fmt.Sprint(u.VCPUs), u.Memory, cmp.Or(u.PricePerHour, "-")})
	}
	for _, u := range r.VMTypes {
		row(u.Namespace, u)
	}
	row("all", *r.VMsInAll)
	return t
}
