// Package finding has what is not as it should be, as values: a reason, what it is about, and numbers and names. Producers make them of what they
// know, and write no sentence. One table says for each reason what it means, its sentence and its remedy. The conditions of objects, `kubectl stowage
// status` and `explain`, and the page docs/reasons.md are printed from that table. Nothing compares sentences.
package finding

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Reason Reason
	// Namespace, Kind and Name are of the object that it is about.
	Namespace, Kind, Name string
	Values
}

// Values are what sentences are made of. Each reason has those that its row of the table reads.
type Values struct {
	Count, Of int64 // such as the pods that have it, of those that there are
	Pool      string
	Labels    string // of the pool's nodes
	Source    string // what divides the pods, such as "PodDistributor web"
	Other     string // the name of another object
	In        string // the namespace of Other
	Objects   string // what hinders, as a list of names, and whether there are several
	Several   bool
	Since     string // when it began
	At        string // when it ends
	Filter    string // the Filter plugin of kube-scheduler that refuses pods
	Seen      string // when it was seen, if that is long ago
	Text      string // by somebody else, such as the message of an error
	Fix       string // that goes with Text
	// Refusal is whether Text, of the API server, is about what Stowage adds to pods. Objects are those parts. DryRun says that a dry run has shown it.
	Refusal refusal.Verdict
	DryRun  bool
	// Annotated says that Source is an annotation, and ByPolicy that it is a SpreadPolicy or a ClusterSpreadPolicy.
	Annotated, ByPolicy bool
	// Evict says that pods of pools with too many are evicted. Preferred says that pods only prefer their pool, and Recreates that pods are
	// recreated that have no seat, or one of a strategy that is gone.
	Evict, Preferred, Recreates bool
	// RepairOff says that Stowage leaves the pods as they are, whatever Evict says.
	RepairOff bool
	Rollout
	// NoNodes are the pools that should have pods and have no node, with their labels, and Cordoned those whose nodes are all cordoned. New pods of
	// them wait unless pods only prefer their pool, so a rollout would take down pods that run.
	NoNodes, Cordoned string
	// NoWebhook says that the webhook does not answer now, so that new pods would get neither a seat nor a size.
	NoWebhook bool
	// NoMoves says that Stowage moves no pods now, because of a problem of its own.
	NoMoves bool
	// VM says that a pod is one of a VM, whose RuntimeClass may choose nodes, too.
	VM bool
	// Missing says that the object does not exist.
	Missing bool
	// Adopted are the pods that ran before they got their seat. Staying are those that a claim or an annotation may keep where they run.
	Adopted, Staying int64
}

// Severity says what a finding asks of its reader.
type Severity int

// The severities.
const (
	Problem Severity = iota // somebody has to act
	Note                    // it is good to know
	Passing                 // it passes by itself
)

// Object names what the finding is about, as kind/name in one word.
func (f *Finding) Object() string { return Object(f.Kind, f.Name) }

// Object names an object for a line of text, as kind/name in one word. A tenant may write both in an owner reference, with line breaks.
func Object(kind, name string) string { return bounded.Name(kind) + "/" + bounded.Name(name) }

// Sentence says what is not as it should be, without the object's name.
func (f *Finding) Sentence() string {
	row, known := table[f.Reason]
	if !known { // of a newer version
		return Printable(strings.TrimSpace(fmt.Sprintf("%s %s %s %s", f.Reason, f.Other, f.Objects, f.Text)))
	}
	text := row.sentence(f)
	if f.Seen != "" {
		text += " (" + f.Seen + ")"
	}
	return Printable(text)
}

// mostText is how many bytes a sentence or a remedy has. Tenants write the names and messages in it.
const mostText = 2048

// Printable returns a text for a terminal, shortened.
func Printable(text string) string { return bounded.Printable(bounded.Text(text, mostText)) }

// Remedy says what to do about it. It is empty where nothing is to be done.
func (f *Finding) Remedy() string {
	if remedy := table[f.Reason].remedy; remedy != nil {
		return Printable(remedy(f))
	}
	return ""
}

// String is the sentence with the remedy.
func (f *Finding) String() string {
	if remedy := f.Remedy(); remedy != "" {
		return f.Sentence() + "; " + remedy
	}
	return f.Sentence()
}

// Severity returns that of the reason.
func (r Reason) Severity() Severity { return table[r].severity }

// Means says in a sentence what the reason stands for, whatever it is about.
func (r Reason) Means() string { return table[r].means }

// Example returns a finding of the reason, for the page of reasons.
func (r Reason) Example() *Finding {
	f := table[r].example
	f.Reason = r
	return &f
}

// orEvict is how else to have Stowage move pods, where it may.
func (f *Finding) orEvict() string {
	switch {
	case f.Kind == "Job", f.RepairOff && !f.Evict: // somebody wants it so
		return ""
	case f.RepairOff:
		return fmt.Sprintf(", or remove the annotation %s, which is %s: then Stowage evicts one pod after the other", stowage.RepairAnnotation, stowage.RepairOff)
	case f.Evict:
		return ""
	case f.Annotated:
		return fmt.Sprintf(", or set the annotation %s: Evict beside the strategy", stowage.RebalanceAnnotation)
	}
	return ", or set rebalance: Evict in " + f.Source
}

// Evicts reports whether Stowage evicts pods of pools with too many, of a workload of a kind.
func (v *Values) Evicts(kind string) bool { return v.Evict && !v.RepairOff && kind != "Job" }

// wait is to wait until Stowage has moved the pods one after the other.
func (f *Finding) wait() string {
	return f.noMoves("evicting pods") + "wait: Stowage evicts one pod after the other"
}

// noMoves says what is to be done first where Stowage moves no pods because of a problem of its own.
func (f *Finding) noMoves(doing string) string {
	return ifElse(f.NoMoves, "first correct the problem that stops Stowage from "+doing+"; then ", "")
}

// kept says that something may keep some of the pods where they run.
func (f *Finding) kept() string {
	return fmt.Sprintf("%d of them have a claim or an annotation that may keep them where they run", f.Staying)
}
