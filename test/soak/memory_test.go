package soak

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
)

// A replica with the memory limit of an installation lives through six clients of four connections each that send the largest reviews of
// the smallest items, and answers others meanwhile. It does so, too, when a tenant creates such pods through the API server, and when strangers
// send many small reviews of pods with as many entries as fit, whose owner does not exist.
func TestMemoryOfReviews(t *testing.T) {
	const limit, size = 1 << 30, 7<<20 - 64<<10
	group := newMemoryGroup(t, limit)
	one := suite.Fleet
	one.Replicas, one.Binary = 1, group.program(t, suite.Binary, "--webhook")
	suite.RestoreFleet(t)
	suite.Must(t, suite.Cluster.StartStowage(t.Context(), one))
	replica := suite.Cluster.Replicas()[0]
	if group.mebibytes(group.used) < 10 {
		t.Fatalf("the replica is not in its cgroup: %d MiB are used", group.mebibytes(group.used))
	}
	n := suite.NewTenant(t)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asking sync.WaitGroup
	bodies := hostileReviews(size)
	ownerless := reviewOfEntries("default", 60<<10)
	var hostile atomic.Int64
	for address := range 6 {
		s := newStranger(fmt.Sprintf("127.3.0.%d", address+1), replica.WebhookAddr)
		for connection := range 4 {
			asking.Go(func() {
				for i := connection; ctx.Err() == nil; i++ {
					if s.ask(ctx, bodies[(address+3*i)%len(bodies)]) != 0 {
						hostile.Add(1)
					}
				}
			})
		}
	}
	for address := range 20 {
		s := newStranger(fmt.Sprintf("127.3.1.%d", address+1), replica.WebhookAddr)
		for range 20 {
			asking.Go(func() {
				for ctx.Err() == nil {
					s.ask(ctx, ownerless)
				}
			})
		}
	}
	asking.Go(func() { tenantCreatesLargePods(ctx, n) })

	// Others are answered.
	modest := newStranger("127.0.0.9", replica.WebhookAddr)
	begin, asked, refused := clock.RealClock{}.Now(), 0, 0
	for (clock.RealClock{}).Since(begin) < 25*time.Second && suite.Cluster.EndedReplicas() == nil {
		asked++
		if modest.ask(ctx, review(n.Namespace, `"name":"p"`, `"containers":[{"name":"c"}]`)) != 200 {
			refused++
		}
	}
	stop()
	asking.Wait()
	t.Logf("%d hostile reviews of %d bytes were answered or refused, and %d modest ones asked; the replica used %d MiB at most", hostile.Load(), size, asked, group.mebibytes(group.peak))
	if ended := suite.Cluster.EndedReplicas(); len(ended) > 0 {
		t.Errorf("the replica ended: see %s", ended[0].Log)
	}
	if peak := group.mebibytes(group.peak); peak < 0 || peak > limit>>21 {
		t.Errorf("the replica used %d MiB, over half of its limit", peak)
	}
	if refused > 0 || asked < 10 {
		t.Errorf("%d of %d modest reviews were not answered", refused, asked)
	}
	if hostile.Load() < 24 {
		t.Errorf("only %d hostile reviews were sent", hostile.Load())
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "after"}, Spec: suite.PodTemplate("after").Spec}
	suite.Must(t, n.Create(t.Context(), pod, client.DryRunAll))
}

// tenantCreatesLargePods creates pods of 3 MB with many small parts, which the API server refuses after it has asked the webhook.
func tenantCreatesLargePods(ctx context.Context, n *suite.Tenant) {
	for i := 0; ctx.Err() == nil; i++ {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, GenerateName: "large-"}, Spec: suite.PodTemplate("large").Spec}
		switch i % 3 {
		case 0:
			pod.Spec.Tolerations = make([]corev1.Toleration, 900_000)
		case 1:
			pod.OwnerReferences = make([]metav1.OwnerReference, 40_000)
		case 2:
			pod.Labels = map[string]string{}
			for k := range 200_000 {
				pod.Labels[fmt.Sprintf("k%x", k)] = strings.Repeat("v", 1)
			}
		}
		_ = n.Create(ctx, pod) // invalid
	}
}
