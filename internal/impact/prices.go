package impact

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// Prices are what nodes cost.
type Prices struct {
	APIVersion string  `json:"apiVersion"` // [Version]
	Kind       string  `json:"kind"`       // Prices
	Currency   string  `json:"currency"`
	Nodes      []Price `json:"nodes"`
}

// Price is what nodes with some labels cost in an hour: for each node, or for each vCPU and each GiB of memory. Of several that a node
// has, the first counts.
type Price struct {
	Labels     map[string]string `json:"labels"`
	Hourly     float64           `json:"hourly,omitempty"`
	VCPUHourly float64           `json:"vcpuHourly,omitempty"`
	GiBHourly  float64           `json:"gibHourly,omitempty"`
}

// maxPrices bounds a file of prices, in bytes.
const maxPrices = 1 << 20

// ReadPrices reads a file of prices. It reports everything that is wrong with it.
func ReadPrices(name string) (*Prices, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPrices+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPrices {
		return nil, fmt.Errorf("%s: it has more than %d bytes", name, maxPrices)
	}
	p := &Prices{}
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(name+": "+format, args...)) }
	if p.APIVersion != Version || p.Kind != "Prices" {
		wrong("apiVersion and kind are %q and %q; they must be %s and Prices", p.APIVersion, p.Kind, Version)
	}
	if len(p.Nodes) == 0 {
		wrong("nodes: at least one price is required")
	}
	for i, n := range p.Nodes {
		switch byNode, bySize := n.Hourly != 0, n.VCPUHourly != 0 || n.GiBHourly != 0; {
		case byNode && bySize:
			wrong("nodes[%d]: it has hourly beside vcpuHourly and gibHourly; leave out one of them", i)
		case slices.ContainsFunc([]float64{n.Hourly, n.VCPUHourly, n.GiBHourly}, func(v float64) bool { return v < 0 || math.IsNaN(v) || math.IsInf(v, 0) }):
			wrong("nodes[%d]: a price must not be negative", i)
		}
	}
	return p, errors.Join(errs...)
}

// of returns what a node costs in an hour, and whether that is known.
func (p *Prices) of(n *corev1.Node) (float64, bool) {
	for i := range p.Nodes {
		price := &p.Nodes[i]
		if !labels.SelectorFromSet(price.Labels).Matches(labels.Set(n.Labels)) {
			continue
		}
		if price.Hourly != 0 {
			return price.Hourly, true
		}
		size := n.Status.Capacity
		if size == nil {
			size = n.Status.Allocatable
		}
		return size.Cpu().AsApproximateFloat64()*price.VCPUHourly + size.Memory().AsApproximateFloat64()/(1<<30)*price.GiBHourly, true
	}
	return 0, false
}

// Cost is an estimate of what nodes would cost more, or less if it is negative.
type Cost struct {
	Currency string `json:"currency"`
	// Hourly and Monthly are the difference that nodes to come and nodes without pods make, and nodes that the change adds or removes. A month
	// has 730 hours.
	Hourly  float64 `json:"hourly"`
	Monthly float64 `json:"monthly"`
	// Unpriced are nodes of these that no price is for. Partial says that how many more nodes are needed is not known.
	Unpriced int  `json:"unpriced"`
	Partial  bool `json:"partial"`
}

// text is the cost in words.
func (c *Cost) text() string {
	text := fmt.Sprintf("%+.2f %s an hour, %+.0f %s a month of %d hours", c.Hourly, c.Currency, c.Monthly, c.Currency, hoursOfMonth)
	if c.Unpriced > 0 {
		text += fmt.Sprintf(", without %s that no price is for", plural(c.Unpriced, "node"))
	}
	if c.Partial {
		text += ", without the nodes whose number is not known"
	}
	return text + "."
}

const hoursOfMonth = 730

// cost returns what the estimated nodes cost, or nil without prices.
func (e *estimator) cost() *Cost {
	if e.prices == nil {
		return nil
	}
	c := &Cost{Currency: e.prices.Currency, Partial: e.unknown}
	add := func(n *corev1.Node, sign float64) {
		if price, ok := e.prices.of(n); ok {
			c.Hourly += sign * price
		} else {
			c.Unpriced++
		}
	}
	for _, n := range e.lacking {
		add(n.Node, 1)
	}
	for _, n := range e.added {
		add(n, 1)
	}
	for _, n := range e.nodes {
		if n.freed() {
			add(n.Node, -1)
		}
	}
	for _, n := range e.removed {
		add(n, -1)
	}
	c.Hourly = math.Round(c.Hourly*1e4) / 1e4
	c.Monthly = math.Round(c.Hourly*hoursOfMonth*100) / 100
	return c
}
