package node

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

const vm = corev1.ResourceName("kata.peerpods.io/vm")

// TestNodes is one story, because each part needs Stowage as the one before it leaves it.
func TestNodes(t *testing.T) {
	importStowage(t)
	n := suite.NewTenant(t)
	for _, step := range []struct {
		name  string
		short bool // whether the short form of the suite has it
		run   func(*testing.T, *suite.Tenant)
	}{
		{"install under load", true, install},
		{"spread", true, spreads},
		{"resize in place", true, resizes},
		{"restart one pod at a time", false, restarts},
		{"VMs through restarts of a kubelet", false, advertises},
		{"a VM that cannot be made", false, secondChoice},
		{"adoption and rebalancing", false, adopts},
		{"upgrade under load", false, upgrade},
		{"one Deployment and two under load", false, parts},
		{"a replica is killed under load", false, kill},
		{"one replica is called", false, affinity},
		{"the network of the node", false, hostNetwork},
		{"resizes that a node cannot do", false, infeasible},
		{"uninstall under load", true, uninstall},
	} {
		if testing.Short() && !step.short {
			continue
		}
		if !t.Run(step.name, func(t *testing.T) { step.run(t, n) }) {
			logStowage(t)
			return
		}
	}
}

func install(t *testing.T, n *suite.Tenant) {
	// Helm creates the registration together with the Deployment. Pods that are created before a replica is ready are
	// created as if Stowage were not there, and none is refused.
	before := startLoad(t, n, "before")
	helm(t, chart("install")...)
	before.end(t)
	// The API server's kube-proxy learns of a ready replica a moment after Helm does.
	suite.Eventually(t, "the API server calls the webhook", func() (bool, error) { return cluster.WebhookAnswers(t.Context()) })
	open := failedOpen(t)
	t.Logf("%d pods were created before a replica was ready", open)
	after := startLoad(t, n, "after")
	after.grows(t, 20)
	pods := after.end(t)
	allSeated(t, pods)
	if now := failedOpen(t); now != open {
		t.Errorf("%d of %d pods bypassed the webhook after the installation", now-open, len(pods))
	}
}

func spreads(t *testing.T, n *suite.Tenant) {
	d := n.Deployment("web", 7, suite.Annotated(strategy))
	holding(&d.Spec.Template, 1<<20)
	suite.Must(t, n.Create(t.Context(), d))
	s := suite.StrategyOf(t, strategy)
	n.Spreads(t, "web", 7, s)
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.Spreads(t, "web", 7, s)
	n.Scale(t, d, 4)
	n.Spreads(t, "web", 4, s)
}

// sized creates a DaemonSet whose pods have a share of each node.
func sized(t *testing.T, n *suite.Tenant, name string, percent int32, bytes int, edit ...func(*flexdaemonsets.FlexDaemonsetTemplate, *corev1.PodSpec)) *flexdaemonsets.FlexDaemonsetTemplate {
	t.Helper()
	template := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
		CPUPercentage: &percent, MemoryPercentage: &percent, UpdatePolicy: flexdaemonsets.UpdateInPlace,
	}}
	d := n.DaemonSet(name, name)
	holding(&d.Spec.Template, bytes)
	for _, e := range edit {
		e(template, &d.Spec.Template.Spec)
	}
	suite.Must(t, n.Create(t.Context(), template))
	suite.Must(t, n.Create(t.Context(), d))
	t.Cleanup(func() {
		for _, obj := range []client.Object{d, template} {
			_ = cluster.Client.Delete(context.Background(), obj)
		}
	})
	return template
}

// setShare changes the share of a template.
func setShare(t *testing.T, n *suite.Tenant, template *flexdaemonsets.FlexDaemonsetTemplate, percent int) {
	t.Helper()
	suite.Must(t, n.Patch(t.Context(), template, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"cpuPercentage":%d,"memoryPercentage":%[1]d}}`, percent))))
}

// hasShare waits until the limits in the cgroups of an app's pods are a share of their node, which a pod's containers
// divide evenly.
func hasShare(t *testing.T, n *suite.Tenant, app string, percent int64) []corev1.Pod {
	t.Helper()
	pods := n.Ready(t, app, len(cluster.Nodes))
	for i := range pods {
		var node corev1.Node
		suite.Must(t, n.Get(t.Context(), client.ObjectKey{Name: pods[i].Spec.NodeName}, &node))
		var containers []running
		for _, statuses := range [][]corev1.ContainerStatus{pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses} {
			for j := range statuses {
				containers = append(containers, running{&pods[i], &statuses[j]})
			}
		}
		count := int64(len(containers))
		wantCPU := node.Status.Allocatable.Cpu().MilliValue() * percent / 100 / count
		page := int64(os.Getpagesize())
		wantMemory := node.Status.Allocatable.Memory().Value() * percent / 100 / count / page // cgroup v1 rounds down to pages
		for _, c := range containers {
			suite.Eventually(t, fmt.Sprintf("container %s of %s has %d%% of %s", c.status.Name, pods[i].Name, percent, node.Name), func() (bool, error) {
				cpu, memory, err := c.inForce()
				diff := memory/page - wantMemory // one of several containers has the odd byte
				return cpu >= wantCPU && cpu <= wantCPU+1 && diff >= 0 && diff <= 1, err
			})
		}
	}
	return pods
}

// becomes waits until a template's pods are in a state.
func becomes(t *testing.T, n *suite.Tenant, template *flexdaemonsets.FlexDaemonsetTemplate, reason stowage.ConditionReason) {
	t.Helper()
	var last *metav1.Condition
	defer func() {
		if t.Failed() {
			t.Logf("the condition is %+v", last)
			pods, _ := n.Pods(context.Background(), template.Name)
			for i := range pods {
				cpu, memory, err := firstOf(&pods[i]).inForce()
				t.Logf("pod %s (%s, restarts %d): limits %v, in force %d %d (%v), conditions %+v", pods[i].Name, pods[i].Status.QOSClass,
					pods[i].Status.ContainerStatuses[0].RestartCount, pods[i].Spec.Containers[0].Resources.Limits, cpu, memory, err, pods[i].Status.Conditions)
			}
		}
	}()
	suite.Eventually(t, fmt.Sprintf("template %s is %s", template.Name, reason), func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(template), template)
		last = meta.FindStatusCondition(template.Status.Conditions, flexdaemonsets.ConditionUpToDate)
		return last != nil && last.ObservedGeneration == template.Generation && last.Reason == string(reason), err
	})
}

func resizes(t *testing.T, n *suite.Tenant) {
	const name = "agent"
	template := sized(t, n, name, 5, 1<<20, func(_ *flexdaemonsets.FlexDaemonsetTemplate, pod *corev1.PodSpec) {
		sidecar := pod.Containers[0]
		sidecar.Name, sidecar.RestartPolicy = "sidecar", new(corev1.ContainerRestartPolicyAlways)
		pod.InitContainers = []corev1.Container{sidecar}
	})
	first := hasShare(t, n, name, 5)
	for _, percent := range []int{10, 3} {
		setShare(t, n, template, percent)
		pods := hasShare(t, n, name, int64(percent))
		becomes(t, n, template, stowage.ReasonUpToDate)
		for i := range pods {
			if pods[i].Status.ContainerStatuses[0].RestartCount != 0 || pods[i].CreationTimestamp != first[i].CreationTimestamp {
				t.Errorf("pod %s was restarted or recreated", pods[i].Name)
			}
		}
	}
}

// restarts resizes pods whose containers the kubelet restarts for it. As many at a time may do so as the DaemonSet's maxUnavailable, which is 1.
func restarts(t *testing.T, n *suite.Tenant) {
	const name = "restarting"
	template := sized(t, n, name, 5, 1<<20, func(_ *flexdaemonsets.FlexDaemonsetTemplate, pod *corev1.PodSpec) {
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			pod.Containers[0].ResizePolicy = append(pod.Containers[0].ResizePolicy, corev1.ContainerResizePolicy{ResourceName: r, RestartPolicy: corev1.RestartContainer})
		}
	})
	first := hasShare(t, n, name, 5)
	old := map[string]corev1.ResourceList{}
	for i := range first {
		old[first[i].Name] = first[i].Spec.Containers[0].Resources.Limits
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	most := make(chan int, 1)
	events, err := cluster.Clientset.CoreV1().Pods(n.Namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	suite.Must(t, err)
	go func() {
		now, worst := map[string]*corev1.Pod{}, 0
		for e := range events.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			now[pod.Name] = pod
			unfinished := 0
			for _, p := range now {
				asked := !equality.Semantic.DeepEqual(p.Spec.Containers[0].Resources.Limits, old[p.Name])
				if c := p.Status.ContainerStatuses; asked && (len(c) == 0 || c[0].RestartCount == 0 || !c[0].Ready) {
					unfinished++
				}
			}
			worst = max(worst, unfinished)
		}
		most <- worst
	}()
	setShare(t, n, template, 10)
	becomes(t, n, template, stowage.ReasonUpToDate)
	pods := hasShare(t, n, name, 10) // of the containers that run now
	cancel()
	if worst := <-most; worst != 1 {
		t.Errorf("%d of %d pods restarted at the same time, and 1 may be unavailable", worst, len(pods))
	}
	for i := range pods {
		if pods[i].CreationTimestamp != first[i].CreationTimestamp || pods[i].Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("pod %s was created again, or has %d restarts instead of 1", pods[i].Name, pods[i].Status.ContainerStatuses[0].RestartCount)
		}
	}
}

func advertises(t *testing.T, n *suite.Tenant) {
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata-remote"}, Handler: "kata-remote"}
	suite.Must(t, n.Create(t.Context(), class))
	hasVMs := func(want int64) {
		t.Helper()
		for _, node := range cluster.Nodes {
			suite.Eventually(t, fmt.Sprintf("node %s advertises %d VMs", node.Name, want), func() (bool, error) {
				var have corev1.Node
				err := n.Get(t.Context(), client.ObjectKey{Name: node.Name}, &have)
				vms := have.Status.Allocatable[vm]
				return vms.Value() == want, client.IgnoreNotFound(err)
			})
		}
	}
	hasVMs(10)
	d := n.Deployment("kata", 3, nil)
	holding(&d.Spec.Template, 1<<20)
	d.Spec.Template.Spec.RuntimeClassName = &class.Name
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")} // more than a node has
	suite.Must(t, n.Create(t.Context(), d))
	n.Ready(t, "kata", 3)

	node := cluster.Nodes[1]
	for range 2 {
		suite.Must(t, cluster.RestartKubelet(t.Context(), node, KubeletOptions{}))
		hasVMs(10)
	}
	// A kubelet without the resource in its checkpoint writes 0.
	suite.Must(t, cluster.Client.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}},
		client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"capacity":{%q:"0"},"allocatable":{%[1]q:"0"}}}`, vm))))
	hasVMs(10)
	// A node that is deleted registers again with the next start of its kubelet.
	suite.Must(t, node.End("kubelet", syscall.SIGTERM))
	suite.Must(t, cluster.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}))
	suite.Must(t, cluster.StartKubelet(t.Context(), node, KubeletOptions{}))
	hasVMs(10)
	suite.Must(t, n.Delete(t.Context(), d))
}

// secondChoice has the nodes refuse the cheapest type of VM, as a cloud does that has none left. A kubelet then tries again and again to make the
// sandbox of the pod, which stays in ContainerCreating.
func secondChoice(t *testing.T, n *suite.Tenant) {
	vmType := func(name, price string) stowage.VMType {
		return stowage.VMType{Name: name, VCPUs: 2, Memory: resource.MustParse("4Gi"), PricePerHour: price}
	}
	catalog := &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: "nodes"}, Spec: stowage.VMCatalogSpec{FailAfter: "30s", Types: []stowage.VMType{vmType("cheap", "0.1"), vmType("dear", "0.2")}}}
	suite.Must(t, n.Create(t.Context(), catalog))
	suite.Eventually(t, "the catalog holds", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(catalog), catalog)
		return catalog.Status.ObservedGeneration > 0, err
	})
	deploy := func(name string) *appsv1.Deployment {
		d := n.Deployment(name, 2, nil)
		holding(&d.Spec.Template, 1<<20)
		d.Spec.Template.Spec.RuntimeClassName = new("kata-remote")
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		suite.Must(t, n.Create(t.Context(), d))
		return d
	}
	typesOf := func(app string) (types []string) {
		pods, err := n.Pods(t.Context(), app)
		suite.Must(t, err)
		for i := range pods {
			types = append(types, pods[i].Annotations[stowage.MachineTypeAnnotation])
		}
		return types
	}
	runs := deploy("runs")
	before := n.Ready(t, "runs", 2)
	for _, node := range cluster.Nodes {
		suite.Must(t, node.Refuse("cheap"))
		defer func() { suite.Must(t, node.Refuse("")) }()
	}
	waits := deploy("waits")
	suite.EventuallyWithin(t, 2*time.Minute, "the pods run with the next type", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "waits")
		ready := 0
		for i := range pods {
			if podstatus.Ready(&pods[i]) {
				ready++
			}
		}
		return len(pods) == 2 && ready == 2, err
	})
	if got := typesOf("waits"); !slices.Equal(got, []string{"dear", "dear"}) {
		t.Errorf("the pods have types %v", got)
	}
	if after := n.Ready(t, "runs", 2); after[0].UID != before[0].UID && after[0].UID != before[1].UID || !slices.Equal(typesOf("runs"), []string{"cheap", "cheap"}) {
		t.Errorf("a pod that runs was replaced, or the types are %v", typesOf("runs"))
	}
	suite.Must(t, n.Get(t.Context(), client.ObjectKeyFromObject(catalog), catalog))
	if len(catalog.Status.Closed) != 1 || catalog.Status.Closed[0].Type != "cheap" || catalog.Status.Closed[0].Namespace != n.Namespace {
		t.Errorf("closed are %+v", catalog.Status.Closed)
	}
	for _, o := range []client.Object{runs, waits, catalog} {
		suite.Must(t, n.Delete(t.Context(), o))
	}
}

// stowageScale sets the number of replicas of the webhook and waits for them.
func stowageScale(t *testing.T, replicas int32) { scaleDeployment(t, "stowage", replicas) }

func scaleDeployment(t *testing.T, name string, replicas int32) {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: name}}
	suite.Must(t, cluster.Client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
	suite.Eventually(t, fmt.Sprintf("%s has %d replicas", name, replicas), func() (bool, error) {
		var pods corev1.PodList // those that end still answer
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(controlplane.StowageNamespace), client.MatchingLabels{"app.kubernetes.io/name": d.Name}); err != nil {
			return false, err
		}
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.ObservedGeneration == d.Generation && len(pods.Items) == int(replicas) && d.Status.ReadyReplicas == replicas, err
	})
}

func adopts(t *testing.T, n *suite.Tenant) {
	// While Stowage is away, the scheduler divides the pods. All are on one node, so that there is something to do.
	scaleDeployment(t, "stowage-controllers", 0)
	stowageScale(t, 0)
	d := n.Deployment("adopted", 6, suite.Annotated(strategy))
	holding(&d.Spec.Template, 1<<20)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cluster.Nodes[1].Name}}
	cordon := func(unschedulable bool) {
		suite.Must(t, cluster.Client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable))))
	}
	cordon(true)
	suite.Must(t, n.Create(t.Context(), d))
	for _, p := range n.Ready(t, "adopted", 6) {
		if p.Labels[stowage.SeatLabel] != "" || p.Spec.NodeName == node.Name {
			t.Fatalf("pod %s has the seat %q on node %s", p.Name, p.Labels[stowage.SeatLabel], p.Spec.NodeName)
		}
	}
	cordon(false)
	stowageScale(t, 2)
	scaleDeployment(t, "stowage-controllers", 2)
	suite.Eventually(t, "every pod is adopted", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "adopted")
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[stowage.SeatLabel] == "" }), err
	})
	// A pod that is evicted while the API server does not reach the webhook yet would be in vain, and the last of them.
	suite.Eventually(t, "the API server calls the webhook", func() (bool, error) { return cluster.WebhookAnswers(t.Context()) })
	suite.Must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.RebalanceAnnotation, versprei.RebalanceEvict))))
	n.Spreads(t, "adopted", 6, suite.StrategyOf(t, strategy))
}

// underLoad runs something while pods are created. At most so many calls may bypass the webhook; a pod of those gets
// a seat afterwards, from repair.
func underLoad(t *testing.T, n *suite.Tenant, name string, most int, run func()) {
	t.Helper()
	open := failedOpen(t)
	l := startLoad(t, n, name)
	l.grows(t, 10)
	run()
	l.grows(t, 10)
	pods := l.end(t)
	bypassed := failedOpen(t) - open
	t.Logf("%d pods were created meanwhile, and %d calls bypassed the webhook", len(pods), bypassed)
	if bypassed > most {
		t.Errorf("%d calls bypassed the webhook; at most %d may", bypassed, most)
	}
	if bypassed > 0 {
		suite.Eventually(t, "every pod has a seat", func() (bool, error) {
			var err error
			pods, err = n.Pods(t.Context(), name)
			return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[stowage.SeatLabel] == "" }), err
		})
	}
	allSeated(t, pods)
	suite.Must(t, n.Delete(t.Context(), l.d))
}

func upgrade(t *testing.T, n *suite.Tenant) {
	underLoad(t, n, "upgrade", 0, func() { helm(t, chart("upgrade", "logLevel=DEBUG")...) })
}

// parts has the replicas of the webhook run the controllers, and then those of a Deployment of their own again.
func parts(t *testing.T, n *suite.Tenant) {
	underLoad(t, n, "one-deployment", 0, func() { helm(t, chart("upgrade", "controllers.separate=false")...) })
	underLoad(t, n, "two-deployments", 0, func() { helm(t, chart("upgrade")...) })
}

func kill(t *testing.T, n *suite.Tenant) {
	// The replica loses the requests that it holds, and those that reach it before its node notices: each pod causes two
	// calls, one of them for its workload.
	underLoad(t, n, "kill", 10, func() {
		var replicas corev1.PodList
		suite.Must(t, cluster.Client.List(t.Context(), &replicas, client.InNamespace(controlplane.StowageNamespace), client.MatchingLabels{"app.kubernetes.io/name": "stowage"}))
		// One that an upgrade ends has no container any more.
		victim := &replicas.Items[slices.IndexFunc(replicas.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })]
		node := nodeOf(victim)
		id := victim.Status.ContainerStatuses[0].ContainerID[len("containerd://"):]
		suite.Must(t, node.run(node.Command(t.Context(), "ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", id)))
		suite.Eventually(t, "the replica is ready again", func() (bool, error) {
			var pod corev1.Pod
			err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(victim), &pod)
			return err == nil && pod.Status.ContainerStatuses[0].RestartCount > 0 && pod.Status.ContainerStatuses[0].Ready, err
		})
	})
}

func hostNetwork(t *testing.T, n *suite.Tenant) {
	underLoad(t, n, "host-network", 0, func() { helm(t, chart("upgrade", "webhook.hostNetwork=true")...) })
	underLoad(t, n, "pod-network", 0, func() { helm(t, chart("upgrade")...) })
}

func infeasible(t *testing.T, n *suite.Tenant) {
	t.Run("deferred", func(t *testing.T) {
		template := sized(t, n, "deferred", 5, 1<<20)
		hasShare(t, n, "deferred", 5)
		setShare(t, n, template, 98)
		becomes(t, n, template, stowage.ReasonDeferred)
		setShare(t, n, template, 6)
		hasShare(t, n, "deferred", 6)
	})
	t.Run("refused", func(t *testing.T) {
		template := sized(t, n, "refused", 5, 1<<20)
		hasShare(t, n, "refused", 5)
		suite.Must(t, n.Patch(t.Context(), template, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minCPU":"100"}}`))))
		becomes(t, n, template, stowage.ReasonRefused)
	})
	t.Run("below what is in use", func(t *testing.T) {
		template := sized(t, n, "used", 3, 400<<20) // of some 700 MB
		for _, p := range hasShare(t, n, "used", 3) {
			suite.EventuallyWithin(t, 2*time.Minute, p.Name+" uses its memory", func() (bool, error) {
				used, err := firstOf(&p).inUse()
				return used > 400<<20, err
			})
		}
		setShare(t, n, template, 1)
		becomes(t, n, template, stowage.ReasonFailed)
		setShare(t, n, template, 3)
		hasShare(t, n, "used", 3)
	})
	t.Run("cores of its own", func(t *testing.T) {
		// Only a container with whole CPUs gets cores of its own.
		template := sized(t, n, "static", 3, 1<<20, func(t *flexdaemonsets.FlexDaemonsetTemplate, _ *corev1.PodSpec) {
			t.Spec.MinCPU = "1"
		})
		n.Ready(t, "static", len(cluster.Nodes))
		for _, node := range cluster.Nodes {
			suite.Must(t, node.End("kubelet", syscall.SIGTERM))
			suite.Must(t, node.run(node.Command(t.Context(), "rm", "-f", "/var/lib/kubelet/cpu_manager_state")))
			suite.Must(t, cluster.StartKubelet(t.Context(), node, KubeletOptions{StaticCPUs: true}))
		}
		// A kubelet of 1.37 that first sees a pod with its new size, after a restart, does nothing about the size.
		for _, p := range n.Ready(t, "static", len(cluster.Nodes)) {
			suite.Eventually(t, "the kubelet knows pod "+p.Name, func() (bool, error) {
				log, err := os.ReadFile(nodeOf(&p).log("kubelet"))
				return len(regexp.MustCompile(`SyncLoop ADD.*`+p.Name).FindAll(log, -1)) == 2, err // of each kubelet one
			})
		}
		suite.Must(t, n.Patch(t.Context(), template, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minCPU":"500m"}}`))))
		becomes(t, n, template, stowage.ReasonInfeasible)
	})
}

func uninstall(t *testing.T, n *suite.Tenant) {
	open := failedOpen(t)
	l := startLoad(t, n, "uninstall")
	l.grows(t, 10)
	helm(t, "uninstall", "stowage", "--namespace", controlplane.StowageNamespace, "--wait", "--timeout", "1m")
	l.end(t) // every pod was created
	if now := failedOpen(t); now != open {
		t.Errorf("%d pods waited for a webhook that was not there any more", now-open)
	}
}
