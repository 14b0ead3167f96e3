package migrate

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// hostile ends a comment, and goes on with an object that makes its author an administrator.
const hostile = "X\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n"

// No text of the input adds a line to a note or to an error, whichever character ends lines for its reader.
func TestNamesStayOnOneLine(t *testing.T) {
	for name, end := range map[string]string{"line feed": "\n", "carriage return": "\r", "next line": "\u0085", "line separator": "\u2028", "paragraph separator": "\u2029", "escape": "\x1b[2J", "no UTF-8": "\xff"} {
		t.Run(name, func(t *testing.T) {
			env := agent(t, percentage)
			list := []any{
				map[string]any{"name": datadogEnv + "PERCENTAGE", "value": "60"},
				map[string]any{"name": datadogEnv + "X" + end + hostile, "value": "1"},
			}
			if err := unstructured.SetNestedSlice(env.Object, list, "spec", "override", "clusterAgent", "env"); err != nil {
				t.Fatal(err)
			}
			own := workload(t, "")
			own.SetAnnotations(map[string]string{datadogPrefix + "spot-percentage": "3", datadogPrefix + "spot-x" + end + hostile: "x"})
			out, err := Datadog([]*unstructured.Unstructured{env, own}, options)
			if err != nil || len(out) != 2 || len(out[0].Notes) == 0 || len(out[1].Notes) == 0 {
				t.Fatal(out, err)
			}
			for _, note := range append(out[0].Notes, out[1].Notes...) {
				if strings.Contains(note, end) || strings.Contains(note, "\n") {
					t.Errorf("%q has the end of a line", note)
				}
			}
			if !strings.Contains(out[0].Notes[0], `_X`) || !strings.Contains(out[0].Notes[0], `\n---\napiVersion`) {
				t.Errorf("the note does not quote the name: %s", out[0].Notes[0])
			}
		})
	}
}

// A workload whose kind, namespace or name no API server stores is refused, by a message of one line.
func TestImpossibleObjects(t *testing.T) {
	for field, change := range map[string]func(*unstructured.Unstructured){
		"apiVersion":         func(u *unstructured.Unstructured) { u.SetAPIVersion("apps/v1" + hostile) },
		"kind":               func(u *unstructured.Unstructured) { u.SetKind("Deployment" + hostile) },
		"metadata.namespace": func(u *unstructured.Unstructured) { u.SetNamespace("shop" + hostile) },
		"metadata.name":      func(u *unstructured.Unstructured) { u.SetName("web" + hostile) },
	} {
		u := workload(t, datadogPrefix+`spot-percentage: "3"`)
		change(u)
		out, err := Datadog([]*unstructured.Unstructured{u}, options)
		if err == nil || !strings.Contains(err.Error(), ": "+field+" is ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", field, out, err)
		}
	}
}

// Workloads of one name and two kinds have two PodDistributors, also when the input has only one of them. A name that was cut stays
// a name, and another one than that of a like workload.
func TestDistributorNames(t *testing.T) {
	deployment, statefulSet := workload(t, datadogPrefix+`spot-percentage: "3"`), workload(t, datadogPrefix+`spot-percentage: "5"`)
	statefulSet.SetKind("StatefulSet")
	both, err := Datadog([]*unstructured.Unstructured{deployment, statefulSet}, options)
	if err != nil || len(both) != 2 {
		t.Fatal(both, err)
	}
	for i, want := range []string{"web-deployment", "web-statefulset"} {
		if p := both[i].Object.(*versprei.PodDistributor); p.Name != want || p.Spec.Target.Name != "web" {
			t.Errorf("the PodDistributor of %s is %s; want %s", p.Spec.Target.Kind, p.Name, want)
		}
	}
	if alone, err := Datadog([]*unstructured.Unstructured{deployment}, options); err != nil || alone[0].Object.(*versprei.PodDistributor).Name != "web-deployment" {
		t.Errorf("alone: %v, %v", alone, err)
	}
	long := strings.Repeat("a", 252)
	first, second := distributorName(long+"b", "Deployment"), distributorName(long+"c", "Deployment")
	if first == second || len(validation.IsDNS1123Subdomain(first)) > 0 {
		t.Errorf("long names become %s and %s", first, second)
	}
}

// What the input has twice is refused: one of the two would replace the other.
func TestTwice(t *testing.T) {
	other := agent(t, percentage)
	other.SetNamespace("other")
	own := datadogPrefix + `spot-percentage: "3"`
	rollout := workload(t, own)
	rollout.SetAPIVersion("example.org/v1")
	for want, objects := range map[string][]*unstructured.Unstructured{
		"the input has 2 DatadogAgents (datadog, other/datadog)":              {agent(t, percentage), workload(t, ""), other},
		"Deployment shop/web: the input has it twice; leave one in the input": {workload(t, own), rollout},
	} {
		if out, err := Datadog(objects, options); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", want, out, err)
		}
	}
}
