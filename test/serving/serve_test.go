package serving

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// load creates peer pods from several clients until it is told to stop, and
// returns how many it created and how many of those nobody converted.
func load(t *testing.T, n *tenant) (stop func() (created, missed int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var total, unconverted atomic.Int64
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				p := suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1", "").Obj()
				p.Name = fmt.Sprintf("p-%d-%d", i, j)
				if err := n.Create(ctx, p, client.DryRunAll); err != nil {
					if ctx.Err() == nil {
						t.Errorf("create: %v", err)
					}
					return
				}
				total.Add(1)
				if p.Annotations[stowage.DefaultVCPUsAnnotation] == "" {
					unconverted.Add(1)
				}
			}
		})
	}
	return func() (int, int) {
		// What was disturbed meanwhile must have met some pods.
		enough := total.Load() + 20
		eventually(t, "some more pods are created", func() (bool, error) { return total.Load() >= enough || t.Failed(), nil })
		cancel()
		clients.Wait()
		return int(total.Load()), int(unconverted.Load())
	}
}

// A burst reaches every replica, and each counts what it did.
func TestConcurrentBurstReachesEveryReplica(t *testing.T) {
	n := newTenant(t)
	replicas := cluster.Replicas()
	before := make([]float64, len(replicas))
	for i, r := range replicas {
		before[i] = metric(t, r, "stowage_admissions_total", `outcome="applied"`)
	}
	rs := suite.ReplicaSet(n.Namespace, "burst", suite.PeerPod().Container("a", "cpu=1", ""), 60)
	must(t, n.Create(t.Context(), rs))
	eventually(t, "all pods are created", func() (bool, error) {
		var pods corev1.PodList
		err := n.List(t.Context(), &pods, client.InNamespace(n.Namespace))
		for i := range pods.Items {
			if pods.Items[i].Annotations[stowage.DefaultVCPUsAnnotation] != "1" {
				return false, fmt.Errorf("pod %s is no peer pod", pods.Items[i].Name)
			}
		}
		return len(pods.Items) == 60, err
	})
	total := 0.0
	for i, r := range replicas {
		got := metric(t, r, "stowage_admissions_total", `outcome="applied"`) - before[i]
		if got == 0 {
			t.Errorf("replica %d was not called", i)
		}
		total += got
	}
	if total != 60 {
		t.Errorf("%v conversions were counted, want 60", total)
	}
}

// A replica that is asked to end answers what it has begun, and a rolling
// replacement of all replicas lets no pod through unconverted.
func TestShutdownDrainsRequests(t *testing.T) {
	n := newTenant(t)
	restoreFleet(t)
	stop := load(t, n)
	must(t, cluster.StartStowage(t.Context(), fleet)) // starts new replicas, then ends the old ones
	first := cluster.Replicas()[0]
	if err := first.Terminate(20 * time.Second); err != nil {
		t.Errorf("the replica ended with %v", err)
	}
	created, missed := stop()
	if created == 0 || missed > 0 {
		t.Errorf("%d of %d pods were not converted; the API server says:\n%s", missed, created, failedCalls(t))
	}
}

// failedCalls returns what the API server says of webhooks that it could not call.
func failedCalls(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(cluster.Logs, "kube-apiserver.log"))
	must(t, err)
	var out strings.Builder
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "failed calling webhook") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// Without any replica, pods are created as they are.
func TestFailsOpenWithoutReplicas(t *testing.T) {
	n := newTenant(t)
	restoreFleet(t)
	for _, r := range cluster.Replicas() {
		r.Kill()
	}
	p := n.CreatePod(t, suite.PeerPod().Container("a", "cpu=1", ""))
	if p.Annotations[stowage.DefaultVCPUsAnnotation] != "" {
		t.Error("somebody converted the pod")
	}
}

// A renewed certificate, a lost Secret and an overwritten caBundle never keep the
// API server from calling us.
func TestCertificateRotation(t *testing.T) {
	n := newTenant(t)
	secretKey := client.ObjectKey{Namespace: controlplane.StowageNamespace, Name: "stowage-webhook-cert"}
	bundle := func() []byte {
		var reg admissionregistrationv1.MutatingWebhookConfiguration
		must(t, n.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg))
		return reg.Webhooks[0].ClientConfig.CABundle
	}
	served := func(r *controlplane.Replica) string {
		conn, err := tls.Dial("tcp", r.WebhookAddr, &tls.Config{InsecureSkipVerify: true})
		must(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String() + conn.ConnectionState().PeerCertificates[0].NotBefore.String() + string(conn.ConnectionState().PeerCertificates[0].Signature)
	}
	t.Run("the Secret is deleted", func(t *testing.T) {
		var old []string
		for _, r := range cluster.Replicas() {
			old = append(old, served(r))
		}
		stop := load(t, n)
		var secret corev1.Secret
		must(t, n.Get(t.Context(), secretKey, &secret))
		must(t, n.Delete(t.Context(), &secret))
		eventually(t, "it is written back", func() (bool, error) {
			var again corev1.Secret
			err := n.Get(t.Context(), secretKey, &again)
			return bytes.Equal(again.Data["tls.crt"], secret.Data["tls.crt"]), client.IgnoreNotFound(err)
		})
		for i, r := range cluster.Replicas() {
			if served(r) != old[i] {
				t.Errorf("replica %d serves another certificate", i)
			}
		}
		created, missed := stop()
		if created == 0 || missed > 0 {
			t.Errorf("%d of %d pods were not converted; the API server says:\n%s", missed, created, failedCalls(t))
		}
	})
	t.Run("the certificate is broken", func(t *testing.T) {
		oldBundle := bundle()
		var old []string
		for _, r := range cluster.Replicas() {
			old = append(old, served(r))
		}
		stop := load(t, n)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretKey.Namespace, Name: secretKey.Name}}
		must(t, n.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(`{"data":{"tls.crt":"bm9uZQ=="}}`))))
		oldCA := oldBundle[:bytes.Index(oldBundle, []byte("-----END"))]
		eventually(t, "the old and the new authority are trusted", func() (bool, error) {
			b := bundle()
			return bytes.Contains(b, oldCA) && bytes.Count(b, []byte("-----BEGIN")) > bytes.Count(oldBundle, []byte("-----BEGIN")), nil
		})
		for i, r := range cluster.Replicas() {
			eventually(t, "every replica serves the new certificate", func() (bool, error) { return served(r) != old[i], nil })
		}
		created, missed := stop()
		if created == 0 || missed > 0 {
			t.Errorf("%d of %d pods were not converted; the API server says:\n%s", missed, created, failedCalls(t))
		}
	})
	t.Run("the caBundle is overwritten", func(t *testing.T) {
		want := bundle()
		reg := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
		must(t, n.Patch(t.Context(), reg, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`))))
		// Only what is still of use: the authority of what is served.
		current := want[:bytes.Index(want, []byte("-----END"))]
		eventually(t, "it is put back", func() (bool, error) { return bytes.HasPrefix(bundle(), current), nil })
	})
}

// The processes have the permissions of config/rbac, and they suffice.
func TestPermissions(t *testing.T) {
	for _, account := range controlplane.Accounts {
		t.Run(account, func(t *testing.T) { testPermissions(t, account) })
	}
	for _, r := range cluster.Processes() {
		log, err := os.ReadFile(r.Log)
		must(t, err)
		for line := range strings.Lines(string(log)) {
			// An API server without the feature gate WatchList forbids that form of a watch.
			if strings.Contains(line, "forbidden") && !strings.Contains(line, "sendInitialEvents") {
				t.Errorf("a permission is missing: %s", line)
			}
		}
	}
}

func testPermissions(t *testing.T, account string) {
	kubeconfig, err := cluster.StowageKubeconfig(t.Context(), account)
	must(t, err)
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	c, err := client.New(cfg, client.Options{})
	must(t, err)
	var secrets corev1.SecretList
	if err := c.List(t.Context(), &secrets); !apierrors.IsForbidden(err) {
		t.Errorf("Stowage may list all Secrets: %v", err)
	}
	var secret corev1.Secret
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: controlplane.StowageNamespace, Name: "another"}, &secret); !apierrors.IsForbidden(err) {
		t.Errorf("Stowage may read another Secret: %v", err)
	}
	var configs corev1.ConfigMapList
	if err := c.List(t.Context(), &configs); !apierrors.IsForbidden(err) {
		t.Errorf("Stowage may list ConfigMaps, which nothing needs: %v", err)
	}
	own := testkit.Pod("own").Container("c", "", "").Obj()
	if err := c.Create(t.Context(), own, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("Stowage may create pods, which nothing needs: %v", err)
	}
	if err := c.Delete(t.Context(), own, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("Stowage may delete pods past their budgets, which nothing needs: %v", err)
	}
	if account == "stowage" {
		// The network reaches its processes.
		for what, err := range map[string]error{
			"patch pods":                 c.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(`{}`)), client.DryRunAll),
			"evict pods":                 c.SubResource("eviction").Create(t.Context(), own, &policyv1.Eviction{}, client.DryRunAll),
			"change the certificate":     c.Patch(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: "stowage-webhook-cert"}}, client.RawPatch(types.MergePatchType, []byte(`{}`)), client.DryRunAll),
			"change its registration":    c.Patch(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}, client.RawPatch(types.MergePatchType, []byte(`{}`)), client.DryRunAll),
			"change nodes":               c.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "od4-1"}}, client.RawPatch(types.MergePatchType, []byte(`{}`)), client.DryRunAll),
			"take the controllers' lead": c.Get(t.Context(), client.ObjectKey{Namespace: controlplane.StowageNamespace, Name: "stowage-leader"}, &coordinationv1.Lease{}),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("the webhook may %s: %v", what, err)
			}
		}
	}
}

// One log line for each pod that was changed, and none of its contents.
func TestLogLine(t *testing.T) {
	n := newTenant(t)
	n.CreatePod(t, suite.PeerPod().Container("a", "cpu=1", ""))
	var lines []string
	eventually(t, "the line is written", func() (bool, error) {
		lines = nil
		for _, r := range cluster.Replicas() {
			log, err := os.ReadFile(r.Log)
			if err != nil {
				return false, err
			}
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, n.Namespace) && strings.Contains(line, "pod changed") {
					lines = append(lines, line)
				}
			}
		}
		return len(lines) > 0, nil
	})
	var entry map[string]any
	must(t, json.Unmarshal([]byte(lines[0]), &entry))
	if len(lines) != 1 || entry["level"] != "INFO" || entry["pod"] != "p" || entry["namespace"] != n.Namespace || entry["uid"] == "" {
		t.Errorf("lines: %q", lines)
	}
}

// With --cert-dir, the files' certificate is served, and a new one when they change.
func TestCertificateRotationFromFiles(t *testing.T) {
	dir := t.TempDir()
	generate := func() { must(t, controlplane.WriteServingCertificate(dir)) }
	generate()
	r, err := cluster.StartReplica(t.Context(), controlplane.StowageOptions{Binary: binary, Args: []string{"--cert-dir=" + dir}})
	must(t, err)
	t.Cleanup(func() { _ = r.Terminate(10 * time.Second) })
	served := func() string {
		conn, err := tls.Dial("tcp", r.WebhookAddr, &tls.Config{InsecureSkipVerify: true})
		must(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	old := served()
	generate()
	eventually(t, "the new certificate is served", func() (bool, error) { return served() != old, nil })

	for name, cfg := range map[string]*tls.Config{
		"TLS 1.1 is refused": {InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		if conn, err := tls.Dial("tcp", r.WebhookAddr, cfg); err == nil {
			_ = conn.Close()
			t.Errorf("%s: it was accepted", name)
		}
	}
}
