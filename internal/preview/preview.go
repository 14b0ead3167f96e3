package preview

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// Settings are those of the Stowage whose decisions are previewed.
type Settings struct {
	// Namespace is the one that Stowage runs in.
	Namespace string
	// Spread, Sizing and PeerPods are which features are on.
	Spread, Sizing, PeerPods bool
	// ExcludedNamespaces and NamespaceLabel are what [policy.NewFinder] takes.
	ExcludedNamespaces []string
	NamespaceLabel     string
	PeerPodConfig      peerpod.Config
	// Reaches reports whether the API server asks the webhook about a pod. Nil is for every pod.
	Reaches func(*corev1.Pod) bool
}

// Preview makes the webhook's decisions over inputs.
type Preview struct {
	in       *Inputs
	settings Settings
	pipeline *pipeline.Pipeline
	policies *policy.Finder
	catalogs []*catalog.Catalog
}

// New returns a preview of inputs. Every seat is free at first.
func New(in *Inputs, s Settings) *Preview {
	objects := manifests.New(in.Objects)
	p := &Preview{in: in, settings: s, policies: policy.NewFinder(objects, policy.Settings{NamespaceLabel: s.NamespaceLabel, ExcludedNamespaces: s.ExcludedNamespaces})}
	var features []feature.Feature // in the order that package server has
	if s.Spread {
		spread := &spreadadmit.Feature{Policies: p.policies, Seats: newSeats(), Key: make(ledger.Key, ledger.KeySize), Audits: spreadadmit.NewAudits(clock.RealClock{})}
		if len(in.Objects.Nodes) > 0 {
			spread.Nodes = in.nodesWith
		}
		features = append(features, spread)
	}
	if s.Sizing {
		features = append(features, &sizeadmit.Feature{World: objects})
	}
	if s.PeerPods {
		p.catalogs = catalog.CompileAll(in.Objects.VMCatalogs)
		features = append(features, &vmadmit.Feature{
			Config: s.PeerPodConfig, World: objects, Catalogs: func(context.Context) ([]*catalog.Catalog, error) { return p.catalogs, nil },
		})
	}
	p.pipeline = pipeline.New(scope.New(objects, s.Namespace), features...)
	return p
}

// nodesWith is a [nodefit.Lister].
func (in *Inputs) nodesWith(selected nodeset.Set) nodefit.Cell {
	var nodes []corev1.Node
	for i := range in.Objects.Nodes {
		if selected.Has(in.Objects.Nodes[i].Labels) {
			nodes = append(nodes, in.Objects.Nodes[i])
		}
	}
	return nodefit.Cell{Set: selected, Nodes: nodes, Growing: karpenter.Made(nodes)}
}

// Workloads returns what the input has that makes pods, and single pods, as [Workload.String] writes them.
func (p *Preview) Workloads() []string {
	var out []string
	for i := range p.in.Workloads {
		out = append(out, p.in.Workloads[i].String())
	}
	return out
}
