package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

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
	var peers []*supply.Peer
	for _, pod := range s.pods {
		if pod.Labels[stowage.PeerPodLabel] != "" && (namespace == "" || pod.Namespace == namespace) {
			peers = append(peers, supply.PeerOf(&i.PeerPods, pod))
		}
	}
	of, in := supply.ByCatalog(all, peers), map[supply.Place]supply.Use{}
	for _, c := range all {
		counts := supply.Count(c, of[c])
		for at, u := range counts.In { // two catalogs may have a type of the same name
			in[at] = in[at].Plus(u)
		}
		i.catalogProblems(all, c, counts, namespace, r)
	}
	if len(in) == 0 {
		return nil
	}
	var total supply.Use
	for _, at := range slices.SortedFunc(maps.Keys(in), func(a, b supply.Place) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), cmp.Compare(in[b].Price, in[a].Price), strings.Compare(a.Type, b.Type))
	}) {
		total = total.Plus(in[at])
		r.VMTypes = append(r.VMTypes, useOf(at, in[at]))
	}
	r.VMsInAll = new(useOf(supply.Place{}, total))
	return nil
}

func useOf(at supply.Place, u supply.Use) VMUse {
	use := VMUse{Namespace: at.Namespace, Type: at.Type, VMs: u.VMs, VCPUs: u.VCPUs, Memory: catalog.Memory(u.Memory)}
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
	if reason, message := supply.Effect(all, c, i.PeerPods.RuntimeClasses); reason != stowage.ReasonCounted {
		problem(finding.CatalogUnused, finding.Values{Text: message})
		return
	}
	for _, closure := range c.Closures() {
		if namespace == "" || closure.Namespace == namespace {
			problem(finding.VMTypeClosed, finding.Values{Other: closure.Type, In: closure.Namespace, Text: closure.Text()})
		}
	}
	if unfit := counts.Unfit; unfit != nil {
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
	names, where, err := i.adaptorTypes(ctx)
	if err != nil || where == "" {
		return err
	}
	for _, c := range catalog.CompileAll(objects) {
		if missing := c.Unlisted(names); len(missing) > 0 {
			shown := strings.Join(missing[:min(5, len(missing))], ", ")
			if more := len(missing) - 5; more > 0 {
				shown += fmt.Sprintf(" and %d more", more)
			}
			a.add(finding.Finding{Reason: finding.TypesNotListed, Kind: "VMCatalog", Name: c.Name, Values: finding.Values{
				Count: int64(len(missing)), Objects: shown, Other: where,
			}})
		}
	}
	return nil
}

// adaptorTypes returns the types of VMs that cloud-api-adaptor may make, and where they are listed: a key of a ConfigMap. Where is "" if no
// ConfigMap that we may read has such a key.
func (i *Inspector) adaptorTypes(ctx context.Context) (names []string, where string, err error) {
	if i.Capacity == nil {
		return nil, "", nil
	}
	for _, place := range []types.NamespacedName{{Namespace: i.Capacity.DaemonNamespace, Name: stowage.PeerPodsConfigMap}, i.Capacity.ConfigMap} {
		if place.Namespace == "" {
			continue
		}
		var cm corev1.ConfigMap
		if err := i.Client.Get(ctx, place, &cm); apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, "", err
		}
		if names, key := catalog.AdaptorTypes(cm.Data); key != "" {
			return names, fmt.Sprintf("%s of ConfigMap %s", key, place), nil
		}
	}
	return nil, "", nil
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
