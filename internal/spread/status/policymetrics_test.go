package status

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// However many policies some namespaces have, and however long their names are, the metrics have a bounded size, and those of the cluster and of other
// namespaces are among them.
func TestManyPoliciesKeepOthersMetrics(t *testing.T) {
	tallies := map[types.UID]*tally{}
	add := func(kind, namespace, name string) {
		of := &policy.SpreadPolicy{Kind: kind, ObjectMeta: &metav1.ObjectMeta{Namespace: namespace, Name: name}}
		tallies[types.UID(namespace+"/"+name)] = &tally{
			of: of, balanced: 1, status: &stowage.SpreadPolicyStatus{Workloads: 2, Shadowed: 1, NotReached: 1, KeptByVolume: 1, Unsuitable: 1, Pods: 2, WithoutSeat: 1},
		}
	}
	for ns := range 30 {
		for i := range 100 {
			add("SpreadPolicy", fmt.Sprintf("attack-%d-%s", ns, strings.Repeat("x", 50)), fmt.Sprintf("%d-%s", i, strings.Repeat("x", 245)))
		}
	}
	add("SpreadPolicy", "victim", "web")
	for i := range 50 {
		add("ClusterSpreadPolicy", "", fmt.Sprint("all-", i))
	}
	registry := prometheus.NewRegistry()
	m := NewMetrics(metrics.NewSet(registry))
	m.set(tallies)

	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range gathered {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d and %d series, %d bytes", testutil.CollectAndCount(m.workloads), testutil.CollectAndCount(m.pods), text.Len())
	if text.Len() > 3<<19 {
		t.Errorf("the metrics of policies have %d bytes", text.Len())
	}
	for _, want := range []string{`name="web",namespace="victim",state="balanced"} 1`, `name="web",namespace="victim",state="without_seat"} 1`, `name="all-49",namespace="",state="balanced"} 1`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("there is no series %s", want)
		}
	}
	m.set(nil)
	if n := testutil.CollectAndCount(m.workloads) + testutil.CollectAndCount(m.pods); n != 0 {
		t.Errorf("%d series are left", n)
	}
}
