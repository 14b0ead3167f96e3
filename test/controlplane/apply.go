package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/api"
)

// fieldManager owns what this package applies.
const fieldManager = client.FieldOwner("stowage-local")

// Scheme has the kinds of Kubernetes and Stowage's own.
var Scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := api.AddToScheme(s); err != nil {
		panic(err) // only a program that is wrong in itself gets here
	}
	return s
}()

func newClient(cfg *rest.Config) (client.Client, error) {
	return client.New(cfg, client.Options{Scheme: Scheme})
}

// ApplyFiles applies every object in the files, in order, by server-side apply.
func (c *Cluster) ApplyFiles(ctx context.Context, files ...string) error {
	for _, file := range files {
		objects, err := ReadObjects(file)
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, objects...); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// ApplyYAML applies the objects of a manifest by server-side apply.
func (c *Cluster) ApplyYAML(ctx context.Context, manifest string) error {
	objects, err := ParseObjects([]byte(manifest))
	if err != nil {
		return err
	}
	return c.Apply(ctx, objects...)
}

// Apply applies objects by server-side apply. A node's status is applied too, so
// that fake nodes have the size that their file says.
func (c *Cluster) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, obj := range objects {
		status := obj.Object["status"]
		if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj.DeepCopy()), fieldManager, client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %q: %w", obj.GetKind(), obj.GetName(), err)
		}
		if obj.GetKind() != "Node" || status == nil {
			continue
		}
		node := &unstructured.Unstructured{Object: map[string]any{"status": status}}
		node.SetGroupVersionKind(obj.GroupVersionKind())
		node.SetName(obj.GetName())
		if err := c.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(node), fieldManager, client.ForceOwnership); err != nil {
			return fmt.Errorf("apply the status of node %q: %w", obj.GetName(), err)
		}
	}
	return nil
}

// ReadObjects reads the objects of a manifest file.
func ReadObjects(file string) ([]*unstructured.Unstructured, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	objects, err := ParseObjects(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return objects, nil
}

// ParseObjects reads the objects of a manifest.
func ParseObjects(data []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &u.Object); err != nil {
			return nil, err
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}

// ReplaceNodes applies fake nodes, and removes those that were applied before and are
// not among them.
func (c *Cluster) ReplaceNodes(ctx context.Context, nodes []*unstructured.Unstructured) error {
	if err := c.Apply(ctx, nodes...); err != nil {
		return err
	}
	var have corev1.NodeList
	if err := c.Client.List(ctx, &have); err != nil {
		return err
	}
	for i := range have.Items {
		n := &have.Items[i]
		ours := slices.ContainsFunc(n.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == string(fieldManager) })
		if wanted := slices.ContainsFunc(nodes, func(o *unstructured.Unstructured) bool { return o.GetName() == n.Name }); !ours || wanted {
			continue
		}
		if err := c.Client.Delete(ctx, n); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove node %q: %w", n.Name, err)
		}
	}
	return nil
}

// WaitForNodes returns when the cluster has n nodes and each is ready.
func (c *Cluster) WaitForNodes(ctx context.Context, n int) error {
	ready := 0
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		var nodes corev1.NodeList
		if err := c.Client.List(ctx, &nodes); err != nil {
			if meta.IsNoMatchError(err) {
				return false, err
			}
			return false, nil
		}
		ready = 0
		for i := range nodes.Items {
			if nodeReady(&nodes.Items[i]) {
				ready++
			}
		}
		return ready >= n && ready == len(nodes.Items), nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d nodes are ready after %s: %w", ready, n, startTimeout.Round(time.Second), err)
	}
	return nil
}

// nodeReady reports whether a pod could be scheduled on the node now.
func nodeReady(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return false
		}
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}
