package serving

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Which pods cost a call, told by a warning that only Stowage gives. None with a RuntimeClass
// and none of a DaemonSet is left out.
func TestMatchConditions(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	owner := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", UID: "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a001", Controller: new(true)}}
		}
	}
	placed := func(p *corev1.Pod) { p.Spec.NodeName = "od4-1" }
	mirror := func(p *corev1.Pod) {
		placed(p)
		p.Annotations["kubernetes.io/config.mirror"] = "x"
	}
	class := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("runc") }
	for name, tc := range map[string]struct {
		changes []func(*corev1.Pod)
		called  bool
	}{
		"a plain pod":                            {nil, true},
		"of a ReplicaSet":                        {[]func(*corev1.Pod){owner("ReplicaSet")}, true},
		"of a Job":                               {[]func(*corev1.Pod){owner("Job")}, true},
		"with its node":                          {[]func(*corev1.Pod){placed}, false},
		"of a ReplicaSet, with its node":         {[]func(*corev1.Pod){placed, owner("ReplicaSet")}, false},
		"a mirror pod":                           {[]func(*corev1.Pod){mirror}, false},
		"with a RuntimeClass":                    {[]func(*corev1.Pod){class}, true},
		"with its node, with a RuntimeClass":     {[]func(*corev1.Pod){placed, class}, true},
		"a mirror pod, with a RuntimeClass":      {[]func(*corev1.Pod){mirror, class}, true},
		"of a DaemonSet":                         {[]func(*corev1.Pod){owner("DaemonSet")}, true},
		"of a DaemonSet, with its node":          {[]func(*corev1.Pod){placed, owner("DaemonSet")}, true},
		"of a DaemonSet's kind, beside a mirror": {[]func(*corev1.Pod){mirror, owner("DaemonSet")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := testkit.Pod("probe").Namespace(n.Namespace).Annotation(stowage.ModeKey, "probe").Container("c", "", "").Obj()
			for _, change := range tc.changes {
				change(p)
			}
			n.Warnings.Take()
			must(t, n.Create(t.Context(), p, client.DryRunAll))
			if called := strings.Contains(strings.Join(n.Warnings.Take(), "\n"), stowage.ModeKey); called != tc.called {
				t.Errorf("called: %t, want %t", called, tc.called)
			}
		})
	}
}

// Without an answer, namespaces that ask for it refuse pods, and all others admit them.
func TestFailurePolicyByNamespace(t *testing.T) {
	open, closed := newTenant(t), newTenant(t, "stowage.dev/failure-policy=Fail")
	probe := func(n *tenant) error {
		p := testkit.Pod("probe").Namespace(n.Namespace).Annotation(stowage.ModeKey, "probe").Container("c", "", "").Obj()
		return n.Create(t.Context(), p, client.DryRunAll)
	}
	for _, n := range []*tenant{open, closed} {
		must(t, probe(n))
		if warned := n.Warnings.Take(); len(warned) != 1 {
			t.Errorf("the two entries overlap, or leave a gap: warned %q", warned)
		}
	}
	restoreFleet(t)
	for _, r := range cluster.Replicas() {
		r.Kill()
	}
	must(t, probe(open))
	if err := probe(closed); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "pods-fail.stowage.dev") {
		t.Errorf("the pod was not refused: %v", err)
	}
	must(t, closed.Create(t.Context(), closed.Deployment("web", 2, annotated(documented))))
	eventually(t, "status says why there is no pod", func() (bool, error) {
		out, _, exit := suite.CLI(t, cluster, append([]string{"status", "-n", closed.Namespace}, suite.SpreadOnly...)...)
		return exit == 3 && strings.Contains(out, "Deployment/web: 0 of 2 pods exist, because the API server refuses to create more: ") &&
			strings.Contains(out, "no replica of Stowage's webhook answered, and with failure policy Fail no pod is created then") && !strings.Contains(out, "the pod template"), nil
	})
}

// A flood of pods that wait for a slow webhook takes every place of the service accounts'
// level; Stowage's own requests have places of their own.
func TestFlowControlUnderAFlood(t *testing.T) {
	n := newTenant(t, "flood=yes")
	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	defer floods.Wait()
	defer stop()

	// A webhook that answers when the flood is over.
	over := ctx.Done()
	slow := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
		http.Error(w, "slow", http.StatusServiceUnavailable)
	}))
	slow.StartTLS()
	defer slow.Close()
	defer stop()
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "slow.test.example", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"flood": "yes"}},
			FailurePolicy:     new(admissionregistrationv1.Ignore), TimeoutSeconds: new(int32(10)),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: new(slow.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: slow.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	must(t, cluster.Client.Create(ctx, registration))
	defer func() { _ = cluster.Client.Delete(context.Background(), registration) }()

	// The flood, of several accounts, and another account that takes no part in it.
	must(t, cluster.Client.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + n.Namespace}},
	}))
	for i := range 4 {
		c := n.Account(t, fmt.Sprintf("flood-%d", i))
		for range 250 {
			floods.Go(func() {
				for ctx.Err() == nil {
					p := testkit.Pod("flood").Namespace(n.Namespace).Container("c", "", "").Obj()
					_ = c.Create(ctx, p, client.DryRunAll)
				}
			})
		}
	}
	eventually(t, "the flood has taken every place of the service accounts' level", func() (bool, error) {
		waiting, err := waitForAPlace(ctx)
		return waiting > 0, err
	})

	// Stowage's token, and a request that it does make. The client, which is new, asks for the
	// kinds that there are, too, as a replica does that starts.
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(filepath.Dir(cluster.Kubeconfig), "stowage.kubeconfig"))
	must(t, err)
	cfg.QPS = -1
	level := &seenLevel{}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { level.next = next; return level })
	own, err := client.New(cfg, client.Options{Scheme: controlplane.Scheme})
	must(t, err)
	// Without a level of its own none gets through. With it, one may still wait for a CPU, which the flood and other tests
	// use, too.
	const requests, late = 20, 2
	var errs []error
	flooded := 0
	for range requests {
		waiting, err := waitForAPlace(ctx)
		must(t, err)
		if waiting > 0 {
			flooded++
		}
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		if err := own.Get(within, client.ObjectKey{Name: n.Namespace}, &corev1.Namespace{}); err != nil {
			errs = append(errs, err)
		}
		cancel()
	}
	if len(errs) > late {
		t.Errorf("%d of %d requests of Stowage do not get through: %v", len(errs), requests, errors.Join(errs...))
	}
	t.Logf("other requests waited for a place at %d of %d requests of Stowage; %d of those were late", flooded, requests, len(errs))
	// The places become free together when the slow webhook times out, so the queue may be short for a moment.
	if flooded < requests/2 {
		t.Errorf("other requests waited for a place at %d of %d requests of Stowage: nothing is shown", flooded, requests)
	}
	var mine flowcontrolv1.PriorityLevelConfiguration
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &mine))
	if level.uid != string(mine.UID) {
		t.Errorf("Stowage's requests were of level %s, not of its own (%s)", level.uid, mine.UID)
	}
}

// waitForAPlace returns how many requests of service accounts are in the API server's queues.
func waitForAPlace(ctx context.Context) (float64, error) {
	return cluster.Metric(ctx, "apiserver_flowcontrol_current_inqueue_requests", `flow_schema="service-accounts"`)
}

// seenLevel notes the priority level that the API server gave to the last request.
type seenLevel struct {
	next http.RoundTripper
	uid  string
}

func (s *seenLevel) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err == nil {
		s.uid = resp.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
	}
	return resp, err
}

// Some match conditions can only be evaluated by the API server. With one that asks the authorizer, the statuses of policies go on, and pods get
// their seats. `stowage status` says what is not known.
func TestConditionOfTheAuthorizer(t *testing.T) {
	n := newTenant(t)
	restore := patchRegistration(t, func(w *admissionregistrationv1.MutatingWebhook) {
		w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "who-may-create", Expression: `authorizer.group("").resource("pods").check("create").allowed()`})
	})
	defer restore()
	for _, pool := range []string{"od", "spot"} {
		n.PoolNode(t, pool, "1", 50)
	}
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "web"}}}}
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	must(t, n.Create(t.Context(), p))
	n.Follows(t, map[string]string{"app": "web"}, p.UID, p.Generation)
	d := n.Deployment("web", 10, nil)
	suite.OneCPU(&d.Spec.Template.Spec)
	must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", 10)
	n.InPools(t, "web", "od=2 spot=8")
	eventuallyWithin(t, 2*suite.WaitTimeout, "the status of the policy is current", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.Workloads == 1 && p.Status.Pods == 10 && p.Status.Balanced == "1/1" && p.Status.NotReached == 0, err
	})
	if out, errs, exit := suite.CLI(t, cluster, "status", "-n", n.Namespace); exit != 0 || !strings.Contains(errs, "who-may-create") || !strings.Contains(errs, "not known") {
		t.Errorf("status exits with %d, and says:\n%s%s", exit, out, errs)
	}
}
