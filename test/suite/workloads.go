package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The three known strategies.
const (
	Documented   = "nodesize=od4vcpu16gb,base=1,weight=0:nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	EightyTwenty = "type=default,weight=80:type=spot,weight=20"
	OneToThree   = "karpenter.sh/capacity-type=on-demand,base=2,weight=1:karpenter.sh/capacity-type=spot,weight=3"
)

// StrategyOf parses a strategy.
func StrategyOf(t *testing.T, text string) *sequence.Strategy {
	t.Helper()
	s, err := sequence.Parse(text)
	Must(t, err)
	return s
}

// Annotated returns the annotations that give a strategy.
func Annotated(strategy string) map[string]string {
	return map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: strategy}
}

// PodTemplate is a small pod.
func PodTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

// Deployment makes a Deployment without creating it.
func (n *Tenant) Deployment(name string, replicas int, annotations map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name, Annotations: annotations},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: PodTemplate(name),
		},
	}
}

// DaemonSet makes a DaemonSet whose pods have a size by a template, without creating it.
func (n *Tenant) DaemonSet(name, template string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name, Annotations: map[string]string{flexdaemonsets.TemplateAnnotation: template}},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: PodTemplate(name)},
	}
}

// Ready waits until an app has so many active pods, each of them ready, and returns them.
func (n *Tenant) Ready(t *testing.T, app string, count int) (pods []corev1.Pod) {
	t.Helper()
	// Evictions have one rate for all workloads of the cluster, and so for all tests of a suite.
	EventuallyWithin(t, 2*WaitTimeout, fmt.Sprintf("%s has %d ready pods", app, count), func() (bool, error) {
		var err error
		pods, err = n.Pods(t.Context(), app)
		return len(pods) == count && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !podstatus.Ready(&p) }), err
	})
	return pods
}

// Scale sets the replicas of a workload.
func (n *Tenant) Scale(t *testing.T, obj client.Object, replicas int) {
	t.Helper()
	Must(t, n.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
}

// Pods returns the active pods of an app.
func (n *Tenant) Pods(ctx context.Context, app string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := n.List(ctx, &list, client.InNamespace(n.Namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}

// nodeLabels are the labels of all nodes, which do not change.
func nodeLabels(ctx context.Context) (map[string]map[string]string, error) {
	var nodes corev1.NodeList
	if err := Cluster.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, node := range nodes.Items {
		out[node.Name] = node.Labels
	}
	return out, nil
}

// distribution says what is wrong with the pods of an app: each must run, hold a seat of
// its own without gaps below it, and be on a node of its pool; and the counts must be
// those of the strategy. Most pods may be elsewhere, or, if so asked, those that are marked: see [Tenant.SpreadsOrSays].
func (n *Tenant) distribution(ctx context.Context, app string, replicas int, s *sequence.Strategy, most int64, butMarked bool) (elsewhere int64, err error) {
	pods, err := n.Pods(ctx, app)
	if err != nil {
		return 0, err
	}
	nodes, err := nodeLabels(ctx)
	if err != nil {
		return 0, err
	}
	if len(pods) != replicas {
		return 0, fmt.Errorf("%d pods of %d", len(pods), replicas)
	}
	onNodes := make([]int64, s.Len())
	seats := map[string][]int{}
	for i := range pods {
		p := &pods[i]
		if !podstatus.Ready(p) {
			return 0, fmt.Errorf("pod %s is not ready", p.Name)
		}
		for pool := range s.Len() {
			if s.HasNode(pool, nodes[p.Spec.NodeName]) {
				onNodes[pool]++
			}
		}
		ordinal, err := strconv.Atoi(p.Labels[stowage.SeatLabel])
		if err != nil {
			return 0, fmt.Errorf("pod %s on node %s has no seat (labels %v)", p.Name, p.Spec.NodeName, p.Labels)
		}
		seats[p.Labels[stowage.PoolLabel]] = append(seats[p.Labels[stowage.PoolLabel]], ordinal)
		if butMarked && marked(p) {
			most = min(most+1, int64(replicas/10))
		}
	}
	for pool := range s.Len() {
		name := s.Pool(pool).Name
		want := s.Target(pool, int64(replicas))
		elsewhere += max(0, onNodes[pool]-want)
		if most == 0 && onNodes[pool] != want || elsewhere > most || int64(len(seats[name])) != onNodes[pool] {
			return 0, fmt.Errorf("pools have %v pods on their nodes, and pool %s %d seats; it should have %d", onNodes, name, len(seats[name]), want)
		}
		slices.Sort(seats[name])
		for i, ordinal := range seats[name] {
			if ordinal != i+1 {
				return 0, fmt.Errorf("the seats of pool %s are %v", name, seats[name])
			}
		}
	}
	return elsewhere, nil
}

// marked reports whether a pod says that its seat may be wrong: no replica answered in time, or it could not share the seat, or verify it, in time
// (docs/spread.md, How exact). That happens where the processors have other work, and no pod is marked where they have time.
func marked(p *corev1.Pod) bool {
	claim := p.Annotations[stowage.ClaimAnnotation]
	return claim == "" || claim[0] == byte(ledger.OriginUnshared) || claim[0] == byte(ledger.OriginAdopted) || strings.Contains(claim, "!")
}

// Spreads waits until an app's pods are divided as the strategy demands.
func (n *Tenant) Spreads(t *testing.T, app string, replicas int, s *sequence.Strategy) {
	t.Helper()
	n.SpreadsBut(t, app, replicas, s, 0)
}

// SpreadsOrSays is [Tenant.Spreads] for large bursts, but for one pod elsewhere for each that is marked, and a tenth of the pods at most.
func (n *Tenant) SpreadsOrSays(t *testing.T, app string, replicas int, s *sequence.Strategy) {
	t.Helper()
	n.settles(t, app, replicas, func(ctx context.Context) error {
		elsewhere, err := n.distribution(ctx, app, replicas, s, 0, true)
		if elsewhere > 0 && err == nil {
			t.Logf("%s: %d pods are elsewhere, and as many are marked", app, elsewhere)
		}
		return err
	})
}

// SpreadsBut is [Tenant.Spreads], but for so many pods that may be in another pool than is due. It returns how many are.
func (n *Tenant) SpreadsBut(t *testing.T, app string, replicas int, s *sequence.Strategy, most int64) (elsewhere int64) {
	t.Helper()
	n.settles(t, app, replicas, func(ctx context.Context) (err error) {
		elsewhere, err = n.distribution(ctx, app, replicas, s, most, false)
		return err
	})
	return elsewhere
}

// settles waits until nothing is wrong with the pods of an app. It logs them if the time is over.
func (n *Tenant) settles(t *testing.T, app string, replicas int, check func(context.Context) error) {
	t.Helper()
	var wrong error
	if err := Poll(t.Context(), 2*WaitInterval, 3*WaitTimeout, func() (bool, error) {
		wrong = check(t.Context())
		return wrong == nil, nil
	}); err != nil {
		n.LogPods(t, app)
		t.Fatalf("%s at %d: %v", app, replicas, wrong)
	}
}

// LogPods logs where the pods of an app are, and why. If one has no seat of the webhook, it logs why admissions failed.
func (n *Tenant) LogPods(t *testing.T, app string) {
	t.Helper()
	pods, _ := n.Pods(context.WithoutCancel(t.Context()), app)
	bypassed := false
	for i := range pods {
		p := &pods[i]
		t.Logf("%s %s/%s in %q, claim %s, on %q, cost %s, created %s", p.Name, p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel], p.Labels[stowage.DomainLabel],
			p.Annotations[stowage.ClaimAnnotation], p.Spec.NodeName, p.Annotations[corev1.PodDeletionCost], p.CreationTimestamp.Format(time.TimeOnly))
		claim := p.Annotations[stowage.ClaimAnnotation]
		bypassed = bypassed || claim == "" || claim[0] == byte(ledger.OriginAdopted)
	}
	if bypassed {
		logFailures(t, n.Namespace)
	}
}

// logFailures logs what the API server says of webhooks that failed, and what the webhooks say of features that failed in a namespace.
// Each log gives its last lines.
func logFailures(t *testing.T, namespace string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(Cluster.Logs, "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		var of []string
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "failing open") || strings.Contains(line, "pod admitted") && strings.Contains(line, namespace) {
				of = append(of, line)
			}
		}
		for _, line := range of[max(0, len(of)-5):] {
			t.Logf("%s: %s", filepath.Base(file), line)
		}
	}
}

// Revise changes a Deployment's template, so that it rolls out.
func (n *Tenant) Revise(t *testing.T, d *appsv1.Deployment, revision string) {
	t.Helper()
	Must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"revision":%q}}}}}`, revision))))
}

// RolledOut waits until a Deployment has one revision.
func (n *Tenant) RolledOut(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	Eventually(t, "the rollout is complete", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == *d.Spec.Replicas &&
			d.Status.Replicas == *d.Spec.Replicas && d.Status.ReadyReplicas == *d.Spec.Replicas, err
	})
}

// CostsAgree waits until each pod's deletion cost is that of its rank.
func (n *Tenant) CostsAgree(t *testing.T, app string, s *sequence.Strategy) {
	t.Helper()
	var wrong []string
	defer func() {
		if t.Failed() {
			t.Logf("%d pods have another cost, such as %v", len(wrong), wrong[:min(5, len(wrong))])
		}
	}()
	Eventually(t, "the deletion costs agree with the ranks", func() (bool, error) {
		pods, err := n.Pods(t.Context(), app)
		wrong = nil
		for i := range pods {
			pool, _ := strconv.Atoi(pods[i].Labels[stowage.PoolLabel])
			ordinal, _ := strconv.ParseInt(pods[i].Labels[stowage.SeatLabel], 10, 64)
			rank, _ := s.Rank(sequence.Seat{Pool: pool, Ordinal: ordinal})
			if cost := pods[i].Annotations[corev1.PodDeletionCost]; cost != sequence.DeletionCost(rank) {
				wrong = append(wrong, fmt.Sprintf("%s %d/%d rank %d cost %s claim %s", pods[i].Name, pool, ordinal, rank, cost, pods[i].Annotations[stowage.ClaimAnnotation]))
			}
		}
		return len(wrong) == 0, err
	})
}
