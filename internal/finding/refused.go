package finding

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Refused fills in why the API server refuses the pods of a workload, and whether that is because of what Stowage adds to them.
func (v *Values) Refused(text, workload string, added refusal.Added) {
	answer := refusal.Judge(text, workload, added)
	v.Text, v.Refusal, v.Objects, v.Fix = text, answer.Verdict, answer.Parts.String(), strings.Join(answer.Parts.Ways(), "; or ")
}

// Proven has a refusal be one of what Stowage adds, as a dry run with and without that has shown, also where the text does not name it.
func (v *Values) Proven(added refusal.Added) {
	if v.Refusal != refusal.Ours {
		v.Objects, v.Fix = added.String(), strings.Join(added.Ways(), "; or ")
	}
	v.Refusal, v.DryRun = refusal.Ours, true
}

// mostRefusal is how many bytes a sentence has of the API server's message, so that what follows has room.
const mostRefusal = 1 << 10

// refused is the sentence of [PodsRefused].
func (f *Finding) refused() string {
	text := fmt.Sprintf("%d of %d pods exist, because the API server refuses to create more: ", f.Count, f.Of)
	switch {
	case f.DryRun:
		text = "the API server accepts new pods only without what Stowage gives them: "
	case f.Count >= f.Of: // those of the older revision
		text = "the API server refuses to create what the newest revision asks for: "
	}
	text += bounded.Text(f.Text, mostRefusal)
	switch f.Refusal {
	case refusal.Ours:
		return text + "; Stowage gives pods " + f.Objects
	case refusal.Unknown:
		return text + "; whether that is because of what Stowage gives pods is not known: " + f.Objects
	case refusal.NoAnswer:
		return text + "; no replica of Stowage's webhook answered, and with failure policy Fail no pod is created then"
	}
	return text
}

// afterRefusal is the remedy of [PodsRefused].
func (f *Finding) afterRefusal() string {
	audit := "the label " + stowage.ModeKey + "=" + string(stowage.ModeAudit) + " on the namespace"
	if f.ByPolicy {
		audit = "mode: Audit in " + f.Source
	}
	switch f.Refusal {
	case refusal.Ours:
		instead := ifElse(f.Annotated, "in a SpreadPolicy in place of the annotation, ", "") // an annotation has no such settings
		return "have what refuses the pods allow it" + ifElse(f.Fix == "", "", "; or "+instead+f.Fix) + "; until then, " + audit + " lets new pods come as they are written"
	case refusal.Unknown:
		return "correct what the message names; kubectl stowage check -n " + f.Namespace + " asks the API server for such a pod with and without what Stowage gives it, in a dry run; if that is the cause, " + audit + " lets new pods come as they are written"
	case refusal.NoAnswer:
		return "see why no replica answers: kubectl stowage check -n " + f.Namespace + "; where pods matter more than their division, set the failure policy to Ignore (" + stowage.FailurePolicyLabel + ", webhook.failurePolicy)"
	}
	return "correct what the message names: the pod template, a quota, LimitRange or admission policy, or an object that is missing"
}
