package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/placement"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/scope"
	"github.com/stowage-dev/stowage/internal/seats"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// Report is the state of a cluster, or of one namespace's workloads in it.
type Report struct {
	Workloads []Workload `json:"workloads"`
	Templates []Template `json:"templates"`
	VMs       *VMs       `json:"vms,omitempty"` // nil if nodes may not be listed
	// Warnings are about what could not be looked at.
	Warnings []string `json:"warnings,omitempty"`
}

// Workload is what has a strategy, with the pods of all its revisions.
type Workload struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Policy    string `json:"policy"`
	Replicas  int64  `json:"replicas"`
	Pools     []Pool `json:"pools,omitempty"`
	// Unseated is how many pods have no seat that should have one, or are not there.
	Unseated int64 `json:"unseated"`
	// Note says why there is nothing to compare, or what else there is to know.
	Note string `json:"note,omitempty"`
	OK   bool   `json:"ok"`
}

// Pool is one of a workload's pools.
type Pool struct {
	Name    string  `json:"name"`
	Labels  string  `json:"labels"`
	Share   float64 `json:"share"` // of the replicas, exactly
	Target  int64   `json:"target"`
	Current int64   `json:"current"`
	Ready   int64   `json:"ready"`
	Pending int64   `json:"pending"` // not on a node yet
	// Difference is Current without Target.
	Difference int64 `json:"difference"`
}

// Template is a FlexDaemonsetTemplate. The counts are those of its status.
type Template struct {
	Name         string `json:"name"`
	UpdatePolicy string `json:"updatePolicy"`
	DaemonSets   int32  `json:"daemonSets"`
	Nodes        *int   `json:"nodes,omitempty"` // nil if pods may not be listed
	Pods         int32  `json:"pods"`
	OffSize      int32  `json:"offSize"`
	Note         string `json:"note,omitempty"`
	OK           bool   `json:"ok"`
}

// VMs are the peer-pod VMs of all nodes.
type VMs struct {
	Resource string    `json:"resource"`
	Nodes    []NodeVMs `json:"nodes"`
	Capacity int64     `json:"capacity"`
	Used     int64     `json:"used"`
	Free     int64     `json:"free"`
}

// NodeVMs are the VMs of one node.
type NodeVMs struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Used     int64  `json:"used"`
	Free     int64  `json:"free"`
	OK       bool   `json:"ok"`
}

// OK reports whether everything is as it should be.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Workloads, func(w Workload) bool { return !w.OK }) &&
		!slices.ContainsFunc(r.Templates, func(t Template) bool { return !t.OK }) &&
		(r.VMs == nil || !slices.ContainsFunc(r.VMs.Nodes, func(n NodeVMs) bool { return !n.OK }))
}

// Status looks at the workloads of a namespace, or of all of them if it is empty, and at
// all templates and nodes.
func (i *Inspector) Status(ctx context.Context, namespace string) (*Report, error) {
	r := &Report{Workloads: []Workload{}, Templates: []Template{}}
	if i.Spread {
		if err := i.workloads(ctx, namespace, r); err != nil {
			return nil, err
		}
	}
	// What is not of a namespace may be hidden from who looks at one.
	for _, part := range []struct {
		what string
		on   bool
		look func(context.Context, *Report) error
	}{{"FlexDaemonsetTemplates", i.Sizing, i.templates}, {"the VMs of nodes", i.VMs, i.vms}} {
		if !part.on {
			continue
		}
		switch err := part.look(ctx, r); {
		case apierrors.IsForbidden(err):
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s are left out: %v", part.what, err))
		case err != nil:
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return r, nil
}

// snapshot answers from what was listed at the beginning, and live for kinds that were not.
type snapshot struct {
	live
	listed cluster.Static
	byUID  map[types.UID]*cluster.Workload
	// created is the template of the pods of each workload that makes some: its metadata,
	// and what in it chooses nodes.
	created map[types.UID]corev1.PodTemplateSpec
	// registration is nil where it may not be read.
	registration *scope.Registration
	deployments  []deployment
}

// deployment is what is kept of a Deployment.
type deployment struct {
	*cluster.Workload
	annotations map[string]string // of its pods
	asks        bool              // for a pod
	seen        bool              // by its controller, as it is now
}

var _ cluster.Reader = &snapshot{}

func (s *snapshot) Workload(ctx context.Context, namespace string, ref cluster.Ref) (*cluster.Workload, error) {
	if w := s.byUID[ref.UID]; w != nil && w.Namespace == namespace && w.Is(ref) {
		return w, nil
	}
	if ref.Group() == appsv1.GroupName && slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet"}, ref.Kind) {
		return nil, nil
	}
	return s.live.Workload(ctx, namespace, ref)
}

func (s *snapshot) PodDistributors(ctx context.Context, namespace string) ([]versprei.PodDistributor, error) {
	return s.listed.PodDistributors(ctx, namespace)
}

func (s *snapshot) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return s.listed.Namespace(ctx, name)
}

// maker is what makes pods, with those that have a seat.
type maker struct {
	*cluster.Workload
	pods []*corev1.Pod
}

// busy reports whether it has pods, or asks for some.
func (m *maker) busy() bool { return m.Replicas != 0 || len(m.pods) > 0 }

// workloads adds the workloads of a namespace that have a strategy.
func (i *Inspector) workloads(ctx context.Context, namespace string, r *Report) error {
	// 1. What there is.
	s, makers, err := i.snapshot(ctx, namespace, r)
	if err != nil {
		return err
	}

	// 2. What each maker of pods adds to the workload that it is of.
	finder := i.finder(s)
	scope := scope.New(s, i.Namespace)
	groups := map[types.UID]*group{}
	var order []types.UID
	roots, busy := make([]cluster.Ref, len(makers)), map[types.UID]bool{}
	for n, m := range makers {
		chain, err := cluster.Owners(ctx, s, m.Namespace, m.Ref)
		if err != nil {
			return err
		}
		roots[n] = chain.Root()
		busy[roots[n].UID] = busy[roots[n].UID] || m.busy()
	}
	for n, m := range makers {
		root := roots[n]
		if busy[root.UID] && !m.busy() {
			continue // an old revision
		}
		p, err := finder.Find(ctx, policy.Pod{Namespace: m.Namespace, Owner: m.Ref, Annotations: s.created[m.UID].Annotations})
		if err != nil {
			return err
		}
		if p == nil || scope.Excludes(m.Namespace) {
			continue
		}
		g := groups[root.UID]
		if g == nil {
			g = &group{Workload: Workload{Namespace: m.Namespace, Kind: root.Kind, Name: root.Name}}
			groups[root.UID] = g
			order = append(order, root.UID)
		}
		idle, err := s.leftAlone(ctx, scope, m, p)
		if err != nil {
			return err
		}
		if err := g.add(ctx, i, m, p, idle); err != nil {
			return err
		}
	}
	for _, d := range s.deployments {
		if g := groups[d.UID]; g != nil {
			g.unseen = !d.seen
			continue
		}
		p, err := finder.Find(ctx, policy.Pod{Namespace: d.Namespace, Owner: d.Ref, Annotations: d.annotations})
		if err != nil {
			return err
		}
		if p != nil && d.asks && !scope.Excludes(d.Namespace) {
			groups[d.UID] = &group{Workload: Workload{Namespace: d.Namespace, Kind: d.Kind, Name: d.Name, Policy: p.Source}, unseen: true}
			order = append(order, d.UID)
		}
	}
	for _, uid := range order {
		r.Workloads = append(r.Workloads, groups[uid].done())
	}
	slices.SortFunc(r.Workloads, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// leftAlone returns why the pods of a workload get no seat, if they get none.
func (s *snapshot) leftAlone(ctx context.Context, scope *scope.Scope, m *maker, p *policy.Policy) (string, error) {
	template := s.created[m.UID]
	object := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod := podpatch.FromPod(object)
	if !scope.Enforces(ctx, m.Namespace, pod) {
		return stowage.ModeKey + " leaves it alone", nil
	}
	if p.Strategy != nil {
		if key, pinned := placement.Pinned(pod, p.Strategy, nil); pinned {
			return "its pods choose their nodes themselves, by " + key, nil
		}
	}
	ns, err := s.Namespace(ctx, m.Namespace)
	if err != nil || ns == nil || s.registration == nil {
		return "", err
	}
	selected, err := s.registration.Selects(ns.Labels, object)
	if err == nil && !selected {
		return "the webhook's registration leaves it out", nil
	}
	return "", err
}

// snapshot lists what the workloads of a namespace depend on.
func (i *Inspector) snapshot(ctx context.Context, namespace string, r *Report) (*snapshot, []*maker, error) {
	s := &snapshot{live: i.live(), byUID: map[types.UID]*cluster.Workload{}, created: map[types.UID]corev1.PodTemplateSpec{}}
	var makers []*maker
	byUID := map[types.UID]*maker{}
	add := func(gvk string, obj client.Object, template *corev1.PodTemplateSpec, replicas *int32) {
		w := cluster.NewWorkload(appsv1.SchemeGroupVersion.WithKind(gvk), obj)
		w.UID = obj.GetUID()
		s.byUID[w.UID] = &w
		if template == nil {
			return
		}
		w.Replicas = int64(ptr.Deref(replicas, 1))
		s.created[w.UID] = corev1.PodTemplateSpec{ObjectMeta: template.ObjectMeta, Spec: corev1.PodSpec{
			NodeName: template.Spec.NodeName, NodeSelector: template.Spec.NodeSelector, Affinity: template.Spec.Affinity,
		}}
		byUID[w.UID] = &maker{Workload: &w}
		makers = append(makers, byUID[w.UID])
	}
	in := client.InNamespace(namespace)
	for _, err := range []error{
		each(ctx, i, &appsv1.DeploymentList{}, func(o *appsv1.Deployment) {
			add("Deployment", o, nil, nil)
			s.deployments = append(s.deployments, deployment{
				Workload: s.byUID[o.UID], annotations: o.Spec.Template.Annotations,
				asks: o.Spec.Replicas == nil || *o.Spec.Replicas > 0, seen: o.Status.ObservedGeneration >= o.Generation,
			})
		}, in),
		each(ctx, i, &appsv1.ReplicaSetList{}, func(o *appsv1.ReplicaSet) {
			add("ReplicaSet", o, &o.Spec.Template, o.Spec.Replicas)
		}, in),
		each(ctx, i, &appsv1.StatefulSetList{}, func(o *appsv1.StatefulSet) {
			add("StatefulSet", o, &o.Spec.Template, o.Spec.Replicas)
		}, in),
		each(ctx, i, &versprei.PodDistributorList{}, func(d *versprei.PodDistributor) {
			s.listed.PodDistributorList = append(s.listed.PodDistributorList, *d)
		}, in),
	} {
		if err != nil {
			return nil, nil, forbidden("workloads and PodDistributors", err)
		}
	}
	// A namespace's labels say whether its strategies count, and how far we may go.
	var err error
	if namespace == "" {
		err = each(ctx, i, &corev1.NamespaceList{}, func(ns *corev1.Namespace) { s.listed.NamespaceList = append(s.listed.NamespaceList, *ns) })
	} else {
		var ns corev1.Namespace
		if err = i.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err == nil {
			s.listed.NamespaceList = append(s.listed.NamespaceList, ns)
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		r.Warnings = append(r.Warnings, fmt.Sprintf("namespaces are taken as if they said nothing about Stowage: %v", err))
	case client.IgnoreNotFound(err) != nil:
		return nil, nil, fmt.Errorf("namespaces: %w", err)
	}

	var registration admissionregistrationv1.MutatingWebhookConfiguration
	switch err = i.Client.Get(ctx, client.ObjectKey{Name: i.Registration}, &registration); {
	case err == nil:
		if s.registration, err = scope.Compile(&registration); err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("what the webhook's registration leaves out is not known: %v", err))
		}
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("the webhook's registration: %w", err)
	}

	// Pods with a seat. Who makes them may be of a kind that was not listed.
	err = each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || !seats.Live(pod) || !proven(pod) {
			return
		}
		m := byUID[owner.UID]
		if m == nil {
			m = &maker{Workload: &cluster.Workload{Ref: cluster.RefOf(owner), Namespace: pod.Namespace, Replicas: -1, Current: -1}}
			byUID[owner.UID], s.created[owner.UID] = m, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta}
			makers = append(makers, m)
		}
		m.pods = append(m.pods, pod)
	}, in, client.HasLabels{stowage.SeatLabel})
	if err != nil {
		return nil, nil, forbidden("pods", err)
	}
	return s, makers, nil
}

// group is a workload in the making.
type group struct {
	Workload
	pools []*Pool
	idle  string // why nobody wants us to touch it, or some of its revisions
	err   error
	// unseen says that a Deployment's controller has not done what it last asked for.
	unseen bool
}

// add adds what one maker of pods has and should have. Idle says why nobody wants us to
// touch its pods, if so.
func (g *group) add(ctx context.Context, i *Inspector, m *maker, p *policy.Policy, idle string) error {
	if !m.busy() && g.Policy != "" {
		return nil // none of its revisions has pods, and one is enough
	}
	g.idle = cmp.Or(g.idle, idle)
	g.Policy, g.err = p.Source, cmp.Or(g.err, p.Err)
	if p.Strategy == nil {
		return nil
	}
	seated := int64(0)
	at := make([]*Pool, p.Strategy.Len())
	for n := range at {
		pool := p.Strategy.Pool(n)
		at[n] = g.pool(pool.Name, labels.Set(pool.Labels).String())
	}
	for _, pod := range m.pods {
		n, ok := p.Pool(pod.Labels[stowage.PoolLabel])
		if !ok {
			continue
		}
		seated++
		at[n].Current++
		if seats.Ready(pod) {
			at[n].Ready++
		}
		if pod.Spec.NodeName == "" {
			at[n].Pending++
		}
	}
	replicas := m.Replicas
	if replicas < 0 {
		replicas = seated
		scale, err := cluster.ReadScale(ctx, i.Client, m.Namespace, m.Ref)
		switch {
		case apierrors.IsForbidden(err):
			g.Note = fmt.Sprintf("its replica count may not be read, so that of its pods is taken: %v", err)
		case err != nil:
			return fmt.Errorf("read the scale of %s %s: %w", m.Kind, m.Name, err)
		case scale != nil:
			replicas = scale.Replicas
		}
	}
	for n := range at {
		at[n].Share += p.Strategy.Share(n, replicas)
		at[n].Target += p.Strategy.Target(n, replicas)
	}
	g.Replicas += replicas
	g.Unseated += max(0, min(replicas, p.Strategy.Capacity())-seated)
	return nil
}

// pool returns the pool of a name, which is added if it is not there.
func (g *group) pool(name, labels string) *Pool {
	n := slices.IndexFunc(g.pools, func(p *Pool) bool { return p.Name == name })
	if n < 0 {
		n = len(g.pools)
		g.pools = append(g.pools, &Pool{Name: name, Labels: labels})
	}
	return g.pools[n]
}

func (g *group) done() Workload {
	g.OK = g.Unseated == 0
	for _, p := range g.pools {
		p.Share = math.Round(p.Share*100) / 100
		p.Difference = p.Current - p.Target
		g.OK = g.OK && p.Difference == 0 && p.Ready == p.Target
		g.Pools = append(g.Pools, *p)
	}
	switch {
	case g.idle != "":
		g.OK, g.Note = true, g.idle
	case g.err != nil:
		g.OK, g.Pools, g.Note = false, nil, "invalid: "+strings.ReplaceAll(g.err.Error(), "\n", "; ")
	case g.unseen:
		g.OK, g.Note = false, "its controller has not acted on the last change"
	case g.Unseated > 0 && g.Note == "":
		g.Note = fmt.Sprintf("%d without a seat", g.Unseated)
	}
	return g.Workload
}

// templates adds the FlexDaemonsetTemplates.
func (i *Inspector) templates(ctx context.Context, r *Report) error {
	err := each(ctx, i, &flexdaemonsets.FlexDaemonsetTemplateList{}, func(t *flexdaemonsets.FlexDaemonsetTemplate) {
		out := Template{
			Name: t.Name, UpdatePolicy: string(cmp.Or(t.Spec.UpdatePolicy, flexdaemonsets.UpdateOnCreate)),
			DaemonSets: t.Status.DaemonSets, Pods: t.Status.Pods, OffSize: t.Status.OffSize,
		}
		valid := meta.FindStatusCondition(t.Status.Conditions, flexdaemonsets.ConditionValid)
		switch {
		case t.Status.ObservedGeneration != t.Generation:
			out.Note = "no controller has looked at it since it was written"
		case valid != nil && valid.Status == metav1.ConditionFalse:
			out.Note = "invalid: " + valid.Message
		case out.OffSize > 0:
			out.Note = fmt.Sprintf("%d of another size", out.OffSize)
			if c := meta.FindStatusCondition(t.Status.Conditions, flexdaemonsets.ConditionUpToDate); c != nil && c.Status == metav1.ConditionFalse {
				out.Note += ": " + c.Message
			}
		default:
			out.OK = true
		}
		r.Templates = append(r.Templates, out)
	})
	if err != nil || len(r.Templates) == 0 {
		return err
	}
	nodes := map[string]map[string]bool{} // by the template's label
	err = each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		label := pod.Labels[stowage.SizedByLabel]
		if pod.Spec.NodeName == "" || !seats.Live(pod) {
			return
		}
		if nodes[label] == nil {
			nodes[label] = map[string]bool{}
		}
		nodes[label][pod.Spec.NodeName] = true
	}, client.HasLabels{stowage.SizedByLabel})
	if apierrors.IsForbidden(err) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the nodes that templates cover are not counted: %v", err))
		return nil
	}
	for n := range r.Templates {
		covered := len(nodes[sizing.LabelOf(r.Templates[n].Name)])
		r.Templates[n].Nodes = &covered
	}
	return err
}

// vms adds the peer-pod VMs.
func (i *Inspector) vms(ctx context.Context, r *Report) error {
	vms := &VMs{Resource: i.PeerPods.VMResource, Nodes: []NodeVMs{}}
	used := map[string]int64{}
	err := each(ctx, i, &corev1.PodList{}, func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			used[pod.Spec.NodeName]++
		}
	}, client.HasLabels{stowage.PeerPodLabel})
	if err != nil {
		return err
	}
	err = each(ctx, i, &corev1.NodeList{}, func(node *corev1.Node) {
		q := node.Status.Allocatable[corev1.ResourceName(vms.Resource)]
		n := NodeVMs{Name: node.Name, Capacity: q.Value(), Used: used[node.Name]}
		if n.Capacity == 0 && n.Used == 0 {
			return
		}
		n.Free, n.OK = max(0, n.Capacity-n.Used), n.Used <= n.Capacity
		vms.Nodes = append(vms.Nodes, n)
		vms.Capacity, vms.Used, vms.Free = vms.Capacity+n.Capacity, vms.Used+n.Used, vms.Free+n.Free
	})
	if err != nil {
		return err
	}
	r.VMs = vms
	return nil
}
