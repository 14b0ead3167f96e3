package inspect

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// claims returns what is known of a pod's volumes, and whether one of them keeps the pod from each node. The pod waits for a node.
func (c *cells) claims(ctx context.Context, pod *corev1.Pod, nodes nodeLabels) (known nodefit.Volumes, reason finding.Reason, v finding.Values) {
	for _, name := range podstatus.VolumeClaims(&pod.Spec) {
		claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, claim)
		v := finding.Values{Other: name}
		switch {
		case apierrors.IsNotFound(err):
			v.Missing = true
			return known, finding.VolumeMissing, v
		case err != nil:
			known.Unknown = true
			continue
		case claim.Spec.VolumeName == "":
			// Only the scheduler says whether it waits for the claim, or the claim for it: StorageClasses may not be read.
			if says, _ := podstatus.Unschedulable(pod); strings.Contains(says, "unbound immediate PersistentVolumeClaims") {
				return known, finding.VolumeMissing, v
			}
			known.Unknown = true
			continue
		}
		err = c.Client.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume)
		v.Text = claim.Spec.VolumeName
		terms, readable := nodefit.VolumeTerms(volume)
		switch {
		case apierrors.IsNotFound(err):
			return known, finding.VolumeMissing, v
		case err != nil || !readable:
			known.Unknown = true
		case len(terms) == 0:
		case nodes != nil && !nodes.reach(terms):
			v.Labels = nodeTerms(terms)
			return known, finding.VolumeOutOfReach, v
		default:
			known.Terms = append(known.Terms, terms)
		}
	}
	return known, "", v
}

// reach reports whether a node reaches a volume with some terms.
func (n nodeLabels) reach(terms []corev1.NodeSelectorTerm) bool {
	for name, labels := range n {
		node := &corev1.Node{}
		node.Name, node.Labels = name, labels
		if nodefit.InReach(terms, node) {
			return true
		}
	}
	return false
}

// nodeTerms says which nodes a volume is for.
func nodeTerms(terms []corev1.NodeSelectorTerm) string {
	var parts []string
	for i := range terms[0].MatchExpressions { // the others are of zones
		r := &terms[0].MatchExpressions[i]
		parts = append(parts, nodeset.Text(r))
	}
	return strings.Join(parts, ", ")
}
