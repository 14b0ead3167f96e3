package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
)

// snapshot answers from what was listed at the beginning, and live for kinds that were not.
type snapshot struct {
	live
	listed cluster.Static
	byUID  map[types.UID]*cluster.Workload
	// created is the template of the pods of each workload that makes some: its metadata,
	// and what in it chooses nodes.
	created map[types.UID]corev1.PodTemplateSpec
	// registration is nil where there is none, and where it may not be read: then hiddenRegistration
	// is set.
	registration       *scope.Registration
	hiddenRegistration bool
	deployments        []deployment

	// namespace is the one that the report is about, or empty for all of them.
	namespace string
	// pods are the pods that have not ended, of all namespaces or, where those may not be listed, of
	// the report's: then podsOfNamespace is set.
	pods            []*corev1.Pod
	podsOfNamespace bool
	daemonSets      map[string]*appsv1.DaemonSet
	templates       map[string]bool // nil where they may not be listed
}

// reports reports whether the report is about a namespace.
func (s *snapshot) reports(namespace string) bool {
	return s.namespace == "" || s.namespace == namespace
}

// deployment is what is kept of a Deployment.
type deployment struct {
	*cluster.Workload
	annotations map[string]string // of its pods
	asks        bool              // for a pod
	seen        bool              // by its controller, as it is now
}

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

// maker is what makes pods, with those that have a seat, and how many have none.
type maker struct {
	*cluster.Workload
	pods     []*corev1.Pod
	unseated int64
}

// busy reports whether it has pods, or asks for some.
func (m *maker) busy() bool { return m.Replicas != 0 || len(m.pods) > 0 }

// workloads adds the workloads that have a strategy.
func (i *Inspector) workloads(ctx context.Context, s *snapshot, makers []*maker, r *Report) error {
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
	s := &snapshot{
		live: i.live(), byUID: map[types.UID]*cluster.Workload{}, created: map[types.UID]corev1.PodTemplateSpec{},
		namespace: namespace, daemonSets: map[string]*appsv1.DaemonSet{},
	}
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
		each(ctx, i, &appsv1.DaemonSetList{}, func(o *appsv1.DaemonSet) { s.daemonSets[o.Namespace+"/"+o.Name] = o }, in),
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
		if err = i.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("namespace %s: %w", namespace, ErrNoNamespace)
		} else if err == nil {
			s.listed.NamespaceList = append(s.listed.NamespaceList, ns)
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		r.Warnings = append(r.Warnings, fmt.Sprintf("namespaces are taken as if they said nothing about Stowage: %v", err))
	case client.IgnoreNotFound(err) != nil:
		return nil, nil, fmt.Errorf("namespaces: %w", err)
	}

	if i.Sizing {
		s.templates = map[string]bool{}
		err := each(ctx, i, &flexdaemonsets.FlexDaemonsetTemplateList{}, func(t *flexdaemonsets.FlexDaemonsetTemplate) { s.templates[t.Name] = true })
		if apierrors.IsForbidden(err) {
			s.templates = nil // another part of the report warns of that
		} else if err != nil {
			return nil, nil, fmt.Errorf("FlexDaemonsetTemplates: %w", err)
		}
	}

	// The pods. Who makes them may be of a kind that was not listed.
	if err := i.listPods(ctx, s, r); err != nil {
		return nil, nil, forbidden("pods", err)
	}
	for _, pod := range s.pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || !s.reports(pod.Namespace) {
			continue
		}
		m := byUID[owner.UID]
		if !seats.Live(pod) {
			continue
		}
		if !proven(pod) {
			if m != nil {
				m.unseated++
			}
			continue
		}
		if m == nil {
			m = &maker{Workload: &cluster.Workload{Ref: cluster.RefOf(owner), Namespace: pod.Namespace, Replicas: -1, Current: -1}}
			byUID[owner.UID], s.created[owner.UID] = m, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta}
			makers = append(makers, m)
		}
		m.pods = append(m.pods, pod)
	}
	return s, makers, nil
}

// listPods lists the live pods of all namespaces, because nodes have VMs for all of them, or of the
// report's namespace where the user may not.
func (i *Inspector) listPods(ctx context.Context, s *snapshot, r *Report) error {
	keep := func(pod *corev1.Pod) {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			s.pods = append(s.pods, slim(pod))
		}
	}
	err := each(ctx, i, &corev1.PodList{}, keep)
	if apierrors.IsForbidden(err) && s.namespace != "" {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the VMs of nodes, and the nodes that templates cover, are left out: %v", err))
		s.podsOfNamespace, s.pods = true, nil
		return each(ctx, i, &corev1.PodList{}, keep, client.InNamespace(s.namespace))
	}
	return err
}

// slim keeps of a pod what the report reads: there may be many.
func slim(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	for k, v := range pod.Annotations {
		if k != corev1.LastAppliedConfigAnnotation {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, k, v)
		}
	}
	kept.Spec.NodeName, kept.Spec.RuntimeClassName = pod.Spec.NodeName, pod.Spec.RuntimeClassName
	kept.Spec.NodeSelector, kept.Spec.Affinity = pod.Spec.NodeSelector, pod.Spec.Affinity
	for _, c := range pod.Spec.Containers {
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: c.Name, Resources: c.Resources})
	}
	kept.Status.Phase, kept.Status.Conditions = pod.Status.Phase, pod.Status.Conditions
	return kept
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
	g.Unseated += min(m.unseated, max(0, p.Strategy.Capacity()-seated))
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
