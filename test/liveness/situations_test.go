package liveness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// ending is for how long a situation may take to end: the backstop's 30 s, the judgement of cells, the rates, and a machine that does other things.
const ending = 2 * time.Minute

// outage is for how long nodes take nothing: longer than it takes until a pool is judged.
const outage = 25 * time.Second

// scene is a world that is made by hand, with one workload of 1 CPU a pod.
type scene struct {
	*world
	web *workload
}

// play makes a scene in which web is divided by a source. Its nodes are made by nodes, and its template changed by change.
func play(t *testing.T, s *source, kind string, replicas int, nodes func(*scene), change func(*scene, *corev1.PodTemplateSpec)) *scene {
	t.Helper()
	w := &world{Tenant: suite.NewTenant(t), t: t, source: s, evidence: map[string]map[cell]bool{}}
	sc := &scene{world: w, web: &workload{name: "web", kind: kind, template: suite.PodTemplate("web")}}
	nodes(sc)
	if made := s.apply(t, w.Tenant); made != nil {
		w.made = append(w.made, made)
	}
	template := &sc.web.template
	maps.Copy(template.Labels, divided)
	template.Spec.NodeSelector = map[string]string{ownLabel: w.Namespace}
	template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=1")
	if change != nil {
		change(sc, template)
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	meta := metav1.ObjectMeta{Namespace: w.Namespace, Name: "web"}
	sc.web.object = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(replicas)), Selector: selector, Template: *template}}
	if kind == "StatefulSet" {
		sc.web.object = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(replicas)), Selector: selector, Template: *template, PodManagementPolicy: appsv1.ParallelPodManagement,
		}}
	}
	w.workloads = []*workload{sc.web}
	if made := s.distribute(t, w.Tenant, sc.web.object, kind); made != nil {
		w.made = append(w.made, made)
	}
	suite.Must(t, w.Create(t.Context(), sc.web.object))
	return sc
}

// ready returns how many ready pods of web run in each pool, by their nodes, such as "od=2 spot=1". The others are counted as "waits".
func (sc *scene) ready() string {
	s, count := sc.look(), map[string]int{}
	for _, p := range s.pods {
		if p.Labels["app"] != "web" {
			continue
		}
		at := "waits"
		for _, n := range s.nodes {
			if n.Name == p.Spec.NodeName && podstatus.Ready(p) {
				at = strings.TrimPrefix(n.Labels[poolLabel], sc.Namespace+".")
			}
		}
		count[at]++
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%s=%d", at, count[at]))
	}
	return strings.Join(out, " ")
}

// becomes waits until the ready pods of web are these, or others that are right, too, and stay so for a while.
func (sc *scene) becomes(when string, wants ...string) {
	sc.t.Helper()
	have, since := "", time.Now()
	defer func() {
		if !slices.Contains(wants, have) {
			sc.t.Logf("%s: web has %s, want %s\n%s", when, have, strings.Join(wants, " or "), sc.report(sc.look()))
		}
	}()
	suite.EventuallyEvery(sc.t, time.Second, ending, fmt.Sprintf("%s, web has %q", when, wants), func() (bool, error) {
		if now := sc.ready(); now != have {
			have, since = now, time.Now()
		}
		return slices.Contains(wants, have) && time.Since(since) > quiet, nil
	})
}

// outage waits until web has what is wanted, and then expects of it, for longer than a pool is judged, that no pod of it comes or goes.
func (sc *scene) outage(when, want string) {
	sc.t.Helper()
	var pods string
	var since time.Time
	suite.EventuallyEvery(sc.t, time.Second, 2*ending, when+", web is watched", func() (bool, error) {
		s, have := sc.look(), sc.ready()
		switch now := s.uids(); {
		case pods == "" && have != want:
		case pods == "" || time.Since(since) < quiet && now != pods: // pods that were drained still have successors
			pods, since = now, time.Now()
		case now != pods || have != want:
			sc.t.Errorf("%s, pods were evicted after %.0f s: web has %s, want %s", when, time.Since(since).Seconds(), have, want)
			return true, nil
		}
		return pods != "" && time.Since(since) > outage, nil
	})
}

// running returns the pods of web that have a node.
func (sc *scene) running() map[types.UID]bool { return sc.WithNode(sc.t, "web") }

// stayed fails if one of some pods is gone.
func (sc *scene) stayed(what string, former map[types.UID]bool) {
	sc.t.Helper()
	now := sc.running()
	for uid := range former {
		if !now[uid] {
			sc.t.Errorf("%s: a pod with a node was evicted", what)
			return
		}
	}
}

// two are the pools of most situations; both have the same weight.
func two(n *suite.Tenant, od, spot int32) []pool {
	return []pool{{name: "od", labels: ofPool(n, "od"), weight: od}, {name: "spot", labels: ofPool(n, "spot"), weight: spot}}
}

// everywhere makes a node of each of two pools in some zones.
func (sc *scene) everywhere(od, spot int32, zones ...string) {
	sc.source.pools = two(sc.Tenant, od, spot)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range zones {
			sc.node(pool, zone, 40)
		}
	}
}

// ofPool returns the world's nodes of a pool.
func (sc *scene) ofPool(pool string) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(sc.nodes), func(n *corev1.Node) bool { return n.Labels[poolLabel] != sc.Namespace+"."+pool })
}
