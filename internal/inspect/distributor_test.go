package inspect

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/status"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// divided is what a PodDistributor divides, with the PodDistributor. The pools have the labels p=a and p=b.
type divided struct {
	distributor *versprei.PodDistributor
	root        client.Object // that the PodDistributor targets
	state       *stowage.PoolState
	objects     []client.Object
	pods        int
}

// newDivided returns a Deployment without revisions, divided in halves.
func newDivided() *divided {
	d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "distributor", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	d.Spec.Distribution = []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}, {NodeLabel: map[string]versprei.LabelValue{"p": "b"}, Weight: 1}}
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "root"}}
	root.Spec.Replicas = new(int32(0))
	return &divided{distributor: d, root: root}
}

// revision adds a ReplicaSet with so many pods: in pool a, in pool b, and without a seat. Its name decides where it comes in lists.
func (d *divided) revision(name string, number int, a, b, without int, edit func(*appsv1.ReplicaSet)) {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(number)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "root", Controller: new(true)}},
	}}
	rs.Spec.Replicas, rs.Status.Replicas = new(int32(a+b+without)), int32(a+b+without)
	if edit != nil {
		edit(rs)
	}
	d.objects = append(d.objects, rs)
	if of, is := d.root.(*appsv1.Deployment); is {
		n := *of.Spec.Replicas + *rs.Spec.Replicas
		of.Spec.Replicas, of.Status = &n, appsv1.DeploymentStatus{Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	}
	d.add("ReplicaSet", name, "0", a, nil)
	d.add("ReplicaSet", name, "1", b, nil)
	d.add("ReplicaSet", name, "", without, nil)
}

// add adds pods of an owner to a pool, or without a seat if that is "". They run on a node of the pool in the zone z0.
func (d *divided) add(kind, owner, pool string, n int, edit func(*corev1.Pod)) {
	for range n {
		d.pods++
		name := fmt.Sprintf("%s-%d", owner, d.pods-1)
		p := pod(name, "", 0, nil)
		p.Annotations = map[string]string{}
		p.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Hour)) // before the PodDistributor, so that the webhook is not to blame
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: map[string]string{"Job": "batch/v1"}[kind], Kind: kind, Name: owner, UID: types.UID(owner), Controller: new(true)}}
		if p.OwnerReferences[0].APIVersion == "" {
			p.OwnerReferences[0].APIVersion = "apps/v1"
		}
		p.Spec.NodeName = "node-elsewhere"
		if pool != "" {
			p.Spec.NodeName = "node-" + map[string]string{"0": "a", "1": "b"}[pool]
			seat := ledger.Seat{Pool: pool, Ordinal: int64(d.pods)}
			p.Labels = map[string]string{stowage.PoolLabel: pool, stowage.SeatLabel: fmt.Sprint(seat.Ordinal)}
			if d.distributor.Spec.Across != nil {
				seat.Domain, p.Labels[stowage.DomainLabel] = "z0", "z0"
			}
			p.Annotations[corev1.PodDeletionCost] = sequence.DeletionCost(1) // ours, whatever rank it is
			p.Annotations[stowage.ClaimAnnotation] = make(ledger.Key, ledger.KeySize).Sign(ledger.OriginClaimed, ledger.WithCostRank(name, 1), ledger.Holder{Namespace: "ns", Owner: owner}, seat)
		}
		if edit != nil {
			edit(p)
		}
		d.objects = append(d.objects, p)
	}
}

// records has something be recorded of the workload.
func (d *divided) records(edit func(*stowage.PoolState)) {
	if d.state == nil {
		d.state = &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(d.root.GetUID())}}
	}
	edit(d.state)
}

// unsuitable records that no pod can run in a pool.
func (d *divided) unsuitable(pool, zone, filter string) {
	d.records(func(s *stowage.PoolState) {
		s.Unsuitable = append(s.Unsuitable, stowage.UnsuitablePool{NodeLabel: map[string]string{"p": pool}, Domain: zone, Filter: filter, Why: "its volume is elsewhere"})
	})
}

// full records that a pool has no room, and keeps so many pods.
func (d *divided) full(pool string, most int64) {
	for i := range d.distributor.Spec.Distribution {
		d.distributor.Spec.Distribution[i].Spill = &versprei.Spill{}
	}
	d.records(func(s *stowage.PoolState) {
		s.Pools = []stowage.PoolRoom{{Name: "0", NodeLabel: map[string]string{"p": pool}, Phase: stowage.PoolExhausted, Epoch: 1, Max: most, Since: metav1.NewTime(now.Add(-time.Minute))}}
	})
}

// hindered records what keeps pods from moving.
func (d *divided) hindered(h stowage.Hindrance) {
	h.Since = metav1.NewTime(now.Add(-time.Minute))
	d.records(func(s *stowage.PoolState) { s.Status.Hindrances = append(s.Status.Hindrances, h) })
}

// told is a repair that knows what it has recorded of the workload with the owner.
type told struct {
	owner types.UID
	state *stowage.PoolState
}

func (told) Moving(ledger.OwnerKey) bool                    { return false }
func (told) Stuck(ledger.OwnerKey, int64, int64) bool       { return false }
func (told) Elsewhere(ledger.OwnerKey) (e layout.Elsewhere) { return e }
func (t told) Hindrances(owner ledger.OwnerKey) []stowage.Hindrance {
	if t.state == nil || owner.UID != t.owner {
		return nil
	}
	return t.state.Status.Hindrances
}

// both returns the status of the PodDistributor, and what the view says of its workload. There is no such workload if the view leaves it out.
func (d *divided) both(t *testing.T) (versprei.PodDistributorStatus, *Workload, *Report) {
	t.Helper()
	objects := append([]client.Object{d.distributor}, d.objects...)
	if d.root != nil {
		objects = append(objects, d.root)
	}
	repair := told{state: d.state}
	if d.state != nil {
		objects = append(objects, d.state)
	}
	for _, name := range []string{"a", "b", "elsewhere"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + name, Labels: map[string]string{"p": name, "zone": "z0"}}})
	}
	var seated []any
	for _, o := range objects {
		if pod, is := o.(*corev1.Pod); is {
			if repair.owner = pod.OwnerReferences[0].UID; pod.Labels[stowage.SeatLabel] != "" {
				seated = append(seated, pod)
			}
		}
	}
	i := newInspector(t, objects...)
	clock := clocktesting.NewFakeClock(now)
	service := seats.New(seats.Options{Key: make(ledger.Key, ledger.KeySize), Writer: "w", Clock: clock, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry()))})
	if err := service.Pods().Replace(seated, "1"); err != nil {
		t.Fatal(err)
	}
	reader := worldcache.New(i.Client, i.Client, clock, worldcache.ForAdmission())
	run := (&status.Controller{
		Cached: i.Client, Uncached: i.Client, World: reader, Seats: service, Scope: scope.New(reader, "stowage-system"), Find: owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, i.Client, clock),
		Progress: repair, Clock: clock, Time: clock, Timing: status.Timing{Every: time.Second, All: 30 * time.Second, Rate: 50, Quiet: 2 * time.Second}, Writes: fair.NewLimiter[string](50, 100), Log: logr.Discard(),
	}).NewRun()
	if _, err := run.Reconcile(t.Context(), client.ObjectKeyFromObject(d.distributor)); err != nil {
		t.Fatal(err)
	}
	written := &versprei.PodDistributor{}
	if err := i.Client.Get(t.Context(), client.ObjectKeyFromObject(d.distributor), written); err != nil {
		t.Fatal(err)
	}
	r, err := i.Status(t.Context(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(r.Workloads, func(w Workload) bool { return w.Policy == "PodDistributor d" })
	if at < 0 {
		return written.Status, nil, r
	}
	return written.Status, &r.Workloads[at], r
}

// problemOf returns the first problem of a workload that the condition does not have beside its cause, or "".
func (r *Report) problemOf(w *Workload) string {
	for _, p := range r.Problems {
		if p.Object == w.Kind+"/"+w.Name && p.Reason != finding.OverInDomain {
			return p.Problem
		}
	}
	return ""
}

// agree fails where the status of a PodDistributor and the view of its workload differ.
func agree(t *testing.T, st versprei.PodDistributorStatus, w *Workload, r *Report) {
	t.Helper()
	found, balanced := meta.FindStatusCondition(st.Conditions, versprei.ConditionTargetFound), meta.FindStatusCondition(st.Conditions, versprei.ConditionBalanced)
	room := meta.FindStatusCondition(st.Conditions, versprei.ConditionPoolsAvailable)
	if w == nil {
		if found.Status != metav1.ConditionFalse && strings.Trim(st.Desired, "0/") != "" { // a Deployment that asks for nothing has no row
			t.Errorf("the view shows no workload, and the status is %+v", st)
		}
		return
	}
	if found.Status == metav1.ConditionFalse {
		if said := w.Note + r.problemOf(w); !strings.Contains(said, "none of the pools") {
			t.Errorf("the status says %s, and the view %q", found.Message, said)
		}
		return
	}
	var pools []versprei.PoolStatus
	for _, p := range w.Pools {
		pool := versprei.PoolStatus{Name: p.Name, Desired: int32(p.Target), Current: int32(p.Current), Ready: int32(p.Ready)}
		for _, in := range p.Domains {
			pool.Domains = append(pool.Domains, versprei.DomainStatus{Name: in.Name, Desired: int32(in.Target), Current: int32(in.Current)})
		}
		pools = append(pools, pool)
	}
	if diff := cmp.Diff(pools, st.Pools); diff != "" {
		t.Errorf("the pools (-view +status):\n%s", diff)
	}
	problem := r.problemOf(w)
	for _, more := range []string{", such as ", ", which their pod template"} { // the view names a pod, and whether its template chooses
		problem, _, _ = strings.Cut(problem, more)
	}
	switch {
	case balanced.Reason == string(stowage.ReasonLeftAlone):
		if !strings.HasPrefix(w.Note, "left alone") {
			t.Errorf("the status says %s, and the view %q", balanced.Message, w.Note)
		}
	case balanced.Status == metav1.ConditionTrue && room != nil && room.Status == metav1.ConditionFalse: // the pods are even though a pool has no room
		if !strings.HasPrefix(problem, room.Message) {
			t.Errorf("the status says %s, and the view %q", room.Message, problem)
		}
	case balanced.Status == metav1.ConditionTrue:
		if problem != "" || strings.HasPrefix(w.Note, "left alone") {
			t.Errorf("the status says %s, and the view %q %s", balanced.Message, problem, w.Note)
		}
	case problem != "":
		if !strings.HasPrefix(balanced.Message, problem) {
			t.Errorf("the status says %q, and the view %q", balanced.Message, problem)
		}
	default:
		if balanced.Reason != string(stowage.ReasonProgressing) && (w.Note == "" || !strings.HasPrefix(balanced.Message, w.Note)) {
			t.Errorf("the status says %s: %q, and the view %q", balanced.Reason, balanced.Message, w.Note)
		}
	}
}

// The status of a PodDistributor says the same as the view of its workload, in whatever order the revisions are listed.
func TestDistributorStatusIsTheView(t *testing.T) {
	off := func(rs *appsv1.ReplicaSet) {
		rs.Spec.Template.Labels = map[string]string{stowage.ModeKey: string(stowage.ModeOff)}
	}
	noRepair := func(rs *appsv1.ReplicaSet) {
		rs.Spec.Template.Annotations = map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)}
	}
	older := func(d *divided, kind, name string) {
		o := d.distributor.DeepCopy()
		o.Name, o.UID, o.CreationTimestamp = "older", "older", metav1.NewTime(now.Add(-2*time.Hour))
		o.Spec.Target.Kind, o.Spec.Target.Name = kind, name
		d.objects = append(d.objects, o)
	}
	set := func(d *divided, kind string, root client.Object) {
		root.SetNamespace("ns")
		root.SetName("web")
		root.SetUID("web")
		d.root, d.distributor.Spec.Target.Kind = root, kind
	}
	states := map[string]func(d *divided, first, second string){
		"in halves": func(d *divided, first, _ string) { d.revision(first, 1, 2, 2, 0, nil) },
		"too many":  func(d *divided, first, _ string) { d.revision(first, 1, 4, 0, 0, nil) },
		"none":      func(d *divided, first, _ string) { d.revision(first, 1, 0, 0, 0, nil) },
		"one is not for them": func(d *divided, first, _ string) {
			d.revision(first, 1, 2, 0, 0, nil)
			d.unsuitable("b", "", "VolumeBinding")
		},
		"the author knows that": func(d *divided, first, _ string) {
			d.revision(first, 1, 2, 0, 0, nil)
			d.unsuitable("b", "", "TaintToleration")
		},
		"none is for them": func(d *divided, first, _ string) {
			d.revision(first, 1, 0, 0, 2, nil)
			d.unsuitable("a", "", "VolumeBinding")
			d.unsuitable("b", "", "VolumeBinding")
		},
		"no room": func(d *divided, first, _ string) { d.revision(first, 1, 1, 3, 0, nil); d.full("a", 1) },
		"room":    func(d *divided, first, _ string) { d.revision(first, 1, 2, 2, 0, nil); d.full("a", 1); d.state = nil },
		"no room, and two revisions": func(d *divided, first, second string) {
			d.revision(first, 1, 1, 3, 0, nil)
			d.revision(second, 2, 0, 4, 0, nil)
			d.full("a", 1)
		},
		"a rollout": func(d *divided, first, second string) {
			d.revision(first, 1, 2, 1, 0, nil)
			d.revision(second, 2, 1, 0, 0, nil)
		},
		"an old revision is off": func(d *divided, first, second string) {
			d.revision(first, 1, 1, 1, 0, off)
			d.revision(second, 2, 1, 1, 0, nil)
		},
		"the newest is off": func(d *divided, first, second string) {
			d.revision(first, 1, 1, 1, 0, nil)
			d.revision(second, 2, 1, 1, 0, off)
		},
		"one without pods is off": func(d *divided, first, second string) {
			d.revision(first, 1, 0, 0, 0, off)
			d.revision(second, 2, 2, 1, 0, nil)
		},
		"one without pods is not off": func(d *divided, first, second string) {
			d.revision(first, 1, 0, 0, 0, nil)
			d.revision(second, 2, 2, 1, 0, off)
		},
		"an old one without repair": func(d *divided, first, second string) {
			d.revision(first, 1, 2, 0, 0, noRepair)
			d.revision(second, 2, 2, 0, 0, nil)
		},
		"the newest without repair": func(d *divided, first, second string) {
			d.revision(first, 1, 2, 0, 0, nil)
			d.revision(second, 2, 2, 0, 0, noRepair)
		},
		"the newest prefers its pools": func(d *divided, first, second string) {
			d.revision(first, 1, 1, 1, 0, nil)
			d.revision(second, 2, 1, 1, 0, nil)
			d.records(func(s *stowage.PoolState) {
				s.Soft = &stowage.SoftRevision{Owner: types.UID(second), Why: "nothing takes it"}
			})
		},
		"without a seat": func(d *divided, first, _ string) { d.revision(first, 1, 1, 1, 2, nil) },
		"they choose their nodes": func(d *divided, first, _ string) {
			d.revision(first, 1, 1, 1, 2, nil)
			for _, o := range d.objects {
				if pod, is := o.(*corev1.Pod); is && pod.Labels[stowage.SeatLabel] == "" {
					pod.Spec.NodeSelector = map[string]string{"p": "elsewhere"}
				}
			}
			d.hindered(stowage.Hindrance{Reason: stowage.HindrancePinned, Pod: first + "-2", Objects: []string{"node label p"}, Count: 2})
		},
		"a pool was removed": func(d *divided, first, _ string) {
			d.revision(first, 1, 1, 1, 1, nil)
			d.objects = d.objects[:len(d.objects)-1]
			d.add("ReplicaSet", first, "gone", 1, nil)
		},
		"outside": func(d *divided, first, _ string) {
			d.revision(first, 1, 1, 1, 0, nil)
			d.objects[len(d.objects)-1].(*corev1.Pod).Spec.NodeName = "node-elsewhere"
		},
		"preferred": func(d *divided, first, _ string) {
			d.distributor.Spec.Enforcement = versprei.EnforcementPreferred
			d.revision(first, 1, 1, 1, 0, nil)
			d.objects[len(d.objects)-1].(*corev1.Pod).Spec.NodeName = "node-elsewhere"
		},
		"evictions are refused": func(d *divided, first, _ string) {
			d.distributor.Spec.Rebalance = versprei.RebalanceEvict
			d.revision(first, 1, 3, 1, 0, nil)
			d.hindered(stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: first + "-1", Objects: []string{"few"}})
		},
		"maxima": func(d *divided, first, _ string) {
			one := intstr.FromInt32(1)
			d.distributor.Spec.Distribution[0].MaxReplicas, d.distributor.Spec.Distribution[1].MaxReplicas = &one, &one
			d.revision(first, 1, 1, 1, 2, nil)
		},
		"zones": func(d *divided, first, _ string) {
			d.distributor.Spec.Across = &versprei.Across{TopologyKey: "zone", Domains: []versprei.Domain{{Value: "z0"}, {Value: "z1"}}}
			d.revision(first, 1, 2, 2, 0, nil)
		},
		"a zone is not for them": func(d *divided, first, second string) {
			d.distributor.Spec.Across = &versprei.Across{TopologyKey: "zone", Domains: []versprei.Domain{{Value: "z0"}, {Value: "z1"}}}
			d.revision(first, 1, 2, 2, 0, nil)
			d.revision(second, 2, 1, 1, 0, nil)
			d.unsuitable("b", "z1", "VolumeBinding")
		},
		"a Deployment without a ReplicaSet": func(d *divided, _, _ string) { d.root.(*appsv1.Deployment).Spec.Replicas = new(int32(0)) },
		"no Deployment":                     func(d *divided, _, _ string) { d.root = nil },
		"a node is gone": func(d *divided, first, _ string) {
			d.revision(first, 1, 2, 2, 0, nil)
			for _, o := range d.objects {
				if p, is := o.(*corev1.Pod); is && p.Spec.NodeName == "node-b" {
					p.Spec.NodeName = nodeGone
				}
			}
		},
		"an older PodDistributor":           func(d *divided, first, _ string) { d.revision(first, 1, 2, 2, 0, nil); older(d, "Deployment", "web") },
		"an older one of the only revision": func(d *divided, first, _ string) { d.revision(first, 1, 2, 0, 0, nil); older(d, "ReplicaSet", first) },
		"an older one of what made it": func(d *divided, first, _ string) {
			d.revision(first, 1, 2, 0, 0, nil)
			older(d, "Deployment", "web")
			d.distributor.Spec.Target.Kind, d.distributor.Spec.Target.Name = "ReplicaSet", first
		},
		"a StatefulSet": func(d *divided, _, _ string) {
			o := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2))}, Status: appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 2}}
			set(d, "StatefulSet", o)
			d.add("StatefulSet", "web", "0", 2, nil)
			d.unsuitable("b", "", "VolumeBinding")
		},
		"a Job": func(d *divided, _, _ string) {
			o := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: new(int32(2)), Completions: new(int32(4))}, Status: batchv1.JobStatus{Active: 2}}
			set(d, "Job", o)
			d.distributor.Spec.Target.APIVersion = "batch/v1"
			d.add("Job", "web", "0", 2, nil)
		},
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, names := range [][2]string{{"web-1", "web-2"}, {"web-2", "web-1"}} { // a store lists by name
				d := newDivided()
				state(d, names[0], names[1])
				st, w, r := d.both(t)
				agree(t, st, w, r)
				text := strings.NewReplacer(names[0], "first", names[1], "second")
				texts = append(texts, text.Replace(fmt.Sprint(st.Current, st.Desired, meta.FindStatusCondition(st.Conditions, versprei.ConditionBalanced).Message)))
				if w != nil {
					texts[len(texts)-1] += text.Replace(w.Note)
				}
			}
			if texts[0] != texts[1] {
				t.Errorf("the condition depends on the order in which the revisions are listed: %q", texts)
			}
		})
	}
}

// So does it in states that chance has made.
func TestDistributorStatusIsTheViewByChance(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 78))
			one := func(of int) bool { return chance.IntN(of) == 0 }
			d := newDivided()
			if one(3) {
				d.distributor.Spec.Across = &versprei.Across{TopologyKey: "zone", Domains: []versprei.Domain{{Value: "z0"}, {Value: "z1"}}}
			}
			if one(2) {
				d.distributor.Spec.Rebalance = versprei.RebalanceEvict
			}
			if one(4) {
				d.distributor.Spec.Distribution[1].Base = int32(chance.IntN(3))
			}
			names := []string{"web-1", "web-2", "web-3"}
			chance.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for number, name := range names[:1+chance.IntN(3)] {
				d.revision(name, number+1, chance.IntN(4), chance.IntN(4), chance.IntN(2), func(rs *appsv1.ReplicaSet) {
					if one(6) {
						rs.Spec.Template.Labels = map[string]string{stowage.ModeKey: string(stowage.ModeOff)}
					}
					if one(4) {
						rs.Spec.Template.Annotations = map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)}
					}
				})
			}
			if zone := map[bool]string{true: "z1"}[d.distributor.Spec.Across != nil]; one(3) {
				d.unsuitable([]string{"a", "b"}[chance.IntN(2)], zone, "VolumeBinding")
			}
			if d.distributor.Spec.Across == nil && one(3) {
				d.full([]string{"a", "b"}[chance.IntN(2)], int64(chance.IntN(3)))
			}
			st, w, r := d.both(t)
			agree(t, st, w, r)
		})
	}
}

// A workload whose pods can run in no pool stays in the view. Its pods that wait are a problem.
func TestWorkloadThatFitsNoPool(t *testing.T) {
	for name, waits := range map[string]bool{"its pods wait": true, "its pods run elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			d := newDivided()
			d.revision("web-1", 1, 0, 0, 0, func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas, rs.Status.Replicas = new(int32(2)), 2 })
			d.add("ReplicaSet", "web-1", "", 2, func(p *corev1.Pod) {
				if waits {
					p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
				}
			})
			d.unsuitable("a", "", "VolumeBinding") // which the author of a PodDistributor cannot know
			d.unsuitable("b", "", "VolumeBinding") // which the author of a PodDistributor cannot know
			_, w, r := d.both(t)
			if w == nil {
				t.Fatal("the view shows no workload")
			}
			problem := r.problemOf(w)
			if said := problem + w.Note; !strings.Contains(said, "none of the pools of PodDistributor d") || !strings.Contains(said, "its volume is elsewhere") {
				t.Errorf("the view says %q", said)
			}
			if waits != strings.Contains(problem, "2 pod(s) wait for a node") || waits == r.OK() {
				t.Errorf("it is as it should be: %t, and the problem is %q", r.OK(), problem)
			}
		})
	}
}
