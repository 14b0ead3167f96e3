package inspect

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/version"
)

// Health is the state of Stowage itself, as far as the user may read it.
type Health struct {
	// Ready and Replicas are those of the Deployment; nil if there is none, as on a local cluster.
	Ready    *int32 `json:"ready,omitempty"`
	Replicas *int32 `json:"replicas,omitempty"`
	// ControllersReady and Controllers are those of the Deployment of the controllers; nil if the replicas run them.
	ControllersReady *int32 `json:"controllersReady,omitempty"`
	Controllers      *int32 `json:"controllers,omitempty"`
	// Leader is the replica that runs the controllers.
	Leader string `json:"leader,omitempty"`
	// AuthorityUntil is when the last of the authorities ends that the API server trusts.
	AuthorityUntil *time.Time `json:"authorityUntil,omitempty"`
	// Level is what becomes of a pod that no replica sees; empty if that may not be read. Namespaces may have another one.
	Level         Level  `json:"level,omitempty"`
	Version       string `json:"version,omitempty"`
	ClientVersion string `json:"clientVersion"`
}

// slack is how much longer than its duration a lease may be unrenewed: clocks differ.
const slack = 30 * time.Second

// health looks at Stowage itself. Where nothing of it is installed, it is nil.
func (i *Inspector) health(ctx context.Context, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) error {
	h := &Health{ClientVersion: version.String()}
	deployed, err := i.replicas(ctx, h, r)
	if err != nil {
		return err
	}
	if i.InvalidConfig != nil {
		r.problem(finding.Finding{Reason: finding.InvalidConfig, Namespace: i.Namespace, Kind: "ConfigMap", Name: i.ConfigMap, Values: finding.Values{Text: oneLine(i.InvalidConfig)}})
	}
	leased, missing, err := i.leader(ctx, h, r)
	if err != nil {
		return err
	}
	alone := registration != nil && !deployed                      // the registration is there, and no Deployment is
	installed := registration != nil || deployed || h.Leader != "" // a lease alone is what an uninstallation leaves
	expected := leased || missing && alone
	if installed && expected && h.Leader == "" {
		r.problem(finding.Finding{Reason: finding.NoLeader, Namespace: i.Namespace, Kind: "Lease", Name: i.Lease})
	}
	if registration != nil {
		i.authority(registration, h, r)
	}
	if installed {
		r.Stowage = h
	}
	return nil
}

// withoutWebhook reports whether Stowage is installed without its webhook, as config/scaledown has it.
func (h *Health) withoutWebhook() bool { return h != nil && h.Ready == nil && h.Controllers != nil }

// everywhere stands for all namespaces.
const everywhere = "*"

// paused returns which of some namespaces are paused.
func (i *Inspector) paused(namespaces []corev1.Namespace) (names []string) {
	if i.Paused {
		return []string{everywhere}
	}
	for n := range namespaces {
		if scope.IsPaused(&namespaces[n]) {
			names = append(names, namespaces[n].Name)
		}
	}
	return names
}

// pausedText says what is paused, in one line.
func (r *Report) pausedText() string {
	var l lines
	switch {
	case len(r.Paused) == 0:
		return ""
	case r.Paused[0] == everywhere:
		l.add("PAUSED: Stowage changes and evicts no pods that exist, in the whole cluster; kubectl stowage resume has it go on")
	default:
		shown := strings.Join(r.Paused[:min(5, len(r.Paused))], ", ")
		if more := len(r.Paused) - 5; more > 0 {
			shown += fmt.Sprintf(" and %d more", more)
		}
		l.add("PAUSED: Stowage changes and evicts no pods that exist in %s; kubectl stowage resume -n NAMESPACE has it go on", shown)
	}
	return l.String()
}

// hiddenReplicas is what is left out for a user who may not read the Deployments of Stowage.
const hiddenReplicas = "the replicas of Stowage"

// replicas fills in how many replicas there are and are ready. It reports whether a Deployment of Stowage is there.
func (i *Inspector) replicas(ctx context.Context, h *Health, r *Report) (deployed bool, _ error) {
	for _, part := range []struct {
		deployment      string
		ready, replicas **int32
		outage          string
	}{
		{i.Deployment, &h.Ready, &h.Replicas, "pods are created unchanged, or refused where failurePolicy is Fail"},
		{i.Controllers, &h.ControllersReady, &h.Controllers, "nothing is repaired, resized or advertised, and no status is written"},
	} {
		var d appsv1.Deployment
		switch err := i.Client.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: part.deployment}, &d); {
		case apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err):
			r.hide(hiddenReplicas)
			continue
		case err != nil:
			return deployed, fmt.Errorf("the Deployment %s: %w", part.deployment, err)
		}
		deployed = true
		ready, replicas := d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1)
		*part.ready, *part.replicas = &ready, &replicas
		h.Version = cmp.Or(h.Version, d.Labels["app.kubernetes.io/version"])
		if ready < replicas {
			values := finding.Values{Count: int64(ready), Of: int64(replicas), Text: part.outage}
			r.problem(finding.Finding{Reason: finding.ReplicasNotReady, Namespace: i.Namespace, Kind: "Deployment", Name: part.deployment, Values: values})
		}
	}
	return deployed, nil
}

// leader fills in which replica leads. It reports whether the lease is there, and whether it is known not to be.
func (i *Inspector) leader(ctx context.Context, h *Health, r *Report) (leased, missing bool, _ error) {
	var lease coordinationv1.Lease
	err := i.Client.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: i.Lease}, &lease)
	switch {
	case apierrors.IsForbidden(err):
		r.hide("the leader of Stowage")
		return false, false, nil
	case apierrors.IsNotFound(err):
		return false, true, nil
	case err != nil:
		return false, false, fmt.Errorf("the lease of Stowage: %w", err)
	}
	holder := replicaName(ptr.Deref(lease.Spec.HolderIdentity, ""))
	duration := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	if holder != "" && lease.Spec.RenewTime != nil && i.Clock.Now().Sub(lease.Spec.RenewTime.Time) < duration+slack {
		h.Leader = holder
		if _, lacks, ok := strings.Cut(lease.Annotations[stowage.StandingAnnotation], stowage.CheckLacks); ok {
			r.problem(i.missingRights(holder, strings.Fields(lacks)))
		}
	}
	return true, false, nil
}

// missingRights is that a replica may not do what it has to.
func (i *Inspector) missingRights(replica string, lacks []string) finding.Finding {
	return finding.Finding{Reason: finding.MissingRights, Namespace: i.Namespace, Kind: "Pod", Name: replicaName(replica), Values: finding.Values{
		Text: strings.ReplaceAll(strings.Join(lacks, ", "), "-", " "), NoMoves: slices.Contains(lacks, "create-pods/eviction"),
	}}
}

// replicaName is the name of a replica's pod, as far as the replica's identity has it.
func replicaName(identity string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(identity, "pod/"), "_")
	return name
}

// authority fills in until when the API server trusts the webhook's certificate.
func (i *Inspector) authority(registration *admissionregistrationv1.MutatingWebhookConfiguration, h *Health, r *Report) {
	for n := range registration.Webhooks {
		w := &registration.Webhooks[n]
		if len(w.ClientConfig.CABundle) == 0 && i.CertDir != "" {
			continue // the API server trusts what its machine trusts
		}
		until := lastExpiry(w.ClientConfig.CABundle)
		if h.AuthorityUntil == nil || until.Before(*h.AuthorityUntil) {
			h.AuthorityUntil = &until
		}
	}
	if u := h.AuthorityUntil; u != nil && u.Before(i.Clock.Now()) {
		h.AuthorityUntil = nil
		r.problem(i.ofRegistration(finding.NoCertificate, finding.Values{In: i.Namespace, Other: i.Deployment}))
	}
}

// answerProblem adds that no replica has answered lately, as far as pods show that. The youngest pods have nothing of the webhook.
// Before they were created, their policies and the registration were written, and the webhook changed a pod of their namespace.
func (i *Inspector) answerProblem(s *snapshot, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) {
	if registration == nil {
		return
	}
	last := editedAt(registration)
	for _, answered := range s.answered {
		last = later(last, slices.MaxFunc(answered, time.Time.Compare))
	}
	late := slices.DeleteFunc(s.unanswered, func(at time.Time) bool { return !at.After(last) })
	if len(late) == 0 {
		return
	}
	since := i.Clock.Since(slices.MinFunc(late, time.Time.Compare))
	r.problem(i.ofRegistration(finding.NoAnswer, finding.Values{Other: duration.HumanDuration(since), Count: int64(len(late))}))
}

// ofRegistration is a finding about the webhook's registration.
func (i *Inspector) ofRegistration(reason finding.Reason, values finding.Values) finding.Finding {
	return finding.Finding{Reason: reason, Kind: "MutatingWebhookConfiguration", Name: i.Registration, Values: values}
}

// lastExpiry returns when the last certificate of a bundle ends; zero if there is none.
func lastExpiry(bundle []byte) (last time.Time) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// text is the health in a line.
func (h *Health) text() string {
	var parts []string
	if h.Replicas != nil {
		parts = append(parts, fmt.Sprintf("%d of %d replicas ready", *h.Ready, *h.Replicas))
	}
	if h.Controllers != nil {
		parts = append(parts, fmt.Sprintf("%d of %d controllers ready", *h.ControllersReady, *h.Controllers))
	}
	if h.Leader != "" {
		parts = append(parts, "leader "+h.Leader)
	}
	if h.Level != "" {
		parts = append(parts, fmt.Sprintf("pods are %s while no replica answers (%s)", map[Level]string{
			LevelIgnore: "created unchanged", LevelFail: "refused", LevelGate: "created, and those with the gate wait for their seat,",
		}[h.Level], h.Level))
	}
	if h.AuthorityUntil != nil {
		parts = append(parts, "certificate authority valid until "+h.AuthorityUntil.UTC().Format(time.DateOnly))
	}
	if h.Version != "" {
		parts = append(parts, "version "+h.Version)
		if strings.TrimPrefix(h.Version, "v") != strings.TrimPrefix(h.ClientVersion, "v") {
			parts = append(parts, "client version "+h.ClientVersion)
		}
	}
	if len(parts) == 0 {
		return "Stowage is installed.\n"
	}
	var l lines
	l.add("Stowage: %s", strings.Join(parts, ", "))
	return l.String()
}
