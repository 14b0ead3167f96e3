package sequence

// Which pools there are, and which nodes they have.

// PoolKeyed returns the index of a pool by its [Pool.Key].
func (s *Strategy) PoolKeyed(key string) (int, bool) {
	return s.poolWith(func(p *Pool) bool { return p.Key() == key })
}

// PoolNamed returns the index of a pool by its name.
func (s *Strategy) PoolNamed(name string) (int, bool) {
	return s.poolWith(func(p *Pool) bool { return p.Name == name })
}

func (s *Strategy) poolWith(is func(*Pool) bool) (int, bool) {
	for i := range s.pools {
		if is(&s.pools[i]) {
			return i, true
		}
	}
	return 0, false
}

// ChoosesBy reports whether pools have their nodes by a label.
func (s *Strategy) ChoosesBy(label string) bool {
	for i := range s.pools {
		if s.pools[i].Nodes().Names(label) {
			return true
		}
	}
	return s.domains != nil && s.domains.Key == label
}

// HasNode reports whether a node with these labels may have pods of a pool. It is one of the pool's nodes, and in one of the domains. It may be
// a node of an earlier pool, too, to which it then belongs: see [Strategy.PoolOfNode].
func (s *Strategy) HasNode(pool int, node map[string]string) bool {
	return s.pools[pool].Nodes().Has(node) && s.DomainOfNode(node) >= 0
}

// PoolOf returns the pool in which a pod with a seat runs on a node with these labels: that of the seat if the node is one of its nodes, or else
// the one that the node belongs to, or -1.
func (s *Strategy) PoolOf(seat int, node map[string]string) int {
	if seat >= 0 && s.HasNode(seat, node) {
		return seat
	}
	return s.PoolOfNode(node)
}

// PoolOfNode returns the first pool that a node with these labels belongs to, or -1.
func (s *Strategy) PoolOfNode(node map[string]string) int {
	for i := range s.pools {
		if s.HasNode(i, node) {
			return i
		}
	}
	return -1
}
