package shortage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What is recorded of the volumes of a StatefulSet, first and afterwards.
func TestKeptOrdinals(t *testing.T) {
	whole, err := sequence.New([]sequence.Pool{{Name: "od", Labels: map[string]string{"p": "od"}, Weight: 1}, {Name: "spot", Labels: map[string]string{"p": "spot"}, Weight: 1}}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	p := &policy.Policy{Layout: testkit.Layout(whole, layout.Workload{})}
	has := func(ordinals ...string) map[string]bool {
		out := map[string]bool{}
		for _, o := range ordinals {
			out[o] = true
		}
		return out
	}
	was := func(ordinals map[string]string) *stowage.KeptOrdinals {
		return &stowage.KeptOrdinals{Ordinals: ordinals}
	}
	for name, tc := range map[string]struct {
		known   *stowage.KeptOrdinals
		claimed map[string]bool
		runs    map[string]string
		want    map[string]string
	}{
		"the first record":              {claimed: has("0", "1", "7"), runs: map[string]string{"0": "od", "1": "spot", "2": "spot"}, want: map[string]string{"0": "od", "1": "spot", "7": ""}},
		"a pod that runs elsewhere now": {known: was(map[string]string{"0": "od"}), claimed: has("0"), runs: map[string]string{"0": "spot"}, want: map[string]string{"0": "od"}},
		"a claim that is gone":          {known: was(map[string]string{"0": "od", "1": "spot"}), claimed: has("1"), want: map[string]string{"1": "spot"}},
		"all claims are gone":           {known: was(map[string]string{"0": "od"})},
		"a claim that came later":       {known: was(map[string]string{"0": "od"}), claimed: has("0", "1"), runs: map[string]string{"1": "spot"}, want: map[string]string{"0": "od"}},
		"a pod without a node then":     {known: was(map[string]string{"0": ""}), claimed: has("0"), runs: map[string]string{"0": "spot"}, want: map[string]string{"0": "spot"}},
		"a pool that is no more":        {known: was(map[string]string{"0": "arm", "1": "arm"}), claimed: has("0", "1"), runs: map[string]string{"0": "od"}, want: map[string]string{"0": "od", "1": ""}},
		"no claims at all":              {},
	} {
		if diff := cmp.Diff(tc.want, keptOrdinals(p, tc.known, tc.claimed, tc.runs)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Claims of other sets, and names that no claim of the set has, are no claims of it.
func TestOrdinalOfClaim(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	for _, name := range []string{"data", "logs"} {
		set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for claim, want := range map[string]string{
		"data-web-0": "0", "logs-web-12": "12", "data-my-web-5": "", "data-web-00": "", "data-web--1": "", "data-web-": "", "other-web-1": "", "data-web-1x": "", "data-web-9999999999": "",
	} {
		if got, ok := ordinalOfClaim(set, claim); ok != (want != "") || ok && got != want {
			t.Errorf("%s is of pod %q, %t", claim, got, ok)
		}
	}
}

// An invalid strategy of a StatefulSet with volumes has no domains and no pools to look at.
func TestVolumesOfAnInvalidStrategy(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "db"}}
	set.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: "nonsense"}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	b := newBench(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, set)
	there := map[types.UID]bool{}
	if b.lookForVolumes(t.Context(), there); len(there) != 0 {
		t.Errorf("it looks at %v", there)
	}
}
