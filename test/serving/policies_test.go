package serving

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/test/suite"
)

// A cluster that has the kinds of an older version has no policies. Everything else works, and says so. Once the kinds are there, policies
// have an effect without a restart. A kind that lacks a field shows in the status which fields are left.
func TestPoliciesOfAnOlderCluster(t *testing.T) {
	n := newTenant(t)
	files := []string{filepath.Join(repo, "config", "crd", "bases", "stowage.dev_spreadpolicies.yaml"), filepath.Join(repo, "config", "crd", "bases", "stowage.dev_clusterspreadpolicies.yaml")}
	apply := func() {
		eventually(t, "the kinds are applied", func() (bool, error) {
			return cluster.ApplyFiles(context.Background(), files...) == nil, nil // those that end refuse it
		})
	}
	t.Cleanup(apply)
	restoreFleet(t) // before the kinds come back for those that come next
	for _, name := range []string{"spreadpolicies.stowage.dev", "clusterspreadpolicies.stowage.dev"} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName(name)
		must(t, client.IgnoreNotFound(n.Delete(t.Context(), crd)))
		eventually(t, name+" is gone", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKey{Name: name}, crd)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
	}
	o := fleet
	o.Installed = true // the kinds do not come back with the replicas
	must(t, cluster.StartStowage(t.Context(), o))
	served := func(want float64) {
		t.Helper()
		eventuallyWithin(t, 2*suite.WaitTimeout, fmt.Sprintf("the metric of the kinds is %v", want), func() (bool, error) {
			for _, r := range cluster.Processes() {
				if metric(t, r, "stowage_policy_kinds_served", "") != want {
					return false, nil
				}
			}
			return true, nil
		})
	}
	served(0)
	must(t, n.Create(t.Context(), n.Deployment("annotated", 10, annotated(eightyOf))))
	n.Spreads(t, "annotated", 10, strategyOf(t, eightyOf))
	said := func(what, command string, exit int, parts ...string) {
		t.Helper()
		eventually(t, what, func() (bool, error) {
			out, _, is := suite.CLI(t, cluster, command, "-n", n.Namespace)
			return is == exit && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(out, part) }), nil
		})
	}
	const missing = "is one of the kinds of Stowage that do not exist (clusterspreadpolicies.stowage.dev, spreadpolicies.stowage.dev)"
	said("status finds nothing wrong but the kinds", "status", 3, missing, "1 problem")
	said("check says so, too", "check", 3, "Stowage answered", missing)

	// The kinds of a version without the field rebalance: the API server removes it, and the status says which fields are left.
	older := &unstructured.Unstructured{}
	data, err := os.ReadFile(files[0])
	must(t, err)
	must(t, yaml.Unmarshal(data, &older.Object))
	versions, _, err := unstructured.NestedSlice(older.Object, "spec", "versions")
	must(t, err)
	unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "rebalance")
	must(t, unstructured.SetNestedSlice(older.Object, versions, "spec", "versions"))
	eventually(t, "the kinds are applied", func() (bool, error) {
		return cluster.Apply(t.Context(), older.DeepCopy()) == nil && cluster.ApplyFiles(t.Context(), files[1]) == nil, nil // those that end refuse it
	})
	served(1)
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "new"}, Spec: stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: suite.PoolsOf(1, 50, 50), Rebalance: versprei.RebalanceEvict}}
	eventually(t, "a policy can be created", func() (bool, error) {
		err := n.Create(t.Context(), p.DeepCopy())
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	eventually(t, "the status shows that the field is not there", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return slices.Contains(p.Status.ObservedFields, "mode") && !slices.Contains(p.Status.ObservedFields, "rebalance"), err
	})

	const changed = "CustomResourceDefinition/spreadpolicies.stowage.dev"
	said("status says which kind is older, and what it lacks", "status", 3, changed+": is older than this command, and lacks spec.rebalance: the API server drops it")
	said("check says so, too", "check", 3, "Stowage answered", changed+": is older than this command, and lacks spec.rebalance", "kubectl apply --server-side -k config/crd")

	// Whoever writes it again with the kinds of this version finds it there.
	apply()
	said("check finds the kinds of this version", "check", 0, "Stowage answered")
	priority := 0 // a watch of before the kinds were applied may show one more edit without the field
	eventuallyWithin(t, 2*suite.WaitTimeout, "the status shows that the field is there", func() (bool, error) {
		priority++
		if err := n.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"rebalance":"Evict","priority":%d}}`, priority))); err != nil {
			return false, err
		}
		return slices.Contains(p.Status.ObservedFields, "rebalance"), nil
	})
	must(t, n.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	n.Follows(t, nil, p.UID, p.Generation)
	must(t, n.Create(t.Context(), n.Deployment("selected", 7, nil)))
	n.Spreads(t, "selected", 7, suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(p)))
	eventually(t, "the status names the fields that there are", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return slices.Contains(p.Status.ObservedFields, "pools[].nodeSelector") && slices.Contains(p.Status.ObservedFields, "mode") && !slices.Contains(p.Status.ObservedFields, "enforcement"), err
	})
}
