package resources

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// reports waits until a template's status has this condition UpToDate, and these counts
// of pods and of those that are off size.
func (n *tenant) reports(t *testing.T, f *flexdaemonsets.FlexDaemonsetTemplate, want string, pods, off int32) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the status is %+v", f.Status)
		}
	}()
	eventually(t, fmt.Sprintf("template %s is %s with %d pods, %d off", f.Name, want, pods, off), func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(f), f)
		return condition(f, flexdaemonsets.ConditionUpToDate) == want && f.Status.Pods == pods && f.Status.OffSize == off && f.Status.ObservedGeneration == f.Generation, err
	})
}

func (n *tenant) allocate(t *testing.T, node *corev1.Node, cpu string) {
	t.Helper()
	must(t, n.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"status":{"allocatable":{"cpu":"`+cpu+`"}}}`))))
}

// podUIDs are the pods of an app: a resize makes no new ones.
func (n *tenant) podUIDs(t *testing.T, app string) string {
	t.Helper()
	pods, err := n.Pods(t.Context(), app)
	must(t, err)
	var out []string
	for i := range pods {
		out = append(out, string(pods[i].UID))
	}
	return strings.Join(out, " ")
}

// Running pods follow their template and their node, without a new pod.
func TestResizeInPlace(t *testing.T) {
	suite.NeedsResize(t)
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=4,memory=8Gi,ephemeral-storage=100Gi")
	eight := n.SizedNode(t, "8", "cpu=8,memory=16Gi,ephemeral-storage=100Gi")
	f := n.SizeTemplate(t, "share", `{cpuPercentage: 10, memoryPercentage: 75, updatePolicy: InPlace}`)
	must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", f.Name,
		testkit.Pod("").InitContainer("setup", "cpu=1", "").Sidecar("s", "cpu=1", "").Container("a", "cpu=2", "").Container("b", "cpu=1", ""))))
	want := func(four, eight string) map[string]string { return map[string]string{"4": four, "8": eight} }
	// Init containers that have run keep what they had: the share of that time.
	containers := func(setup, quarter, half, memory string) string {
		line := func(name, cpu string) string {
			return fmt.Sprintf("%s: cpu=%s,memory=%s | cpu=%[2]s,memory=%[3]s", name, cpu, memory)
		}
		return strings.Join([]string{"setup: cpu=" + setup + " | ", line("s", quarter), line("a", half), line("b", quarter)}, "\n")
	}
	n.becomes(t, "agent", want(containers("400m", "100m", "200m", "2Gi"), containers("800m", "200m", "400m", "4Gi")))
	n.reports(t, f, "True UpToDate", 2, 0)
	uids := n.podUIDs(t, "agent")

	t.Run("the template changes", func(t *testing.T) {
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
		n.becomes(t, "agent", want(containers("400m", "200m", "400m", "2Gi"), containers("800m", "400m", "800m", "4Gi")))
		n.reports(t, f, "True UpToDate", 2, 0)
	})
	t.Run("a node changes", func(t *testing.T) {
		n.allocate(t, eight, "6")
		n.becomes(t, "agent", want(containers("400m", "200m", "400m", "2Gi"), containers("800m", "300m", "600m", "4Gi")))
	})
	t.Run("and changes back", func(t *testing.T) {
		n.allocate(t, eight, "8")
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":10}}`)
		n.becomes(t, "agent", want(containers("400m", "100m", "200m", "2Gi"), containers("800m", "200m", "400m", "4Gi")))
	})
	t.Run("not while the namespace is paused", func(t *testing.T) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}}
		n.MergePatch(t, ns, `{"metadata":{"labels":{"stowage.dev/paused":"true"}}}`)
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
		n.reports(t, f, "False Resizing", 2, 2)
		n.becomes(t, "agent", want(containers("400m", "100m", "200m", "2Gi"), containers("800m", "200m", "400m", "4Gi")))
		n.MergePatch(t, ns, `{"metadata":{"labels":{"stowage.dev/paused":null}}}`)
		n.reports(t, f, "True UpToDate", 2, 0)
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":10}}`)
		n.reports(t, f, "True UpToDate", 2, 0)
	})
	t.Run("what cannot follow waits for new pods", func(t *testing.T) {
		n.MergePatch(t, f, `{"spec":{"storagePercentage":1,"cpuPercentage":20}}`)
		n.becomes(t, "agent", want(containers("400m", "200m", "400m", "2Gi"), containers("800m", "400m", "800m", "4Gi")))
		n.reports(t, f, "False AwaitsNewPods", 2, 2)
		n.MergePatch(t, f, `{"spec":{"storagePercentage":null}}`)
		n.reports(t, f, "True UpToDate", 2, 0)
	})
	t.Run("a container is excluded, and comes back", func(t *testing.T) {
		suite.NeedsVersion(t, "1.34", "lower memory limits in place")
		n.MergePatch(t, f, `{"spec":{"excludeContainers":["b"]}}`)
		n.reports(t, f, "False AwaitsNewPods", 2, 2) // it had no limits, and those it has stay
		line := func(name, cpu string) string { return name + ": cpu=" + cpu }
		eventually(t, "the other two have what is left", func() (bool, error) {
			got := n.Sized(t, "agent", 2)["4"]
			return strings.Contains(got, line("b", "1,")) && strings.Contains(got, line("s", "0,")), nil
		})
		n.MergePatch(t, f, `{"spec":{"excludeContainers":null}}`)
		n.becomes(t, "agent", want(containers("400m", "200m", "400m", "2Gi"), containers("800m", "400m", "800m", "4Gi")))
		n.reports(t, f, "True UpToDate", 2, 0)
	})
	t.Run("OnCreate leaves them", func(t *testing.T) {
		n.MergePatch(t, f, `{"spec":{"updatePolicy":"OnCreate","cpuPercentage":10}}`)
		n.reports(t, f, "False AwaitsNewPods", 2, 2)
		n.MergePatch(t, f, `{"spec":{"updatePolicy":"InPlace"}}`)
		n.reports(t, f, "True UpToDate", 2, 0)
	})
	if now := n.podUIDs(t, "agent"); now != uids {
		t.Errorf("the pods are %s, were %s", now, uids)
	}
}

// The API server's rules: what it refuses is reported, and asked for once.
func TestResizeRefused(t *testing.T) {
	suite.NeedsResize(t)
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=4,memory=8Gi")
	other := n.SizedNode(t, "other", "cpu=2,memory=8Gi")
	t.Run("another QoS class", func(t *testing.T) {
		f := n.SizeTemplate(t, "qos", `{cpuPercentage: 10, memoryPercentage: 25, limits: None, updatePolicy: InPlace}`)
		must(t, n.Create(t.Context(), n.SizedDaemonSet("burstable", f.Name, suite.Agent())))
		n.becomes(t, "burstable", map[string]string{"4": "a: cpu=400m,memory=2Gi | ", "other": "a: cpu=200m,memory=2Gi | "})
		before := refusals(t)
		n.MergePatch(t, f, `{"spec":{"limits":"Equal"}}`)
		n.reports(t, f, "False Refused", 2, 2)
		if c := f.Status.Conditions; !strings.Contains(fmt.Sprint(c), "Pod QOS Class may not change as a result of resizing") {
			t.Errorf("the status does not say why: %v", c)
		}
		eventually(t, "an event says why", func() (bool, error) {
			return n.HasEvent(t, "ResizeRefused", "QOS Class may not change"), nil
		})
		eventually(t, "each pod was asked for once", func() (bool, error) { return refusals(t) == before+2, nil })
		// Nothing but a change of what a pod should be has it asked for again.
		n.MergePatch(t, f, `{"spec":{"excludeContainers":["no-such"]}}`)
		n.allocate(t, other, "1")
		eventually(t, "the pod of the changed node was asked for again", func() (bool, error) { return refusals(t) == before+3, nil })
		n.MergePatch(t, f, `{"spec":{"limits":"None"}}`)
		n.reports(t, f, "True UpToDate", 2, 0)
		if now := refusals(t); now != before+3 {
			t.Errorf("%v refusals, want 3", now-before)
		}
		n.allocate(t, other, "2")
	})
	t.Run("a limit that would have to go grows", func(t *testing.T) {
		f := n.SizeTemplate(t, "limit", `{cpuPercentage: 10, limits: None, updatePolicy: InPlace}`)
		must(t, n.Create(t.Context(), n.SizedDaemonSet("limited", f.Name, testkit.Pod("").Container("a", "cpu=100m", "cpu=500m"))))
		n.becomes(t, "limited", map[string]string{"4": "a: cpu=400m | cpu=500m", "other": "a: cpu=200m | cpu=500m"})
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
		n.becomes(t, "limited", map[string]string{"4": "a: cpu=800m | cpu=800m", "other": "a: cpu=400m | cpu=500m"})
		n.reports(t, f, "False AwaitsNewPods", 2, 1) // recreated, it has no limit
	})
	t.Run("a quota", func(t *testing.T) {
		f := n.SizeTemplate(t, "quota", `{cpuPercentage: 10, updatePolicy: InPlace}`)
		q := &corev1.ResourceQuota{}
		q.Name, q.Namespace, q.Spec.Hard = "q", n.Namespace, testkit.ResourceList("requests.cpu=1")
		must(t, n.Create(t.Context(), n.SizedDaemonSet("counted", f.Name, suite.Agent())))
		n.becomes(t, "counted", map[string]string{"4": "a: cpu=400m | cpu=400m", "other": "a: cpu=200m | cpu=200m"})
		must(t, n.Create(t.Context(), q))
		eventually(t, "the quota counts", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(q), q)
			return len(q.Status.Used) > 0, err
		})
		n.MergePatch(t, f, `{"spec":{"cpuPercentage":40}}`)
		n.reports(t, f, "False Refused", 2, 2)
		must(t, n.Delete(t.Context(), q))
		n.reports(t, f, "True UpToDate", 2, 0) // tried again, later and later
		n.becomes(t, "counted", map[string]string{"4": "a: cpu=1600m | cpu=1600m", "other": "a: cpu=800m | cpu=800m"})
	})
}

// refusals counts the resizes that the API server refused.
func refusals(t *testing.T) (sum float64) {
	t.Helper()
	for _, r := range cluster.Controllers() {
		sum += metric(t, r, "stowage_resizes_total", `outcome="refused"`)
	}
	return sum
}

// What a node cannot do is reported, for as long as it cannot.
func TestResizeThatANodeCannotDo(t *testing.T) {
	suite.NeedsResize(t)
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=4")
	for reason, says := range map[string]struct{ condition, message, event string }{
		"Deferred":   {"False Deferred", "Node didn't have enough resource: cpu", "ResizeDeferred"},
		"Infeasible": {"False Infeasible", "Node didn't have enough resource: cpu", "ResizeInfeasible"},
		"Error":      {"False Failed", "attempting to set container memory limit (104383386) below current usage", "ResizeFailed"},
	} {
		t.Run(reason, func(t *testing.T) {
			app := strings.ToLower(reason)
			f := n.SizeTemplate(t, app, `{cpuPercentage: 10, updatePolicy: InPlace}`)
			d := n.SizedDaemonSet(app, f.Name, suite.Agent())
			d.Spec.Template.Annotations = map[string]string{"kwok.stowage.dev/resize": reason}
			must(t, n.Create(t.Context(), d))
			n.becomes(t, app, map[string]string{"4": "a: cpu=400m | cpu=400m"})
			n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
			n.reports(t, f, says.condition, 1, 1)
			if !strings.Contains(fmt.Sprint(f.Status.Conditions), says.message) {
				t.Errorf("the status does not say why: %v", f.Status.Conditions)
			}
			eventually(t, "an event says why", func() (bool, error) {
				return n.HasEvent(t, says.event, says.message), nil
			})
			pods, err := n.Pods(t.Context(), app)
			must(t, err)
			if out, _, _ := suite.CLI(t, cluster, "explain", "pod", pods[0].Name, "-n", n.Namespace); !strings.Contains(out, says.message) {
				t.Errorf("explain does not say why:\n%s", out)
			}
			// Another wish for it is granted after the back-off, and comes true when
			// the node can.
			n.MergePatch(t, f, `{"spec":{"cpuPercentage":15}}`)
			n.becomes(t, app, map[string]string{"4": "a: cpu=600m | cpu=600m"})
			pods, err = n.Pods(t.Context(), app)
			must(t, err)
			n.MergePatch(t, &pods[0], `{"metadata":{"annotations":{"kwok.stowage.dev/resize":null}}}`)
			n.reports(t, f, "True UpToDate", 1, 0)
		})
	}
}

// Pods that are older than their template get its size, too, if it says so; those in a
// namespace that is off do not.
func TestResizeOfOlderPods(t *testing.T) {
	suite.NeedsResize(t)
	n, off := newTenant(t), newTenant(t, stowage.ModeKey+"=Off")
	n.SizedNode(t, "4", "cpu=4")
	name := n.Namespace + ".late"
	d := n.SizedDaemonSet("agent", name, testkit.Pod("").Container("a", "cpu=30m", "").Container("b", "cpu=10m", ""))
	must(t, n.Create(t.Context(), d))
	other := d.DeepCopy()
	other.ResourceVersion, other.Namespace = "", off.Namespace
	must(t, off.Create(t.Context(), other))
	before := "a: cpu=30m | \nb: cpu=10m | "
	n.becomes(t, "agent", map[string]string{"4": before})
	f := n.SizeTemplate(t, "late", `{cpuPercentage: 10, limits: None, updatePolicy: InPlace}`)
	n.becomes(t, "agent", map[string]string{"4": "a: cpu=300m | \nb: cpu=100m | "})
	n.reports(t, f, "True UpToDate", 1, 0)
	n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
	n.becomes(t, "agent", map[string]string{"4": "a: cpu=600m | \nb: cpu=200m | "})
	if f.Status.DaemonSets != 2 {
		t.Errorf("%d DaemonSets use the template, want 2", f.Status.DaemonSets)
	}
	pods, err := off.Pods(t.Context(), "agent")
	must(t, err)
	if len(pods) != 1 || suite.ResourcesOf(&pods[0]) != before {
		t.Errorf("where Stowage is off, the pods are %v", pods)
	}
}

// A replica that loses the lead and wins it again follows changes as before.
func TestResizeAfterTheLeadIsLost(t *testing.T) {
	suite.NeedsResize(t)
	n := newTenant(t)
	n.SizedNode(t, "4", "cpu=4")
	f := n.SizeTemplate(t, "share", `{cpuPercentage: 10, updatePolicy: InPlace}`)
	must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", f.Name, suite.Agent())))
	n.becomes(t, "agent", map[string]string{"4": "a: cpu=400m | cpu=400m"})
	for i, cpu := range []string{"800m", "1200m"} {
		lease := &coordinationv1.Lease{}
		lease.Namespace, lease.Name = "stowage-system", "stowage-leader"
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
		n.MergePatch(t, lease, fmt.Sprintf(`{"spec":{"holderIdentity":"thief-%d","leaseDurationSeconds":1,"renewTime":%q}}`, i, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")))
		n.MergePatch(t, f, fmt.Sprintf(`{"spec":{"cpuPercentage":%d}}`, 20+10*i))
		n.becomes(t, "agent", map[string]string{"4": fmt.Sprintf("a: cpu=%s | cpu=%[1]s", cpu)})
		n.reports(t, f, "True UpToDate", 1, 0)
	}
}

// Whoever leads next follows a change that came while no replica led, of a template or of a node, with the pods that there
// are. The next leader may be a replica that ran all the time, or a new one.
func TestResizeByTheNextLeader(t *testing.T) {
	suite.NeedsResize(t)
	n := newTenant(t)
	node := n.SizedNode(t, "4", "cpu=4")
	n.SizedNode(t, "8", "cpu=8")
	f := n.SizeTemplate(t, "share", `{cpuPercentage: 10, updatePolicy: InPlace}`)
	must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", f.Name, suite.Agent())))
	want := func(four, eight string) {
		t.Helper()
		n.becomes(t, "agent", map[string]string{"4": fmt.Sprintf("a: cpu=%s | cpu=%[1]s", four), "8": fmt.Sprintf("a: cpu=%s | cpu=%[1]s", eight)})
		n.reports(t, f, "True UpToDate", 2, 0)
	}
	want("400m", "800m")
	uids := n.podUIDs(t, "agent")
	suite.TwoControllers(t)

	var leader *controlplane.Replica
	eventually(t, "one replica leads", func() (bool, error) {
		leader = nil
		for _, r := range cluster.Controllers() {
			if metric(t, r, "leader_election_master_status", `name="stowage-system/stowage-leader"`) == 1 {
				leader = r
			}
		}
		return leader != nil, nil
	})
	leader.Kill()
	n.MergePatch(t, f, `{"spec":{"cpuPercentage":20}}`)
	n.allocate(t, node, "2")
	want("400m", "1600m")

	for _, r := range cluster.Processes() {
		r.Kill()
	}
	n.MergePatch(t, f, `{"spec":{"cpuPercentage":30}}`)
	n.allocate(t, node, "4")
	must(t, cluster.StartStowage(context.WithoutCancel(t.Context()), fleet))
	want("1200m", "2400m")
	if now := n.podUIDs(t, "agent"); now != uids {
		t.Errorf("the pods are %s, were %s", now, uids)
	}
}
