package resources

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// directly posts a review about a peer pod to a replica, past the API server.
func directly(t *testing.T, namespace string, check func(allowed bool) error) error {
	t.Helper()
	p := suite.PeerPod().Namespace(namespace).Container("a", "cpu=1", "").Obj()
	answer, err := suite.Review(cluster.Replicas()[0], p)
	must(t, err)
	return check(answer.Allowed)
}

// preview runs `stowage preview` over objects and what the cluster has of that they
// depend on: RuntimeClasses and nodes, as kubectl prints them.
func preview(t *testing.T, objects ...client.Object) []corev1.Pod {
	t.Helper()
	bin, err := controlplane.Locate(repo)
	must(t, err)
	input, err := exec.Command(bin.Kubectl, "--kubeconfig", cluster.Kubeconfig, "get", "runtimeclasses,nodes", "-o", "json").Output()
	must(t, err)
	for _, o := range objects {
		gvk, err := apiutil.GVKForObject(o, controlplane.Scheme)
		must(t, err)
		o.GetObjectKind().SetGroupVersionKind(gvk)
		data, err := json.Marshal(o)
		must(t, err)
		input = append(input, data...)
	}
	cmd := exec.Command(binary, "preview", "-f", "-", "-o", "json")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("preview: %v\n%s", err, stderr.String())
	}
	var list corev1.PodList
	must(t, json.Unmarshal(out, &list))
	return list.Items
}
