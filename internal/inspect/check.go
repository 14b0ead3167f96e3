package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// Answer is what came of a [Inspector.Check].
type Answer struct {
	// OK says that the webhook answered, or that Stowage is installed without it and a leader runs.
	OK bool `json:"ok"`
	// WithoutWebhook says that Stowage is installed without its webhook, so that nothing is asked about pods.
	WithoutWebhook bool `json:"withoutWebhook,omitempty"`
	// Replica is the one that answered, and Took how long the API server took for the pod.
	Replica string        `json:"replica,omitempty"`
	Took    time.Duration `json:"tookNanoseconds,omitempty"`
	// Authenticated says that the replica answers only the API server, which showed a certificate.
	Authenticated bool `json:"authenticated"`
	// Lacks are the resources that the replica may not read, and has to, and what it may not do with others, such as patch-pods. Those of the leader are
	// among them.
	Lacks []string `json:"lacks,omitempty"`
	// Grant is a manifest of the rights to read kinds that policies name and that Stowage may not read.
	Grant string `json:"grant,omitempty"`
	// LeftAlone says why Stowage changes no pod of the namespace, if so.
	LeftAlone string `json:"leftAlone,omitempty"`
	// Causes are why it did not answer, as far as that can be seen, or what is wrong with the replica that did, each with what to do.
	Causes []Problem `json:"causes,omitempty"`
	// Refused are the workloads whose pods the API server refuses because of what Stowage adds to them.
	Refused []Problem `json:"refused,omitempty"`
	// Notes are what else is to be known.
	Notes []string `json:"notes,omitempty"`
}

// Sound reports whether the webhook answered with all the rights and kinds that it needs, and adds nothing that is refused.
func (a *Answer) Sound() bool {
	return a.OK && len(a.Lacks)+len(a.Refused) == 0 && !slices.ContainsFunc(a.Causes, ofKinds)
}

// ofKinds reports whether a problem is that kinds of Stowage are missing or lack fields.
func ofKinds(p Problem) bool {
	return p.Reason == finding.KindsMissing || p.Reason == finding.KindsOlder
}

// Check has the API server admit a pod of a namespace in a dry run, as it would admit one that a ReplicaSet creates. The answer
// proves the whole way: the registration, the certificate, the Service, the network and a replica. It needs
// [Inspector.Heard].
func (i *Inspector) Check(ctx context.Context, namespace string) (*Answer, error) {
	a, err := i.check(ctx, namespace)
	if err == nil && a.OK {
		err = i.kindProblems(ctx, a)
	}
	return a, err
}

// check is [Inspector.Check] without a look at the kinds.
func (i *Inspector) check(ctx context.Context, namespace string) (*Answer, error) {
	nonce := rand.SafeEncodeString(string(uuid.NewUUID()))
	pod := probe(namespace, nonce)
	i.Heard()
	begin := i.Clock.Now()
	err := i.Client.Create(ctx, pod, client.DryRunAll)
	a := &Answer{Took: i.Clock.Since(begin)}
	for _, text := range i.Heard() {
		if rest, ok := strings.CutPrefix(text, stowage.CheckAnswer+nonce+" "); ok {
			a.OK = true
			a.Replica, a.Authenticated = strings.CutSuffix(strings.TrimPrefix(rest, "replica "), stowage.CheckAuthenticated)
			var lacks string
			a.Replica, lacks, _ = strings.Cut(a.Replica, stowage.CheckLacks)
			a.Lacks = strings.Fields(lacks)
		}
	}
	switch {
	case err == nil || a.OK: // who refuses the pod after an answer is another one
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("namespace %s: %w", namespace, ErrNoNamespace)
	case strings.Contains(err.Error(), `failed calling webhook "`) && strings.Contains(err.Error(), `stowage.dev"`):
		a.add(i.ofRegistration(finding.NoAnswer, finding.Values{Text: oneLine(err)}))
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w\nthe check creates a pod in a dry run: it needs the right to create pods in the namespace", err)
	default:
		return nil, err
	}
	return a, i.diagnose(ctx, namespace, pod, a)
}

// probe is a pod that every namespace takes: it meets the restricted Pod Security Standard and states what it needs.
func probe(namespace, nonce string) *corev1.Pod {
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, GenerateName: "stowage-check-", Annotations: map[string]string{stowage.CheckAnnotation: nonce},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: "stowage-check", UID: uuid.NewUUID(), Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "check", Image: "registry.k8s.io/pause", Resources: corev1.ResourceRequirements{Requests: few, Limits: few},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

// diagnose adds why the webhook did not answer, or why an answer changes nothing in this namespace.
func (i *Inspector) diagnose(ctx context.Context, namespace string, pod *corev1.Pod, a *Answer) error {
	if a.OK {
		return i.diagnoseAnswer(ctx, namespace, a)
	}
	r := &Report{}
	s := &snapshot{}
	registration, err := i.registration(ctx, s, r)
	if err != nil {
		return err
	}
	if err := i.health(ctx, registration, r); err != nil {
		return err
	}
	if registration == nil && r.Stowage.withoutWebhook() {
		a.WithoutWebhook, a.OK, a.Causes = true, len(r.Problems) == 0, r.Problems
		return nil
	}
	if err := i.readKinds(); err != nil {
		return err
	}
	i.installed(registration == nil && !s.hiddenRegistration, s.hiddenRegistration, r)
	switch {
	case registration != nil:
		i.reachProblems(ctx, registration, r)
	case !s.hiddenRegistration && !slices.ContainsFunc(r.Problems, toldAbsent):
		r.problem(i.ofRegistration(finding.NotRegistered, finding.Values{}))
	}
	if s.registration != nil {
		if ns, err := i.live().Namespace(ctx, namespace); err == nil && ns != nil {
			if sent, _ := s.registration.Sent(ns.Labels, pod); sent == selection.No {
				r.problem(i.ofRegistration(finding.LeftOut, finding.Values{Other: namespace}))
			}
		}
	}
	a.Causes = append(a.Causes, r.Problems...)
	if len(a.Causes) == 0 {
		a.add(finding.Finding{Reason: finding.NoAnswer, Namespace: i.Namespace, Kind: "Deployment", Name: i.Deployment})
	}
	return nil
}

// diagnoseAnswer adds what the replica that answered lacks, and why it changes nothing in this namespace.
func (i *Inspector) diagnoseAnswer(ctx context.Context, namespace string, a *Answer) error {
	if err := i.allLacks(ctx, namespace, a); err != nil {
		return err
	}
	if err := i.adaptorProblems(ctx, a); err != nil {
		return err
	}
	answer, err := scope.New(i.live(), i.Namespace).Of(ctx, namespace, &podpatch.Pod{})
	if err == nil && answer.Mode != stowage.ModeEnforce {
		a.LeftAlone = answer.Text()
	}
	if answer.Where == "" {
		a.LeftAlone = answer.LeftAlone
	}
	return nil
}

// allLacks adds which rights the replica that answered lacks, and the leader, and those to read kinds that policies name.
func (i *Inspector) allLacks(ctx context.Context, namespace string, a *Answer) error {
	var kinds, others []string
	for _, word := range a.Lacks {
		if resource, ofKind := strings.CutPrefix(word, stowage.CheckLacksGet); ofKind {
			kinds = append(kinds, resource)
		} else {
			others = append(others, word)
		}
	}
	a.Lacks = others // [Inspector.kindsToGrant] adds those of kinds

	if uncounted := len(others) == 1 && strings.HasPrefix(others[0], "and-"); len(others) > 0 && !uncounted { // the statuses of policies name all of them
		a.add(i.missingRights(a.Replica, others))
	}
	i.leaderLacks(ctx, a)
	return i.kindsToGrant(ctx, namespace, kinds, a)
}

// kindProblems adds the kinds that the API server lacks, or that lack fields.
func (i *Inspector) kindProblems(ctx context.Context, a *Answer) error {
	h, r := &Health{}, &Report{}
	if _, err := i.replicas(ctx, h, r); err != nil {
		return err
	}
	r.Problems, r.Stowage = nil, h
	if err := cmp.Or(i.readKinds(), i.olderProblems(r)); err != nil {
		return err
	}
	i.installed(false, false, r)
	a.Causes, a.Notes = append(a.Causes, r.Problems...), r.Warnings
	return nil
}

// leaderLacks adds what the leader may not do and has to. It is another process than the one that answered where that answers for itself alone.
func (i *Inspector) leaderLacks(ctx context.Context, a *Answer) {
	h, r := &Health{}, &Report{}
	if _, _, err := i.leader(ctx, h, r); err != nil || h.Leader == replicaName(a.Replica) && len(a.Lacks) > 0 {
		return // it may not be read, or it is known
	}
	for _, p := range r.Problems {
		a.Lacks = append(a.Lacks, strings.Split(strings.ReplaceAll(p.of.Text, " ", "-"), ",-")...)
		a.Causes = append(a.Causes, p)
	}
}

// asks adds that the webhook does not answer now, and what a replica lacks that does. It asks the API server for a pod in a dry run. Where the user
// may not create pods, it looks at what is behind the webhook's Service.
func (i *Inspector) asks(ctx context.Context, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) {
	namespace := r.namespace
	for n := range r.Workloads {
		if w := &r.Workloads[n]; namespace == "" && w.asksFor {
			namespace = w.Namespace
		}
	}
	if registration == nil || namespace == "" {
		return
	}
	a, err := i.check(ctx, namespace)
	switch {
	case apierrors.IsForbidden(err) && slices.ContainsFunc(registration.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.ClientConfig.Service != nil }):
		i.reachProblems(ctx, registration, r)
	case err != nil:
		r.Warnings = append(r.Warnings, fmt.Sprintf("whether the webhook answers is not known: %v", err))
	case a.OK:
		for _, p := range a.Causes { // the leader's are known from its Lease, and from the statuses of policies
			if !slices.ContainsFunc(r.Problems, func(have Problem) bool {
				return have.Reason == p.Reason && (have.Object == p.Object || p.Reason == finding.KindNotReadable)
			}) {
				r.Problems = append(r.Problems, p)
			}
		}
	case !slices.ContainsFunc(a.Causes, func(p Problem) bool { return p.Reason == finding.LeftOut }):
		for _, p := range a.Causes {
			if !slices.ContainsFunc(r.Problems, func(have Problem) bool { return have.of == p.of }) {
				r.Problems = append(r.Problems, p)
			}
		}
	}
}

// AddRefused adds workloads whose pods are refused because of what Stowage adds.
func (a *Answer) AddRefused(found []finding.Finding) {
	for i := range found {
		a.Refused = append(a.Refused, problemOf(&found[i]))
	}
}

// add adds a cause.
func (a *Answer) add(f finding.Finding) { a.Causes = append(a.Causes, problemOf(&f)) }

// reachProblems adds that the Service of the webhook has no ready replica behind it.
func (i *Inspector) reachProblems(ctx context.Context, registration *admissionregistrationv1.MutatingWebhookConfiguration, r *Report) {
	service, url := (*admissionregistrationv1.ServiceReference)(nil), ""
	for n := range registration.Webhooks {
		c := &registration.Webhooks[n].ClientConfig
		service = cmp.Or(c.Service, service)
		url = cmp.Or(url, ptr.Deref(c.URL, ""))
	}
	if service == nil { // where a URL leads to, nobody here can see
		r.problem(i.ofRegistration(finding.NoAnswer, finding.Values{Text: "the API server is to call " + url + ", where no replica answered"}))
		return
	}
	problem := func(values finding.Values) {
		r.problem(finding.Finding{Reason: finding.NoAnswer, Namespace: service.Namespace, Kind: "Service", Name: service.Name, Values: values})
	}
	var svc corev1.Service
	err := i.Client.Get(ctx, client.ObjectKey{Namespace: service.Namespace, Name: service.Name}, &svc)
	if apierrors.IsNotFound(err) {
		problem(finding.Values{Missing: true})
		return
	}
	if err != nil {
		return // it may not be read
	}
	var pods corev1.PodList
	if err := i.Client.List(ctx, &pods, client.InNamespace(service.Namespace), client.MatchingLabels(svc.Spec.Selector)); err != nil {
		return
	}
	if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return podstatus.Ready(&p) }) {
		problem(finding.Values{Of: int64(len(pods.Items)), Other: i.Deployment})
	}
}

// Print writes the answer.
func (a *Answer) Print(out io.Writer, format string) error { return printAs(out, format, a) }

// text is the answer for people.
func (a *Answer) text() string {
	var l lines
	switch {
	case a.WithoutWebhook:
		l.add("Stowage is installed without its webhook: pods are created as they are written, and scale-downs keep the spread that ScaleDownPolicies ask for.")
	case a.OK:
		l.add("Stowage answered: replica %s, in %s.", a.Replica, a.Took.Round(time.Millisecond))
		if a.Authenticated {
			l.add("It answers only callers with a certificate, as the API server has one.")
		} else {
			l.add("It answers whoever reaches its port. To have it answer only the API server: docs/how-to/authenticate.md.")
		}
		for _, p := range a.Causes {
			if ofKinds(p) {
				l.problem(&p)
			} else {
				l.WriteString(p.text())
			}
		}
		for _, p := range a.Refused {
			l.problem(&p)
		}
		for _, note := range a.Notes {
			l.add("Note: %s", note)
		}
		if a.LeftAlone != "" {
			l.add("It changes no pod of this namespace: %s.", a.LeftAlone)
		}
		return l.String() + a.Grant
	default:
		l.add("Stowage did not answer, and the pod would be created as it was written, or be refused.")
	}
	for _, p := range a.Causes {
		l.problem(&p)
	}
	return l.String()
}

// problem adds a problem of an object other than the replica that answered.
func (l *lines) problem(p *Problem) {
	l.add("%s: %s", p.where(), p.Problem)
	l.add("  → %s", p.Action)
}
