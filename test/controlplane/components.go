package controlplane

import (
	"bytes"
	"fmt"
	"strings"
)

// layout is where a cluster's parts listen and keep their files. The functions
// below turn it into each program's arguments.
type layout struct {
	pki            *pki
	network        *Network
	etcdData       string
	etcdPort       int
	etcdPeerPort   int
	apiPort        int
	admin          string // kubeconfigs
	controllers    string
	scheduler      string
	webhooks       string // the certificate that the API server shows to webhooks
	admission      string // names webhooks
	kwokConfig     string
	kwokServerPort int
}

func (l *layout) etcdURL() string { return "http://" + loopback(l.etcdPort) }

func (l *layout) apiURL() string {
	if l.network != nil {
		return fmt.Sprintf("https://%s:%d", l.network.Address, l.apiPort)
	}
	return "https://" + loopback(l.apiPort)
}

func (l *layout) etcdArgs() []string {
	peer := "http://" + loopback(l.etcdPeerPort)
	return []string{
		"--name=local",
		"--data-dir=" + l.etcdData,
		"--listen-client-urls=" + l.etcdURL(),
		"--advertise-client-urls=" + l.etcdURL(),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=local=" + peer,
		"--unsafe-no-fsync", // the data does not outlive the processes
		"--log-level=warn",
	}
}

func (l *layout) apiServerArgs() []string {
	where := []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
	}
	if l.network != nil {
		where = []string{
			"--bind-address=0.0.0.0",
			"--advertise-address=" + l.network.Address,
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--kubelet-client-certificate=" + l.pki.file("admin.crt"),
			"--kubelet-client-key=" + l.pki.file("admin.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--allow-privileged=true",
		}
	}
	return append(where,
		"--etcd-servers="+l.etcdURL(),
		fmt.Sprintf("--secure-port=%d", l.apiPort),
		"--tls-cert-file="+l.pki.file("apiserver.crt"),
		"--tls-private-key-file="+l.pki.file("apiserver.key"),
		"--client-ca-file="+l.pki.file("ca.crt"),
		"--admission-control-config-file="+l.admission,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+l.pki.file("service-account.key"),
		"--service-account-signing-key-file="+l.pki.file("service-account.key"),
		"--service-cluster-ip-range=10.0.0.0/16",
		"--profiling=false",
	)
}

// admissionConfiguration has the API server show a certificate to webhooks that ask for one, as docs/how-to/authenticate.md says.
func (l *layout) admissionConfiguration() []byte {
	var text bytes.Buffer
	text.WriteString("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n")
	for _, plugin := range []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"} {
		fmt.Fprintf(&text, "- name: %s\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %q}\n", plugin, l.webhooks)
	}
	return text.Bytes()
}

func (l *layout) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + l.controllers,
		"--service-account-private-key-file=" + l.pki.file("service-account.key"),
		"--root-ca-file=" + l.pki.file("ca.crt"),
		"--use-service-account-credentials",
		"--leader-elect=false",
		"--secure-port=0",
		// At the default of 20 requests per second, 500 pods take 25 seconds
		// whatever the webhook does.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}
}

func (l *layout) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + l.scheduler,
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}
}

func (l *layout) kwokArgs() []string {
	return []string{
		"--kubeconfig=" + l.admin,
		"--config=" + l.kwokConfig,
		"--manage-all-nodes=true",
		"--cidr=10.128.0.0/9",
		"--node-ip=127.0.0.1",
		"--server-address=" + loopback(l.kwokServerPort),
		"--node-lease-duration-seconds=40",
	}
}

// AdaptorLabel is on pods that kwok leaves to a test, which plays the program that makes their VMs.
const AdaptorLabel = "made-by"

// kwokConfiguration joins stage files into one configuration file. No stage makes a pod ready that has [AdaptorLabel].
func kwokConfiguration(stages [][]byte) []byte {
	parts := make([]string, len(stages))
	for i, s := range stages {
		parts[i] = strings.TrimSpace(string(s))
		if strings.Contains(parts[i], "name: pod-ready\n") {
			left := fmt.Sprintf("    matchExpressions:\n    - key: '.metadata.labels.\"%s\"'\n      operator: 'DoesNotExist'\n", AdaptorLabel)
			parts[i] = strings.Replace(parts[i], "    matchExpressions:\n", left, 1)
		}
	}
	return []byte(strings.Join(parts, "\n---\n") + "\n")
}
