// Package observed says what pods of a workload there are, and where. Package layout says where they should be.
//
// There are two sources. The controllers have the records of a watch, whose claims are verified: package seats makes them. A view lists pods, and has
// no key to verify claims with.
package observed

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Pod is what is kept of a pod that has a seat. There may be many.
type Pod struct {
	Namespace, Name, Node string
	UID, Owner            types.UID
	ledger.Seat
	ID      string // of its claim, or empty
	Source  ledger.Source
	Cost    string // its deletion cost
	Created int64  // seconds since 1970
	Version uint64 // resource version
	Origin  ledger.Origin
	Active  bool // not ending and not ended
	Ready   bool
	Ending  bool // being deleted, and not ended
	// Unschedulable is whether the scheduler found no node for the pod. Nominated is whether a node will have room
	// for the pod once others have ended there.
	Unschedulable, Nominated bool
	// Pins are the pod's node selector and required node affinity while it has no node. They are nil if they exceed mostPins; such a pod is never
	// judged outdated.
	Pins   *nodeset.Pins
	Claims []string // of its volumes, MostClaims and one more at most
	Fit    string   // the spec of [ShapeOf] of a pod with claims, as JSON. Pods of one template share one copy.
}

// MostClaims is how many PersistentVolumeClaims of a pod are looked at.
const MostClaims = 16

// mostPins is how many bytes of a pod's pins are kept. Stowage writes some hundred, and a tenant may write a megabyte, which each replica would keep.
const mostPins = 2 << 10

// New returns what is kept of a pod of an owner, with the seat that it carries.
func New(pod *corev1.Pod, owner types.UID, carried ledger.Carried) Pod {
	_, unschedulable := podstatus.Unschedulable(pod)
	p := Pod{
		Namespace: shared(pod.Namespace), Name: pod.Name, Node: shared(pod.Spec.NodeName), UID: pod.UID, Owner: types.UID(shared(string(owner))),
		Cost: pod.Annotations[corev1.PodDeletionCost], Created: pod.CreationTimestamp.Unix(), Version: ledger.ParseVersion(pod.ResourceVersion),
		Active: podstatus.Active(pod), Ready: podstatus.Ready(pod), Ending: pod.DeletionTimestamp != nil && !podstatus.Ended(pod),
		Unschedulable: unschedulable, Nominated: pod.Status.NominatedNodeName != "",
		Seat: carried.Seat, Origin: carried.Origin,
		Source: ledger.Source{UID: types.UID(shared(string(carried.Source.UID))), Generation: carried.Source.Generation, Selector: shared(carried.Source.Selector)},
	}
	p.Pool, p.Domain = shared(p.Pool), shared(p.Domain)
	if p.Node == "" {
		p.Pins = PinsOf(&pod.Spec)
	}
	for _, claim := range ClaimsOf(&pod.Spec) {
		p.Claims = append(p.Claims, shared(claim))
	}
	if len(p.Claims) > 0 {
		p.Fit = fitOf(pod)
	}
	if p.Origin != ledger.OriginOrdinal {
		p.ID = strings.Clone(carried.ID) // not the whole annotation
	}
	return p
}

// PinsOf returns the pins of a pod, or nil if it has none or they exceed mostPins.
func PinsOf(spec *corev1.PodSpec) *nodeset.Pins {
	if pins := nodeset.PinsOf(spec); pins.Bytes() <= mostPins {
		return pins
	}
	return nil
}

// ClaimsOf returns the first [MostClaims] of a pod's claims, and one more if there are more.
func ClaimsOf(spec *corev1.PodSpec) []string {
	claims := podstatus.VolumeClaims(spec)
	return claims[:min(len(claims), MostClaims+1)]
}

// mostShape is the size in bytes of the largest shape of a pod that is compared with nodes, and kept.
const mostShape = 2 << 10

// ShapeOf returns a pod with the spec that [nodefit.Shape] has of another one, or nil if that exceeds mostShape. The webhook and the leader both ask
// it, so that a pod which the leader recreates gets another place.
func ShapeOf(pod *corev1.Pod) *corev1.Pod {
	if spec := nodefit.Shape(pod).Spec; spec.Size() <= mostShape {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace}, Spec: spec}
	}
	return nil
}

// fitOf returns the spec of [ShapeOf] as JSON, or "".
func fitOf(pod *corev1.Pod) string {
	shape := ShapeOf(pod)
	if shape == nil {
		return ""
	}
	text, _ := json.Marshal(&shape.Spec) // it always encodes
	return shared(string(text))
}

// Shape returns what [ShapeOf] returned for a pod with claims, or nil.
func (p *Pod) Shape() *corev1.Pod {
	if p.Fit == "" {
		return nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace}}
	if json.Unmarshal([]byte(p.Fit), &out.Spec) != nil {
		return nil
	}
	return out
}

// shared returns the one copy of a text that many pods have.
func shared(s string) string { return unique.Make(s).Value() }

// Unverified is [New] for a reader without the key: it takes what the pod's labels and annotations say.
func Unverified(pod *corev1.Pod, owner types.UID) Pod {
	return New(pod, owner, ledger.Unverified(pod.Labels, pod.Annotations))
}

// Waiting reports whether the scheduler found no node for the pod.
func (p *Pod) Waiting() bool { return p.Active && p.Node == "" && p.Unschedulable }

// Age returns how long ago the pod was created.
func (p *Pod) Age(now time.Time) time.Duration { return now.Sub(time.Unix(p.Created, 0)) }

// CostRank returns the rank that the pod's deletion cost should stand for. Foreign says that Stowage did not write the cost, or that it is gone, so
// that a scale-down does not follow the rank. A pod that its owner removes by ordinal has no cost that counts, and its claim names no rank.
func (p *Pod) CostRank(l *layout.Layout) (rank int64, foreign bool) {
	pool, known := l.PoolKeyed(p.Pool)
	if !known || p.Ordinal < 1 || p.Origin == ledger.OriginOrdinal {
		return sequence.NoRank, false // its labels name no seat, or its cost does not count
	}
	own := l.Whole().RankOrNone(sequence.Seat{Pool: pool, Ordinal: cmp.Or(ledger.Position(p.ID), p.Ordinal)})
	if rank := sequence.RankOfCost(p.Cost, own, ledger.CostRank(p.ID)); rank != 0 {
		return rank, false
	}
	return own, p.Cost != "" || own != sequence.NoRank && ledger.CostRank(p.ID) > 0 // without a rank or a cost, a pod goes first in any case
}

// Owner is what makes pods, with those of its pods that have a seat.
type Owner struct {
	*world.Workload
	Pods []Pod
}

// RankOf returns the rank of a StatefulSet's pod, from 1. It returns false if its name does not say it.
func (o *Owner) RankOf(p *Pod) (rank int64, ok bool) {
	n, err := strconv.ParseInt(placement.OrdinalInName(p.Name), 10, 32)
	return n - o.FirstOrdinal + 1, err == nil && n >= o.FirstOrdinal
}

// Indexed returns the seats of the pods of an Indexed Job. Those of other owners follow from their layout.
func (o *Owner) Indexed(l *layout.Layout) (out []sequence.Seat) {
	for i := range o.Pods {
		p := &o.Pods[i]
		if !o.IsJob() || !p.Active || p.Ordinal < 1 || p.Origin != ledger.OriginOrdinal {
			continue
		}
		if pool, known := l.PoolKeyed(p.Pool); known {
			out = append(out, sequence.Seat{Pool: pool, Ordinal: p.Ordinal})
		}
	}
	return out
}
