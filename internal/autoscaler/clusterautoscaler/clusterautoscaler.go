// Package clusterautoscaler reads what the cluster autoscaler says about its node groups in its status ConfigMap.
//
// The package is pure: it takes texts and returns answers. It knows the few fields that it needs (types.go in
// cluster-autoscaler/clusterstate/api of kubernetes/autoscaler). The text is YAML since version 1.30 of the autoscaler.
package clusterautoscaler

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// StatusKey is the key of the ConfigMap that has the status.
const StatusKey = "status"

// statusFor is for how long a status holds. The autoscaler writes a new one in each of its loops, every 10 s by default.
const statusFor = 3 * time.Minute

// NodeGroup is a node group as the user describes it. The autoscaler does not publish the labels of nodes to come.
type NodeGroup struct {
	// Name is the autoscaler's name of the group. It may end with an asterisk, which stands for any rest.
	Name   string
	Labels map[string]string // of the group's nodes
}

// ParseNodeGroups reads node groups, written as NAME=label=value,label=value and separated by semicolons.
func ParseNodeGroups(text string) ([]NodeGroup, error) {
	var groups []NodeGroup
	for entry := range strings.SplitSeq(text, ";") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, list, _ := strings.Cut(entry, "=")
		g := NodeGroup{Name: strings.TrimSpace(name), Labels: map[string]string{}}
		if strings.Trim(g.Name, "*") == "" || strings.Contains(strings.TrimSuffix(g.Name, "*"), "*") {
			return nil, fmt.Errorf("%q begins with no name of a node group; write NAME=label=value, such as eks-spot-*=type=spot", entry)
		}
		for label := range strings.SplitSeq(list, ",") {
			key, value, ok := strings.Cut(strings.TrimSpace(label), "=")
			if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
				return nil, fmt.Errorf("node group %s has %q; write the labels of its nodes as label=value,label=value", g.Name, label)
			}
			g.Labels[key] = value
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// is reports whether the autoscaler calls the group by this name.
func (g *NodeGroup) is(name string) bool {
	if prefix, ok := strings.CutSuffix(g.Name, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return name == g.Name
}

// Makes reports whether the nodes of the group are of a set. They have no labels but those that the user gives them.
func (g *NodeGroup) Makes(nodes nodeset.Set) bool { return nodes.Has(g.Labels) }

// Status is what the autoscaler said last.
type Status struct {
	at     time.Time
	groups []group
}

// group is what the autoscaler says of one node group.
type group struct {
	Name   string `json:"name"`
	Health struct {
		CloudProviderTarget int `json:"cloudProviderTarget"`
		MaxSize             int `json:"maxSize"`
	} `json:"health"`
	ScaleUp struct {
		Status string `json:"status"`
	} `json:"scaleUp"`
}

// The values of a group's scaleUp.status that are of concern here.
const (
	inProgress = "InProgress" // nodes are on their way
	backoff    = "Backoff"    // a scale-up has failed, and the autoscaler tries none for some time
)

// ParseStatus reads the text of the ConfigMap.
func ParseStatus(text string) (*Status, error) {
	var s struct {
		Time       string  `json:"time"`
		NodeGroups []group `json:"nodeGroups"`
	}
	if err := yaml.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("the status is no YAML; Stowage reads that of version 1.30 and later: %w", err)
	}
	// The form of time.Time.String, without its monotonic part.
	fields := strings.Fields(s.Time)
	if len(fields) < 3 {
		return nil, errors.New("the status does not say of what time it is")
	}
	at, err := time.Parse("2006-01-02 15:04:05 -0700", strings.Join(fields[:3], " "))
	if err != nil {
		return nil, fmt.Errorf("the time of the status: %w", err)
	}
	return &Status{at: at, groups: s.NodeGroups}, nil
}

// groupsOf returns what the autoscaler says of the groups that make nodes of a set. It returns false if the
// status is old, or lacks one of the groups.
func (s *Status) groupsOf(described []NodeGroup, nodes nodeset.Set, now time.Time) (found []group, ok bool) {
	if s == nil || now.Sub(s.at) > statusFor {
		return nil, false
	}
	for i := range described {
		if !described[i].Makes(nodes) {
			continue
		}
		before := len(found)
		for _, g := range s.groups {
			if described[i].is(g.Name) {
				found = append(found, g)
			}
		}
		if len(found) == before {
			return nil, false
		}
	}
	return found, len(found) > 0
}

// OnWay reports whether a node of a set is being made.
func (s *Status) OnWay(described []NodeGroup, nodes nodeset.Set, now time.Time) bool {
	groups, _ := s.groupsOf(described, nodes, now)
	for i := range groups {
		if groups[i].ScaleUp.Status == inProgress {
			return true
		}
	}
	return false
}

// CannotMake reports whether no group can make a node of a set now. Each is in back-off after a failed
// scale-up, or has its maximum size. It is false if no group is described, or if the autoscaler does not report one.
func (s *Status) CannotMake(described []NodeGroup, nodes nodeset.Set, now time.Time) bool {
	groups, ok := s.groupsOf(described, nodes, now)
	for i := range groups {
		full := groups[i].Health.CloudProviderTarget >= groups[i].Health.MaxSize
		if groups[i].ScaleUp.Status == inProgress || groups[i].ScaleUp.Status != backoff && !full {
			return false
		}
	}
	return ok
}
