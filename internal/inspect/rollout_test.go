package inspect

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
)

// site is a Deployment with a strategy, and the status of a rollout that has ended.
func site(replicas int32, edit func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "site", UID: "d", Generation: 2}}
	d.Spec.Replicas = &replicas
	d.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: halves}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas}
	if edit != nil {
		edit(d)
	}
	return d
}

// ofSite makes a ReplicaSet one of the Deployment's.
func ofSite(rs *appsv1.ReplicaSet) {
	rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "site", UID: "d", Controller: new(true)}}
}

// A rollout that goes on is not as it should be, and passes. One that does not go on by itself is a problem, with what has it go on.
func TestRollouts(t *testing.T) {
	pods := []client.Object{pod("x", "0", 1, nil), pod("y", "1", 1, nil)}
	deletedFor := func(d time.Duration) func(*appsv1.Deployment) {
		return func(o *appsv1.Deployment) {
			at := metav1.NewTime(now.Add(-d))
			o.DeletionTimestamp, o.Finalizers = &at, []string{"example.com/backup"}
		}
	}
	status := func(s appsv1.DeploymentStatus) *appsv1.Deployment {
		return site(2, func(d *appsv1.Deployment) { d.Status = s })
	}
	paused := func(d *appsv1.Deployment) *appsv1.Deployment {
		d.Spec.Paused = true
		return d
	}
	refused := func(c appsv1.DeploymentCondition) *appsv1.Deployment {
		c.Message = `replicasets.apps "site-1" is forbidden: exceeded quota: few`
		return site(2, func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Conditions: []appsv1.DeploymentCondition{c}} // it stays at the old one
		})
	}
	db := func(edit func(*appsv1.StatefulSet)) []client.Object {
		o := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "rs"}}
		o.Spec.Replicas = new(int32(2))
		o.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: halves}
		o.Status = appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 1, CurrentRevision: "db-1", UpdateRevision: "db-2"}
		edit(o)
		of := func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "rs", Controller: new(true)}}
		}
		return []client.Object{o, pod("db-0", "0", 1, of), pod("db-1", "1", 1, of)}
	}
	done := func(o *appsv1.StatefulSet) { o.Status.UpdatedReplicas = 2 }
	ending := func(name, kind, owner string, finalizers []string, over time.Duration) *corev1.Pod {
		return pod(name, "0", 2, func(p *corev1.Pod) {
			at := metav1.NewTime(now.Add(-over))
			p.DeletionTimestamp, p.Finalizers = &at, finalizers
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: "rs", Controller: new(true)}}
			if finalizers != nil {
				p.Status.Phase = corev1.PodSucceeded
			}
		})
	}
	with := func(d *appsv1.Deployment) []client.Object { return append([]client.Object{d, web(2, ofSite)}, pods...) }
	for name, tc := range map[string]struct {
		objects []client.Object
		ok      bool
		want    string // a part of the note, or of the one problem with its remedy
	}{
		"it has ended":             {with(site(2, nil)), true, ""},
		"old pods still end":       {[]client.Object{status(appsv1.DeploymentStatus{ObservedGeneration: 2}), web(0, ofSite)}, false, "the rollout goes on: 0 of 2 pods are of the newest revision"},
		"two revisions":            {with(status(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 2, AvailableReplicas: 3})), false, "the rollout goes on: 1 pod(s) of older revisions are left"},
		"minReadySeconds":          {with(status(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2})), false, "0 of 2 pods are available"},
		"it is not yet seen":       {with(status(appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2})), false, "has not acted on the last change of this Deployment yet"},
		"a new one":                {[]client.Object{site(2, func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} })}, false, "has not acted on the last change of this Deployment yet"},
		"a new one that is seen":   {[]client.Object{status(appsv1.DeploymentStatus{ObservedGeneration: 2})}, false, "0 pods exist, and 2 are asked for"},
		"paused between rollouts":  {with(paused(site(2, nil))), true, ""},
		"paused before a rollout":  {with(paused(status(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, AvailableReplicas: 2}))), true, ""},
		"paused in a rollout":      {with(paused(status(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 3}))), false, "is paused in its rollout: 1 of 2 pods are of the newest revision; resume the Deployment (kubectl -n ns rollout resume deployment/site)"},
		"paused since it is there": {[]client.Object{paused(status(appsv1.DeploymentStatus{ObservedGeneration: 2}))}, false, "is paused in its rollout: 0 of 2 pods are of the newest revision; resume the Deployment"},
		"no ReplicaSet may be made": {[]client.Object{refused(appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ReplicaSetCreateError"})}, false,
			"0 of 2 pods exist, because the API server refuses to create more: replicasets.apps"},
		"no new ReplicaSet may be made": {with(refused(appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue})), false,
			"the API server refuses to create what the newest revision asks for: replicasets.apps"},
		"it is deleted":      {with(site(2, deletedFor(time.Second))), false, "it is being deleted"},
		"a finalizer stays":  {with(site(2, deletedFor(time.Hour))), false, "has been in deletion since 2025-12-31T23:00:00Z: it is held by the finalizer example.com/backup; find out"},
		"nothing was made":   {[]client.Object{site(2, deletedFor(time.Hour))}, false, "has been in deletion since"},
		"an old StatefulSet": {db(func(o *appsv1.StatefulSet) { o.Status.UpdateRevision = "db-1"; o.Status.UpdatedReplicas = 0 }), true, ""},
		"a StatefulSet":      {db(func(*appsv1.StatefulSet) {}), false, "the rollout goes on: 1 of 2 pods are of the newest revision"},
		"a partition": {db(func(o *appsv1.StatefulSet) {
			o.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(1))}
		}), true, ""},
		"a finalizer keeps a StatefulSet's pod":                       {append(db(done), ending("db-2", "StatefulSet", "db", []string{"example.com/backup"}, time.Minute)), false, "waits for the end of a pod whose grace period is over: it is held by the finalizer example.com/backup (pod db-2); find out"},
		"a pod that ends in time":                                     {append(db(done), ending("db-2", "StatefulSet", "db", []string{"x/y"}, time.Second)), true, ""},
		"a finalizer keeps a Deployment's pod, which does not matter": {append(with(site(2, nil)), ending("z", "ReplicaSet", "web", []string{"x/y"}, time.Minute)), true, ""},
		"but with Recreate it does": {append(with(site(2, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })), ending("z", "ReplicaSet", "web", []string{"x/y"}, time.Minute)), false,
			"it is held by the finalizer x/y (pod z)"},
		"OnDelete":                       {db(func(o *appsv1.StatefulSet) { o.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }), true, ""},
		"a StatefulSet, minReadySeconds": {db(func(o *appsv1.StatefulSet) { o.Status.UpdatedReplicas, o.Status.AvailableReplicas = 2, 1 }), false, "1 of 2 pods are available"},
		"a StatefulSet that is not seen": {db(func(o *appsv1.StatefulSet) { o.Generation = 1 }), false, "the last change of this StatefulSet"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newInspector(t, tc.objects...).Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Workloads) != 1 || len(r.Problems) > 1 {
				t.Fatalf("%d workloads, %v", len(r.Workloads), r.Problems)
			}
			got := r.Workloads[0].Note
			for _, p := range r.Problems {
				got = p.Problem + "; " + p.Action
			}
			if r.OK() != tc.ok || !strings.Contains(got, tc.want) || tc.ok && got != "" {
				t.Errorf("it is as it should be: %t, %s", r.OK(), got)
			}
		})
	}
}

// A pod without finalizers that should be gone is its kubelet's, and the node says why that does nothing.
func TestPodOnLostNode(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	i := newInspector(t, node("lost", corev1.ConditionUnknown), node("there", corev1.ConditionTrue))
	s, err := i.snapshot(t.Context(), "ns", &Report{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"gone": "node gone is gone; bring the node back", "lost": "node lost is not ready; bring the node back", "there": "node there has not ended it; see the log of the kubelet on node there",
	} {
		of := pod("db-0", "0", 1, func(p *corev1.Pod) { p.Spec.NodeName = name })
		f := finding.Finding{Reason: finding.PodNotDeleted, Values: i.newCells().holdsBack(t.Context(), s, of)}
		if !strings.Contains(f.String(), want) {
			t.Errorf("%s, want %s", &f, want)
		}
	}
}

// Pods that the API server refuses do not come by waiting.
func TestRefusedRolloutDoesNotGoOn(t *testing.T) {
	g := &group{failure: "exceeded quota", rollouts: []rollout{{kind: "Deployment", name: "web", asked: 2, seen: true}}}
	if found := g.rolloutFindings(now); len(found) > 0 {
		t.Errorf("its note is %q", found[0].Sentence())
	}
	g.failure = ""
	if found := g.rolloutFindings(now); len(found) != 1 || found[0].Reason != finding.Progressing {
		t.Errorf("found %v", found)
	}
}
