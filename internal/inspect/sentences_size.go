package inspect

import (
	"cmp"
	"strings"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
)

func (f *sizeFacts) describe(a *Aspect) {
	if f.NoTemplate {
		f.describeNoTemplate(a)
		return
	}
	for _, w := range f.Warnings {
		a.say("%s.", w)
	}
	if f.NotSized != nil {
		a.missed(*f.NotSized, f.Now)
	}
	if f.SizedBy == "" {
		return
	}
	a.Changed, a.Summary = true, "a share of its node, by FlexDaemonsetTemplate "+f.SizedBy
	for _, share := range f.Shares {
		if share.Moved {
			a.say("%s: %s.", share.Resource, share.Because)
		} else {
			a.say("%s: %s; the pod requests %s.", share.Resource, share.Because, cmp.Or(share.amount(), "nothing"))
		}
	}
	if f.Overhead != "" {
		a.say("Its RuntimeClass adds %s (spec.overhead), on top of its share.", f.Overhead)
	}
	for _, name := range f.Excluded {
		a.say("Container %s keeps what it declares: the template excludes it.", name)
	}
	if f.Ceiling {
		a.say("It gets no more than its DaemonSet declares (ceiling: Template).")
	}
	for _, r := range f.Resizes {
		a.say("%s.", r.text())
	}
	if f.OffSize && f.InPlace {
		a.say("Now it would be %s, and Stowage resizes it (updatePolicy: InPlace).", f.Now)
	} else if f.OffSize {
		a.say("Now it would be %s; new pods get that, and this one keeps its size (updatePolicy: OnCreate).", f.Now)
	}
	if f.Refused != "" { // only a resize is
		a.say("The status of FlexDaemonsetTemplate %s: %s.", f.Template, strings.TrimSuffix(f.Refused, "."))
	}
}

func (f *sizeFacts) describeNoTemplate(a *Aspect) {
	switch {
	case f.SizedBy != "":
		a.Changed, a.Summary = true, "sized by FlexDaemonsetTemplate "+f.SizedBy
		a.say("Its DaemonSet has no resource template any more; the next pods keep the size that they declare.")
	case f.Owner == nil || f.Owner.Kind != "DaemonSet":
		a.say("Only the pods of DaemonSets get a share of their node.")
	default:
		a.say("Neither DaemonSet %s nor its pod template has the annotation %s.", f.Owner.Name, flexdaemonsets.TemplateAnnotation)
	}
}
