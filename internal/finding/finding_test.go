package finding

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"unicode"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Each reason has a row, each row has all that a page prints, and what has to be acted upon has a remedy.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, r := range Reasons() {
		f := r.Example()
		if f.Reason != r || f.Kind == "" || f.Name == "" {
			t.Errorf("%s: the example is about %s", r, f.Object())
		}
		for what, text := range map[string]string{"meaning": r.Means(), "sentence": f.Sentence(), "text": f.String()} {
			if text == "" || strings.Contains(text, "%!") || strings.Contains(text, "  ") {
				t.Errorf("%s: the %s is %q", r, what, text)
			}
		}
		if !strings.HasSuffix(r.Means(), ".") || strings.HasSuffix(f.String(), ".") {
			t.Errorf("%s: a meaning is a sentence with a full stop, and what is printed has none: %q, %q", r, r.Means(), f)
		}
		if remedy := f.Remedy(); remedy == "" && r.Severity() == Problem && r != NotReached {
			t.Errorf("%s has no remedy", r)
		}
	}
}

// The event of a hindrance has no pods of a pool to count.
func TestOfHindrance(t *testing.T) {
	t.Parallel()
	f := OfHindrance(&stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: "x", Pool: "spot", Objects: []string{"a", "b"}})
	if want := "the eviction of pod x has been refused: by PodDisruptionBudgets a and b"; f.Sentence() != want {
		t.Errorf("%s, want %s", f.Sentence(), want)
	}
}

// What tenants write does not reach a terminal as it is, and a reason of a newer version is printed.
func TestPrintable(t *testing.T) {
	t.Parallel()
	hostile := "\x1b]0;pwned\x07\u009b31m\u202e\r\nProblem: x\xff" + strings.Repeat("x", 3000)
	for _, f := range []Finding{
		{Reason: TemplateMissing, Kind: "DaemonSet", Name: "ds", Values: Values{Other: hostile}},
		{Reason: "SomethingNew", Values: Values{Text: hostile}},
		{Reason: IgnoredSetting, Values: Values{Text: "x", Fix: hostile}},
	} {
		text := f.String()
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || len(text) > 3*mostText || len(text) < 100 {
			t.Errorf("%s: %q", f.Reason, text)
		}
	}
}

// However long the API server's message is, what Stowage has to do with it follows, and a dry run that shows it stands over the text.
func TestRefused(t *testing.T) {
	t.Parallel()
	added := refusal.Added{{Field: refusal.NodeSelector, Key: "type", Values: []string{"spot"}, By: "SpreadPolicy p"}}
	f := Finding{Reason: PodsRefused, Values: Values{Count: 1, Of: 2}}
	f.Refused("denied: node selectors are not for tenants"+strings.Repeat("x", 30<<10), "web", added)
	if text := f.Sentence(); !strings.HasSuffix(text, "...; Stowage gives pods the node selector type=spot (SpreadPolicy p)") {
		t.Error(text)
	}
	f = Finding{Reason: PodsRefused}
	f.Refused("denied: images are not from here", "web", added)
	if f.Refusal != refusal.Other || strings.Contains(f.String(), "Stowage") {
		t.Error(f.String())
	}
	f.Proven(added)
	if text := f.String(); !strings.Contains(text, "only without what Stowage gives them: denied: images are not from here; Stowage gives pods the node selector type=spot") || !strings.Contains(text, "enforcement: Preferred") {
		t.Error(text)
	}
}

// No reason is without a row.
func TestEachReasonHasARow(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "table.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range Reasons() {
		known[string(r)] = true
	}
	constants := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if decl, ok := n.(*ast.GenDecl); ok && decl.Tok != token.CONST {
			return false
		}
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			constants++ // a reason of a hindrance is not written here
			if text, ok := spec.Values[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
				if !known[strings.Trim(text.Value, `"`)] {
					t.Errorf("%s has no row", spec.Names[0].Name)
				}
			}
		}
		return true
	})
	if constants != len(known) {
		t.Errorf("%d constants, and %d rows", constants, len(known))
	}
}

// The sentences and remedies that depend on values.
func TestSentences(t *testing.T) {
	t.Parallel()
	web := func(r Reason, v Values) *Finding {
		return &Finding{Reason: r, Namespace: "ns", Kind: "Deployment", Name: "web", Values: v}
	}
	about := func(kind string, r Reason, v Values) *Finding {
		return &Finding{Reason: r, Namespace: "ns", Kind: kind, Name: "x", Values: v}
	}
	const rollOut = "roll out (kubectl -n ns rollout restart deployment/web)"
	const sourceGone = "no strategy divides these pods any more, and they still wait for a node of pool a, which their seat has them select; "
	for _, tc := range []struct {
		f    *Finding
		want string
	}{
		{web(OverTarget, Values{Pool: "a", Count: 3, Of: 2, Annotated: true, Staying: 9}), "pool a has 3 pods and should have 2; " + rollOut + ", or set the annotation stowage.dev/rebalance: Evict beside the strategy"},
		{web(OverTarget, Values{Pool: "a", Count: 3, Of: 2, Source: "SpreadPolicy p", Adopted: 1}), "pool a has 3 pods and should have 2: 1 of them were there before Stowage divided them; " + rollOut + ", or set rebalance: Evict in SpreadPolicy p"},
		{web(OverTarget, Values{Pool: "a", Count: 3, Of: 2, Evict: true, Staying: 2}), "pool a has 3 pods and should have 2; wait: Stowage evicts one pod after the other"},
		{web(PodHeld, Values{Pool: "a", Count: 3, Of: 2, Text: "1 stays"}), "pool a has 3 pods and should have 2: 1 stays; none is needed; to move them, " + rollOut},
		{web(EvictionRefused, Values{Pool: "a", Count: 3, Of: 2, Other: "x", Objects: "b and c", Several: true}), "pool a has 3 pods and should have 2: the eviction of pod x has been refused: by PodDisruptionBudgets b and c; have one PodDisruptionBudget select the pods, because the API server evicts no pod that two select; or " + rollOut},
		{web(EvictionRefused, Values{Other: "x", Objects: "b", Since: "t", Seen: "last seen at u by v"}), "the eviction of pod x has been refused since t: by PodDisruptionBudget b (last seen at u by v); wait until it allows a disruption, or change it; or " + rollOut},
		{web(EvictionRefused, Values{Other: "x", Text: "no"}), "the eviction of pod x has been refused: no; correct what refuses evictions, or " + rollOut},
		{web(NoRoomForRebalance, Values{Objects: "b and c", Several: true, Since: "t"}), "no node of pools b and c has had room for another pod since t, so none is evicted; add nodes to that pool, or make room there; Stowage looks again by itself"},
		{web(WithoutSeat, Values{Count: 1, Source: "SpreadPolicy p", ByPolicy: true, Staying: 1}), "1 pod(s) have no seat: they were created before the SpreadPolicy p, or bypassed the webhook; " + rollOut + "; 1 of them have a claim or an annotation that may keep them where they run"},
		{web(WithoutSeat, Values{Count: 1, Source: "x", Recreates: true}), "1 pod(s) have no seat: they were created before the x, or bypassed the webhook; wait: Stowage gives them a seat or recreates them, unless its controllers are down"},
		{web(WithoutSeat, Values{Count: 1, Source: "x", Recreates: true, Text: "or else"}), "1 pod(s) have no seat: they were created before the x, or bypassed the webhook, or else; wait: Stowage gives them a seat or recreates them, unless its controllers are down"},
		{about("StatefulSet", SourceGone, Values{Pool: "a", Recreates: true}), sourceGone + "wait: Stowage recreates them, unless stowage.dev/repair is Off or stowage.dev/mode is not Enforce; or delete these pods, so that their owner creates others without a pool, or write the strategy again"},
		{about("StatefulSet", SourceGone, Values{Pool: "a", Recreates: true, NoMoves: true}), sourceGone + "first correct the problem that stops Stowage from recreating pods; then wait: Stowage recreates them, unless stowage.dev/repair is Off or stowage.dev/mode is not Enforce; or delete these pods, so that their owner creates others without a pool, or write the strategy again"},
		{about("RayJob", SourceGone, Values{Pool: "a"}), sourceGone + "delete these pods, so that their owner creates others without a pool, or write the strategy again; Stowage does not recreate them"},
		{about("Job", SourceGone, Values{Pool: "a", Recreates: true}), sourceGone + "create the Job again, because it counts a pod that is deleted as failed, or write its strategy again; Stowage recreates the pods only of a Job that is not Indexed and whose podFailurePolicy ignores disruptions"},
		{web(OutsidePool, Values{Count: 1, Preferred: true}), "1 pod(s) are outside the pool of their seat, as enforcement Preferred allows; make room in the pool, and " + rollOut},
		{web(OverInDomain, Values{Count: 1, Evict: true}), "1 pod(s) are in a domain that has too many of their pool; " + rollOut},
		{web(PodsRefused, Values{Count: 2, Of: 5, Text: "no"}), "2 of 5 pods exist, because the API server refuses to create more: no; correct what the message names: the pod template, a quota, LimitRange or admission policy, or an object that is missing"},
		{web(PodsRefused, Values{Count: 5, Of: 5, Text: "no", Refusal: refusal.Unknown, Objects: "the node selector a=b (SpreadPolicy p)", Source: "SpreadPolicy p", ByPolicy: true}), "the API server refuses to create what the newest revision asks for: no; whether that is because of what Stowage gives pods is not known: the node selector a=b (SpreadPolicy p); correct what the message names; kubectl stowage check -n ns asks the API server for such a pod with and without what Stowage gives it, in a dry run; if that is the cause, mode: Audit in SpreadPolicy p lets new pods come as they are written"},
		{web(PodsRefused, Values{Count: 2, Of: 5, Text: "no", Refusal: refusal.Ours, Objects: "the node selector a=b (PodDistributor d)", Fix: "go", Source: "PodDistributor d"}), "2 of 5 pods exist, because the API server refuses to create more: no; Stowage gives pods the node selector a=b (PodDistributor d); have what refuses the pods allow it; or go; until then, the label stowage.dev/mode=Audit on the namespace lets new pods come as they are written"},
		{web(PodsRefused, Values{Count: 2, Of: 5, Text: "no", Refusal: refusal.Ours, Objects: "the node selector a=b (annotation)", Fix: "go", Annotated: true}), "2 of 5 pods exist, because the API server refuses to create more: no; Stowage gives pods the node selector a=b (annotation); have what refuses the pods allow it; or in a SpreadPolicy in place of the annotation, go; until then, the label stowage.dev/mode=Audit on the namespace lets new pods come as they are written"},
		{web(PodsRefused, Values{Count: 2, Of: 5, Text: "no", Refusal: refusal.NoAnswer}), "2 of 5 pods exist, because the API server refuses to create more: no; no replica of Stowage's webhook answered, and with failure policy Fail no pod is created then; see why no replica answers: kubectl stowage check -n ns; where pods matter more than their division, set the failure policy to Ignore (stowage.dev/failure-policy, webhook.failurePolicy)"},
		{web(Progressing, Values{Count: 2, Of: 2}), "pods are being created or removed"},
		{about("ReplicaSet", PoolRemoved, Values{Count: 1, Source: "x"}), "1 pod(s) are in a pool that was removed from the strategy; roll out: have its pods created again, or set rebalance: Evict in x"},
		{about("ReplicaSet", PoolRemoved, Values{Count: 1, Evict: true}), "1 pod(s) are in a pool that was removed from the strategy; wait: Stowage evicts one pod after the other"},
		{about("Job", PoolRemoved, Values{Count: 1, Evict: true}), "1 pod(s) are in a pool that was removed from the strategy; let the Job end, or create it again: Stowage evicts none of its pods"},
		{about("Job", JobUneven, Values{Pool: "a", Count: 3, Of: 2, Evict: true}), "pool a has 3 pods and should have 2 of those that are left: pods that have ended are not counted, in whatever pool they were; none is needed: Stowage evicts none of a Job's pods, and divides those that it still creates"},
		{web(InvalidPolicy, Values{Source: "annotation of Deployment web", Text: "x"}), "the annotation of Deployment web is invalid, so that it divides no pods: x; correct the strategy"},
		{&Finding{Reason: InvalidPolicy, Kind: "ClusterSpreadPolicy", Name: "p", Values: Values{Text: "x"}}, "is invalid, so that it divides no pods: x; correct it, or delete it: kubectl edit clusterspreadpolicy p"},
		{about("Pod", WebhookBypassed, Values{Other: "kata", Text: "vm"}), "RuntimeClass kata without vm: the webhook was bypassed; delete the pod and create it again"},
		{about("Service", NoAnswer, Values{Missing: true}), "does not exist, and the registration names it; install it again, or correct the registration"},
		{about("Service", NoAnswer, Values{Other: "stowage"}), "none of the 0 pod(s) behind it is ready; kubectl -n ns describe pods -l app.kubernetes.io/name=stowage"},
		{about("Service", NoAnswer, Values{Of: 2, Other: "stowage"}), "none of the 2 pod(s) behind it is ready; kubectl -n ns describe pods -l app.kubernetes.io/name=stowage"},
		{about("MutatingWebhookConfiguration", NoAnswer, Values{Text: "refused"}), "refused; see whether Stowage runs, and whether the API server reaches the port of its pods"},
		{about("Deployment", ReplicasNotReady, Values{Of: 2, Text: "an outage"}), "0 of 2 replicas are ready: an outage; kubectl -n ns describe pods -l app.kubernetes.io/name=x"},
		{about("ConfigMap", InvalidLimit, Values{Text: "no number"}), "its limit is refused, and the last valid one holds: no number; correct PEERPODS_LIMIT_PER_NODE"},
		{about("FlexDaemonsetTemplate", OffSize, Values{Text: "2 of another size", Other: "Resizing"}), "2 of another size"},
		{web(FitsNoNode, Values{}), "the pod template chooses nodes itself, and no node is as it asks; remove its node selector and affinity, so that the strategy divides its pods, or correct them"},
		{web(FitsNoNode, Values{Pool: "a"}), "no node of pool a has what the node selector or affinity of the pod template asks for; correct the pod template, or label nodes of the pool"},
		{web(FitsNoNode, Values{VM: true}), "no node is as the node selector or affinity of the pod asks; correct them in the pod template, or label nodes"},
		{web(FitsNoNode, Values{VM: true, Other: "kata"}), "no node is as the node selector or affinity of the pod asks; correct them in the pod template and in RuntimeClass kata (scheduling), or label nodes"},
	} {
		if got := tc.f.String(); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.f.Reason, got, tc.want)
		}
	}
}
