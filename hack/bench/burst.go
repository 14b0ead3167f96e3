package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
)

var floorPatchBase64 = base64.StdEncoding.EncodeToString([]byte(floorPatch))

// benchCase is a namespace whose pods one webhook sees, or none.
type benchCase struct {
	name     string
	webhook  string                      // value of the namespace's label
	peer     bool                        // the pods are peer pods
	spread   bool                        // the workload has a strategy
	template flexdaemonsets.UpdatePolicy // of the DaemonSet's template, if it has one
}

const (
	caseNone  = "no webhook"
	caseFloor = "floor"
)

var cases = []benchCase{
	{name: caseNone, webhook: "none"},
	{name: caseFloor, webhook: "floor"},
	{name: "stowage, pods of no interest", webhook: "stowage"},
	{name: "stowage, peer pods", webhook: "stowage", peer: true},
	{name: "stowage, spread", webhook: "stowage", spread: true},
}

// webhookLabel is the namespace label that says which webhook sees its pods.
const webhookLabel = "bench.stowage.dev/webhook"

type bench struct {
	*controlplane.Cluster
	options options
	binary  string // Stowage's
	results map[string][]result
	last    map[string]time.Duration // how long the last burst of each case took until the last pod was created
	serial  int
}

// setUp limits Stowage's registration to its namespaces and adds the floor's.
func (b *bench) setUp(ctx context.Context, floor *admissionregistrationv1.WebhookClientConfig) error {
	for _, name := range []string{stowage.DefaultRuntimeClass, "runc"} {
		if err := b.Client.Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: name}); err != nil {
			return err
		}
	}
	// Peer pods must have VMs enough.
	if err := b.setCapacity(ctx, stowage.DefaultVMResource, 500); err != nil {
		return err
	}
	reg := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
	patch := fmt.Sprintf(`[{"op":"add","path":"/webhooks/0/namespaceSelector","value":{"matchLabels":{%q:"stowage"}}}]`, webhookLabel)
	if err := b.Client.Patch(ctx, reg, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
		return err
	}
	hook := *reg.Webhooks[0].DeepCopy()
	hook.Name = "floor.bench.stowage.dev"
	hook.ClientConfig = *floor
	hook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{webhookLabel: "floor"}}
	return b.Client.Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "floor"}, Webhooks: []admissionregistrationv1.MutatingWebhook{hook},
	})
}

// setCapacity gives every node an amount of a resource.
func (b *bench) setCapacity(ctx context.Context, name corev1.ResourceName, amount int64) error {
	var nodes corev1.NodeList
	if err := b.Client.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		before := n.DeepCopy()
		for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
			list[name] = *resource.NewQuantity(amount, resource.DecimalSI)
		}
		if err := b.Client.Status().Patch(ctx, n, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	return nil
}

// namespace makes a namespace whose pods one webhook sees, and waits until it takes pods.
func (b *bench) namespace(ctx context.Context, name, webhook string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{webhookLabel: webhook}}}
	if err := b.Client.Create(ctx, ns); err != nil {
		return nil, err
	}
	return ns, b.until(ctx, func(ctx context.Context) (bool, error) {
		err := b.Client.Get(ctx, client.ObjectKey{Namespace: ns.Name, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// burst scales new Deployments up from zero, and removes them again.
func (b *bench) burst(ctx context.Context, bc benchCase) (result, error) {
	b.serial++
	ns, err := b.namespace(ctx, fmt.Sprintf("bench-%d", b.serial), bc.webhook)
	if err != nil {
		return result{}, err
	}
	for i := range b.options.deployments {
		d := deployment(ns.Name, bc)
		d.Name = fmt.Sprintf("burst-%d", i)
		d.Spec.Selector.MatchLabels["app"] = d.Name // the template has the same map
		if b.options.unscheduled {
			d.Spec.Template.Spec.SchedulerName = "nobody"
		}
		if err := b.Client.Create(ctx, d); err != nil {
			return result{}, err
		}
	}
	if err := b.until(ctx, func(ctx context.Context) (bool, error) { // they have their ReplicaSets
		var list appsv1.DeploymentList
		err := b.Client.List(ctx, &list, client.InNamespace(ns.Name))
		return !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool { return d.Status.ObservedGeneration != d.Generation }), err
	}); err != nil {
		return result{}, err
	}
	if err := quiet(ctx); err != nil {
		return result{}, err
	}
	r, err := b.grow(ctx, ns, bc)
	if err != nil {
		return result{}, err
	}
	return r, b.clean(ctx, ns, bc)
}

// grow scales the Deployments of a namespace up, and measures that.
func (b *bench) grow(ctx context.Context, ns *corev1.Namespace, bc benchCase) (r result, err error) {
	before, err := b.apiRequests()
	if err != nil {
		return r, err
	}
	callsBefore, err := b.callTimes(ctx)
	if err != nil {
		return r, err
	}
	programsBefore, err := programs()
	if err != nil {
		return r, err
	}
	profiled := b.profile(ctx, bc)
	start := time.Now()
	var list appsv1.DeploymentList
	if err := b.Client.List(ctx, &list, client.InNamespace(ns.Name)); err != nil {
		return r, err
	}
	for i := range list.Items {
		if err := b.setReplicas(ctx, &list.Items[i], int32(b.options.pods/b.options.deployments)); err != nil {
			return r, err
		}
	}
	if err := b.until(ctx, func(ctx context.Context) (bool, error) {
		// The counts that the controllers keep cost the API server next to nothing
		// to read, unlike a list of all pods.
		if err := b.Client.List(ctx, &list, client.InNamespace(ns.Name)); err != nil {
			return false, err
		}
		created, ready := 0, 0
		for i := range list.Items {
			created, ready = created+int(list.Items[i].Status.Replicas), ready+int(list.Items[i].Status.ReadyReplicas)
		}
		if r.created == 0 && created == b.options.pods {
			r.created = time.Since(start)
			if r.programs, err = programs(); err != nil {
				return false, err
			}
			for name := range r.programs {
				r.programs[name] -= programsBefore[name]
			}
		}
		r.ready = time.Since(start)
		if b.options.unscheduled {
			return r.created > 0, nil
		}
		return ready == b.options.pods, nil
	}); err != nil {
		return r, err
	}
	after, err := b.apiRequests()
	if err != nil {
		return r, err
	}
	r.requests = (after - before) / float64(b.options.pods)
	calls, err := b.callTimes(ctx)
	if err != nil {
		return r, err
	}
	r.within = calls.within(callsBefore)
	return r, profiled()
}

// clean checks that the webhook of the case has seen the pods, and removes them.
func (b *bench) clean(ctx context.Context, ns *corev1.Namespace, bc benchCase) error {
	var pods corev1.PodList
	if err := b.Client.List(ctx, &pods, client.InNamespace(ns.Name)); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !bc.seen(p) {
			return fmt.Errorf("pod %s was not seen by its webhook", p.Name)
		}
	}
	return b.remove(ctx, ns)
}

// seen reports whether the webhook of the case, and no other one, has seen a pod.
func (bc benchCase) seen(p *corev1.Pod) bool {
	_, floored := p.Spec.NodeSelector["kubernetes.io/os"]
	_, converted := p.Annotations[stowage.OriginalResourcesAnnotation]
	_, seated := p.Labels[stowage.SeatLabel]
	_, sized := p.Labels[stowage.SizedByLabel]
	return floored == (bc.name == caseFloor) && converted == bc.peer && seated == bc.spread && sized == (bc.template != "")
}

// remove deletes a namespace and waits until its pods are gone.
func (b *bench) remove(ctx context.Context, ns *corev1.Namespace) error {
	// The workloads go first: their controllers would try to replace pods that the namespace's deletion removes.
	for _, workload := range []client.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}} {
		if err := b.Client.DeleteAllOf(ctx, workload, client.InNamespace(ns.Name), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	if err := b.Client.Delete(ctx, ns); err != nil {
		return err
	}
	return b.until(ctx, func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		err := b.Client.List(ctx, &pods, client.InNamespace(ns.Name))
		return len(pods.Items) == 0, err
	})
}

// spreadStrategy is the documented one: a base of 1, then two pools in turns.
const spreadStrategy = "nodesize=od4vcpu16gb,base=1,weight=0:nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"

func deployment(namespace string, bc benchCase) *appsv1.Deployment {
	labels := map[string]string{"app": "burst"}
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "burst", Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(0)),
					Containers:                    []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: list}}},
				},
			},
		},
	}
	if bc.spread {
		d.Annotations = map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: spreadStrategy}
	}
	if bc.peer {
		d.Spec.Template.Spec.RuntimeClassName = new(stowage.DefaultRuntimeClass)
	}
	return d
}

func (b *bench) until(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 2*time.Minute, true, condition)
}

// apiRequests returns how many requests all replicas of Stowage have sent to the API
// server.
func (b *bench) apiRequests() (float64, error) { return b.requests("") }
