package refusal

import (
	"strings"
	"testing"
)

// spread is what a policy adds to the pods of web, and peer what a RuntimeClass of peer pods does.
var (
	spread = Added{
		{Field: NodeSelector, Key: "type", Values: []string{"default"}, By: "SpreadPolicy p"}, {Field: NodeSelector, Key: "type", Values: []string{"spot"}, By: "SpreadPolicy p"},
		{Field: Toleration, Key: "example.com/spot", Values: []string{"yes"}, By: "SpreadPolicy p"},
		{Field: Label, Key: "tier", Values: []string{"cheap"}, By: "SpreadPolicy p"}, {Field: PriorityClass, Key: "low", By: "SpreadPolicy p"}, {Field: GracePeriod, By: "SpreadPolicy p"},
		{Field: Label, Key: "stowage.dev/pool", Own: true, By: "SpreadPolicy p"}, {Field: Annotation, Key: "stowage.dev/claim", Own: true, By: "SpreadPolicy p"},
		{Field: Annotation, Key: "controller.kubernetes.io/pod-deletion-cost", Own: true, By: "SpreadPolicy p"},
	}
	peer = Added{
		{Field: VM, Key: "kata.peerpods.io/vm", By: "RuntimeClass kata-remote"}, {Field: Requests, By: "RuntimeClass kata-remote"},
		{Field: Annotation, Key: "io.katacontainers.config.hypervisor.default_vcpus", Own: true, By: "RuntimeClass kata-remote"},
	}
	// few is a policy whose pods only prefer their pool, and which adds nothing else that others could name.
	few = Added{{Field: NodeAffinity, Key: "type", Values: []string{"spot"}, By: "SpreadPolicy p"}, {Field: Label, Key: "stowage.dev/pool", Own: true, By: "SpreadPolicy p"}}
)

// What each refusal is about. The texts are those of API server 1.37, Gatekeeper 3, Kyverno 1.1x, and of policies of the field.
func TestJudge(t *testing.T) {
	t.Parallel()
	vap := func(says string) string {
		return `pods "web-5d4f-x2x" is forbidden: ValidatingAdmissionPolicy 'c3' with binding 'c3' denied request: ` + says
	}
	kyverno := func(says string) string {
		return "admission webhook \"validate.kyverno.svc-fail\" denied the request: \n\nresource Pod/shop/web-5d4f-x2x was blocked due to the following policies \n\nrules:\n  rule: '" + says + "'"
	}
	gatekeeper := func(says string) string {
		return `admission webhook "validation.gatekeeper.sh" denied the request: [tenants] ` + says
	}
	for name, tc := range map[string]struct {
		text  string
		added Added
		want  Verdict
		parts string // a part of what is blamed
	}{
		// What Stowage adds.
		"plain words for node selectors":             {vap("node selectors are not for tenants"), spread, Ours, "the node selector type=default or type=spot (SpreadPolicy p)"},
		"the expression of a policy without words":   {vap("failed expression: !has(object.spec.nodeSelector)"), spread, Ours, "the node selector"},
		"Kyverno about a field":                      {kyverno("validation error: Setting the nodeSelector field is prohibited. rule restrict-node-selection failed at path /spec/nodeSelector/"), spread, Ours, "the node selector"},
		"the namespace's own selector":               {`pods "web-5d4f-x2x" is forbidden: pod node label selector conflicts with its namespace node label selector`, spread, Ours, "the node selector"},
		"the value of a plain key":                   {gatekeeper(`nodes with type: spot are for batch`), spread, Ours, "the node selector type=spot (SpreadPolicy p)"},
		"a node affinity":                            {vap("no affinity, please"), few, Ours, "the node affinity type=spot"},
		"tolerations":                                {`pods "web-5d4f-x2x" is forbidden: pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist`, spread, Ours, "the toleration example.com/spot=yes"},
		"a toleration by its key":                    {kyverno("example.com/spot may not be used in this namespace"), spread, Ours, "the toleration example.com/spot=yes"},
		"a label of ours":                            {vap("label stowage.dev/pool is not in the list of labels"), spread, Ours, "the label stowage.dev/pool (SpreadPolicy p)"},
		"all keys of ours":                           {vap("keys of stowage.dev/ are reserved"), spread, Ours, "the label stowage.dev/pool, the annotation stowage.dev/claim"},
		"the deletion cost":                          {gatekeeper("annotation <controller.kubernetes.io/pod-deletion-cost> is not allowed"), spread, Ours, "the annotation controller.kubernetes.io/pod-deletion-cost"},
		"a label of a pool":                          {gatekeeper(`label tier=cheap is for the platform team`), spread, Ours, "the label tier=cheap"},
		"a PriorityClass that is not there":          {`pods "web-5d4f-x2x" is forbidden: no PriorityClass with name low was found`, spread, Ours, "the PriorityClass low"},
		"a PriorityClass without a quota":            {`pods "web-5d4f-x2x" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [low]}]`, spread, Ours, "the PriorityClass low"},
		"a grace period":                             {vap("the grace period must not be changed"), spread, Ours, "a shorter grace period"},
		"an event of a StatefulSet":                  {`create Pod web-0 in StatefulSet web failed error: pods "web-0" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: nodeSelector is set`, spread, Ours, "the node selector"},
		"a policy of fields that Kubernetes forbids": {`Pod "web-5d4f-x2x" is invalid: spec.tolerations[0].key: Invalid value: "a b"`, spread, Ours, "the toleration"},
		// Peer pods.
		"a LimitRange's minimum":    {`pods "web-5d4f-x2x" is forbidden: [minimum memory usage per Container is 128Mi.  No request is specified, minimum cpu usage per Container is 100m.  No request is specified]`, peer, Ours, "a VM in place of requests and limits (RuntimeClass kata-remote)"},
		"a LimitRange's ratio":      {`pods "web-5d4f-x2x" is forbidden: cpu max limit to request ratio per Container is 2, but no request is specified or request is 0`, peer, Ours, "a VM in place"},
		"a quota of requests":       {`pods "web-5d4f-x2x" is forbidden: failed quota: small: must specify limits.cpu for: c; requests.memory for: c`, peer, Ours, "a VM in place"},
		"a quota of VMs":            {`pods "web-5d4f-x2x" is forbidden: exceeded quota: vms, requested: requests.kata.peerpods.io/vm=1, used: requests.kata.peerpods.io/vm=2, limited: requests.kata.peerpods.io/vm=2`, peer, Ours, "the resource kata.peerpods.io/vm"},
		"a policy of requests":      {kyverno("validation error: CPU and memory resource requests and memory limits are required for containers. rule validate-resources failed at path /spec/containers/0/resources/requests/"), peer, Ours, "a VM in place"},
		"an annotation of Kata":     {vap("io.katacontainers.config.hypervisor.default_vcpus is set by the platform"), peer, Ours, "the annotation io.katacontainers.config.hypervisor.default_vcpus"},
		"a quota of CPU":            {`pods "web-5d4f-x2x" is forbidden: exceeded quota: small, requested: cpu=1, used: cpu=4, limited: cpu=4`, peer, Other, ""},
		"a policy of both features": {vap("node selectors are not for tenants"), append(append(Added{}, spread...), peer...), Ours, "the node selector type=default or type=spot (SpreadPolicy p)"},
		// What is not known.
		"no reason":                             {vap("tenants of tier 2 have no more pods"), spread, Unknown, "the node selector"},
		"an empty reason":                       {`admission webhook "x.example.com" denied the request without explanation`, spread, Unknown, "the node selector"},
		"some label":                            {vap("labels are not as they should be"), spread, Unknown, "the labels tier=cheap and stowage.dev/pool"},
		"some annotation":                       {gatekeeper("too many annotations"), spread, Unknown, "the annotations stowage.dev/claim"},
		"the name of a policy is no proof":      {`pods "web-5d4f-x2x" is forbidden: ValidatingAdmissionPolicy 'node-selectors' with binding 'b' denied request: ask the platform team`, spread, Unknown, "the node selector"},
		"a quota, and a PriorityClass is given": {`pods "web-5d4f-x2x" is forbidden: exceeded quota: low-only, requested: pods=1, used: pods=2, limited: pods=2`, spread, Unknown, "the PriorityClass low"},
		"a quota that wants limits, and a PriorityClass is given": {`pods "web-5d4f-x2x" is forbidden: failed quota: low-only: must specify limits.cpu for: c`, spread, Unknown, "the PriorityClass low"},
		// What Stowage has no part in.
		"a LimitRange's maximum and a peer pod's overhead": {`pods "web-5d4f-x2x" is forbidden: maximum cpu usage per Pod is 1m, but request is 250m`, peer, Other, ""},
		"a quota of pods":                         {`pods "web-5d4f-x2x" is forbidden: exceeded quota: labels, requested: pods=1, used: pods=2, limited: pods=2`, few, Other, ""},
		"a quota of CPU of other pods":            {`pods "web-5d4f-x2x" is forbidden: exceeded quota: node-selector, requested: requests.cpu=1, used: requests.cpu=4, limited: requests.cpu=4`, few, Other, ""},
		"a LimitRange of other pods":              {`pods "web-5d4f-x2x" is forbidden: maximum cpu usage per Pod is 1m, but limit is 2`, spread, Other, ""},
		"requests of other pods":                  {kyverno("validation error: CPU and memory resource requests are required"), spread, Other, ""},
		"Pod Security":                            {`pods "web-5d4f-x2x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "label" must set securityContext.runAsNonRoot=true)`, spread, Other, ""},
		"a service account":                       {`pods "web-5d4f-" is forbidden: error looking up service account shop/nobody: serviceaccount "nobody" not found`, spread, Other, ""},
		"images":                                  {gatekeeper(`container <app> has an invalid image repo <docker.io/x>, allowed repos are ["registry.example.com"]`), spread, Other, ""},
		"images with a label":                     {vap("images have no label of their source"), spread, Other, ""},
		"the type of a volume":                    {gatekeeper("volume type: hostPath is not allowed"), spread, Other, ""},
		"a label that is missing":                 {kyverno("validation error: The label `team` is required. rule check-for-labels failed at path /metadata/labels/team/"), spread, Other, ""},
		"labels to provide":                       {gatekeeper(`you must provide labels: {"team"}`), spread, Other, ""},
		"probes":                                  {kyverno("validation error: Liveness and readiness probes are required."), spread, Other, ""},
		"a field that this policy does not write": {vap("node selectors are not for tenants"), few, Other, ""},
		"tolerations, and this policy has none":   {vap("tolerations are not allowed"), few, Other, ""},
		"affinity to other pods":                  {vap("pod anti-affinity is for the platform"), few, Other, ""},
		"the name of the workload":                {`pods "node-selector-5d4f-x2x" is forbidden: violates the rules of images`, spread, Other, ""},
		"a label, and a field that this policy does not write": {vap("labels and tolerations are for the platform"), few, Unknown, "the label stowage.dev/pool"},
		"a label that a pool gives is required":                {kyverno("validation error: The label `example.com/zone` is required."), Added{{Field: Label, Key: "example.com/zone", By: "p"}}, Unknown, "example.com/zone"},
		"the name of a pod":                                    {gatekeeper("pod node-selector-5d4fc6-x2xbc is one too many"), spread, Unknown, "a shorter grace period"},
		"a failure":                                            {"Internal error occurred: resource quota evaluation timed out", spread, Other, ""},
		"nothing is added":                                     {vap("node selectors are not for tenants"), nil, Other, ""},
		"a webhook of others is not there":                     {`Internal error occurred: failed calling webhook "validate.nodeselector.example.com": failed to call webhook: Post "https://x.y.svc:443/": connection refused`, spread, Other, ""},
		"a name like ours":                                     {`Internal error occurred: failed calling webhook "pods.notstowage.dev": connection refused`, spread, Other, ""},
		"our webhook is not there":                             {`Internal error occurred: failed calling webhook "pods-fail.stowage.dev": failed to call webhook: Post "https://stowage-webhook.stowage-system.svc:443/mutate-v1-pod?timeout=5s": no endpoints available for service "stowage-webhook"`, spread, NoAnswer, ""},
		"our webhook is not there for pods of no policy":       {`Internal error occurred: failed calling webhook "pods-fail.stowage.dev": connection refused`, nil, NoAnswer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workload := "web"
			if strings.Contains(tc.text, `node-selector-5d4f`) {
				workload = "node-selector"
			}
			got := Judge(tc.text, workload, tc.added)
			if got.Verdict != tc.want || !strings.Contains(got.Parts.String(), tc.parts) || tc.parts == "" && len(got.Parts) > 0 {
				t.Errorf("%s\nis judged %d, about %q; want %d, about %q", tc.text, got.Verdict, got.Parts, tc.want, tc.parts)
			}
			if tc.want == Ours && tc.parts != "" && strings.HasPrefix(tc.parts, "the node selector type=default") && got.Parts.String() != tc.parts {
				t.Errorf("it blames %q", got.Parts)
			}
		})
	}
}

// What tenants write is bounded, whatever they write.
func TestBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<16)
	var many Added
	for i := range 300 {
		many.Add(Part{Field: Annotation, Key: strings.Repeat("k", i+1) + "/x", Values: []string{long}, By: "PodDistributor p"})
		many.Add(Part{Field: Annotation, Key: strings.Repeat("k", i+1) + "/x", Values: []string{long}, By: "PodDistributor p"})
	}
	if len(many) != 300 {
		t.Errorf("there are %d parts", len(many))
	}
	if text := many.String(); len(text) > 1000 || !strings.Contains(text, " and others (PodDistributor p)") {
		t.Errorf("%d bytes: %.2000s", len(text), text)
	}
	if got := Judge(long+" nodeSelector", "web", Added{{Field: NodeSelector, Key: "a"}}); got.Verdict != Other {
		t.Errorf("what is far behind was read: %v", got)
	}
}

// Each part that somebody asked for has another way, and those of Stowage itself have none.
func TestWays(t *testing.T) {
	t.Parallel()
	if n := len(spread.Ways()); n != 6 {
		t.Errorf("%d ways: %q", n, spread.Ways())
	}
	if ways := strings.Join(few.Ways(), "; "); !strings.Contains(ways, "nodeSelector alone") {
		t.Error(ways)
	}
	if ways := (Added{{Field: Label, Key: "stowage.dev/pool", Own: true}}).Ways(); len(ways) > 0 {
		t.Errorf("%q", ways)
	}
}
