// Package finding has what is not as it should be, as values: a reason, what it is about, and numbers and names. Producers make them of what they
// know, and write no sentence. One table says for each reason what it means, its sentence and its remedy. The conditions of objects, `kubectl stowage
// status` and `explain`, and the page docs/reasons.md are printed from that table. Nothing compares sentences.
package finding

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
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
	// Annotated says that Source is an annotation, and ByPolicy that it is a SpreadPolicy or a ClusterSpreadPolicy.
	Annotated, ByPolicy bool
	// Evict says that pods of pools with too many are evicted. Preferred says that pods only prefer their pool, and Recreates that pods without a
	// seat are recreated.
	Evict, Preferred, Recreates bool
	// RepairOff says that Stowage leaves the pods as they are, whatever Evict says.
	RepairOff bool
	// Paused says that the Deployment is, and OnDelete that the StatefulSet replaces only pods that somebody deletes.
	Paused, OnDelete bool
	// Partition is that of the StatefulSet: a rollout leaves pods with lower ordinals as they are.
	Partition int64
	// NoNodes are the pools that should have pods and have no node, with their labels, and Cordoned those whose nodes are all cordoned. New pods of
	// them wait, so a rollout would take down pods that run.
	NoNodes, Cordoned string
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

// rollOut is how to have all pods of a workload created again.
func (f *Finding) rollOut() string {
	if f.Kind == "Job" {
		return "let the Job end, or create it again: Stowage evicts none of its pods"
	}
	if closed := f.closed(); closed != "" {
		return closed + "; then " + f.restart()
	}
	return f.restart()
}

// closed is what to do first where a pool takes no new pods, or "".
func (f *Finding) closed() string {
	wait := ifElse(f.Preferred, "", ", so that new pods wait unless a node autoscaler makes one")
	switch {
	case f.NoNodes != "":
		return fmt.Sprintf("first correct the labels of pool %s, or add nodes with them: no node has them%s", f.NoNodes, wait)
	case f.Cordoned != "":
		return fmt.Sprintf("first kubectl uncordon nodes of pool %s, or add others: all are cordoned%s", f.Cordoned, wait)
	}
	return ""
}

// restart is how to roll out.
func (f *Finding) restart() string {
	if f.Paused {
		return f.resume() + ", and roll out"
	}
	if f.OnDelete {
		return "delete its pods one after the other, because its update strategy is OnDelete"
	}
	if f.Partition > 0 {
		return fmt.Sprintf("set the partition of the StatefulSet to 0, because with %d a rollout leaves pods with lower ordinals as they are, and roll out (kubectl -n %s rollout restart statefulset/%s)", f.Partition, f.Namespace, f.Name)
	}
	if f.Kind == "Deployment" || f.Kind == "StatefulSet" {
		return fmt.Sprintf("roll out (kubectl -n %s rollout restart %s/%s)", f.Namespace, strings.ToLower(f.Kind), f.argument())
	}
	return "roll out: have its pods created again"
}

// resume is how to end the pause of a Deployment.
func (f *Finding) resume() string {
	return fmt.Sprintf("resume the Deployment (kubectl -n %s rollout resume deployment/%s)", f.Namespace, f.argument())
}

// argument is the object's name in a command for a shell, which may take other characters than those of names for commands.
func (f *Finding) argument() string {
	if strings.Trim(f.Name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return "NAME"
	}
	return f.Name
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

// evicts reports whether Stowage evicts pods of pools with too many.
func (f *Finding) evicts() bool { return f.Evict && !f.RepairOff && f.Kind != "Job" }

// kept says that something may keep some of the pods where they run.
func (f *Finding) kept() string {
	return fmt.Sprintf("%d of them have a claim or an annotation that may keep them where they run", f.Staying)
}
