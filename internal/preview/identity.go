package preview

import (
	"cmp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/world"
)

// identity tells an object from the others of a cluster. The version is no part of it.
type identity struct {
	schema.GroupKind
	namespace, name string
}

func (o identity) String() string {
	if o.namespace == "" {
		return o.Kind + " " + o.name
	}
	return o.Kind + " " + o.namespace + "/" + o.name
}

// uid is a UID that follows from the identity.
func (o identity) uid() types.UID {
	return uid(o.GroupKind.String() + "/" + o.namespace + "/" + o.name)
}

// taken is an object of the input. It becomes a part of the inputs once everything is read.
type taken struct {
	identity
	at  source
	obj metav1.Object
	// workload is nil for an object that makes no pods and is none.
	workload *Workload
	add      func()
	part     bool // of a workload of the input
}

// take takes an object. Of several with one identity the last counts, as it does for kubectl apply. An object whose name is generated is
// another one each time.
func (l *loader) take(t taken) {
	if !l.named(&t) {
		return
	}
	if t.name == "" {
		l.taken = append(l.taken, t)
		return
	}
	if i, known := l.places[t.identity]; known {
		l.warn("%s (%s): the same object is in %s, too; the last one counts", t.at, t.identity, l.taken[i].at)
		l.taken[i] = t
		return
	}
	l.places[t.identity] = len(l.taken)
	l.taken = append(l.taken, t)
}

// named reports whether the API server takes the names of an object.
func (l *loader) named(t *taken) bool {
	before, check := len(l.errs), validation.NameIsDNSSubdomain
	if t.GroupKind == (schema.GroupKind{Kind: "Namespace"}) {
		check = validation.NameIsDNSLabel
	}
	for _, of := range []struct {
		field, text string
		wrong       func(string, bool) []string
		prefix      bool
	}{
		{"name", t.obj.GetName(), check, false},
		{"generateName", t.obj.GetGenerateName(), check, true},
		{"namespace", t.namespace, validation.ValidateNamespaceName, false},
	} {
		if of.text == "" {
			continue
		}
		for _, wrong := range of.wrong(of.text, of.prefix) {
			l.fail("%s (%s): metadata.%s is %q: %s", t.at, line(t.String()), of.field, of.text, wrong)
		}
	}
	return len(l.errs) == before
}

// settle adds what was taken to the inputs. An object that a workload of the input made is a part of that: its pods are counted there.
func (l *loader) settle() {
	l.dropCopiedUIDs()
	of := map[identity]int{} // the places of what makes pods
	for i := range l.taken {
		if w := l.taken[i].workload; w != nil && w.Kind != "Pod" && l.taken[i].name != "" {
			of[l.taken[i].identity] = i
		}
	}
	for i := range l.taken {
		if l.taken[i].part = l.made(of, i); !l.taken[i].part {
			l.taken[i].add()
		}
	}
	l.resolve()
	l.qualify()
}

// dropCopiedUIDs clears the UID of an object that repeats the UID of an earlier one: somebody copied a manifest of a cluster. The API server gives
// such an object a UID of its own.
func (l *loader) dropCopiedUIDs() {
	used := map[types.UID]bool{"": true}
	for i := range l.taken {
		t := &l.taken[i]
		if id := t.obj.GetUID(); id != "" && used[id] {
			t.obj.SetUID("")
			if t.workload != nil {
				t.workload.meta.UID = ""
			}
		}
		used[t.obj.GetUID()] = true
	}
}

// made reports whether a workload of the input made an object. Objects that own each other made none of them.
func (l *loader) made(of map[identity]int, i int) bool {
	at, some := l.maker(of, i)
	for step := 0; some && step < world.MaxDepth; step++ {
		if at == i {
			return false
		}
		next, above := l.maker(of, at)
		if !above {
			return true
		}
		at = next
	}
	return some
}

// maker returns the place of the workload that made an object, if that is in the input.
func (l *loader) maker(of map[identity]int, i int) (int, bool) {
	t := &l.taken[i]
	c := metav1.GetControllerOfNoCopy(t.obj)
	if c == nil || t.workload == nil {
		return 0, false
	}
	ref := world.RefOf(c)
	at, known := of[identity{schema.GroupKind{Group: ref.Group(), Kind: ref.Kind}, t.namespace, ref.Name}]
	if !known && ref.Group() == batchv1.GroupName {
		return l.makerOfJob(of, t, ref)
	}
	if !known {
		return l.makerOfReplicaSet(of, t, ref)
	}
	is := l.taken[at].workload.meta.UID
	return at, is == "" || ref.UID == "" || is == ref.UID
}

// makerOfReplicaSet returns the place of the Deployment or Rollout of a pod whose ReplicaSet is not in the input. The name of a ReplicaSet is
// that of what made it and the hash that its pods have as a label.
func (l *loader) makerOfReplicaSet(of map[identity]int, t *taken, ref world.Ref) (int, bool) {
	if ref.Kind != "ReplicaSet" || ref.Group() != appsv1.GroupName {
		return 0, false
	}
	for _, by := range []struct {
		schema.GroupKind
		label string
	}{
		{schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}, appsv1.DefaultDeploymentUniqueLabelKey},
		{rollouts, rolloutHashLabel},
	} {
		suffix := "-" + t.obj.GetLabels()[by.label]
		if n := len(ref.Name) - len(suffix); len(suffix) > 1 && n > 0 && ref.Name[n:] == suffix {
			at, known := of[identity{by.GroupKind, t.namespace, ref.Name[:n]}]
			return at, known
		}
	}
	return 0, false
}

// minuteDigits are those of the minutes since 1970 at which a CronJob makes a Job: 8 digits since 1989.
const minuteDigits = 8

// makerOfJob returns the place of the CronJob of a pod whose Job is not in the input. The name of the Job that a CronJob makes is that of the
// CronJob and the minute. Jobs that somebody else made of its template have other names, so that their pods are counted on their own.
func (l *loader) makerOfJob(of map[identity]int, t *taken, ref world.Ref) (int, bool) {
	n := strings.LastIndex(ref.Name, "-")
	if !ref.IsJob() || n < 0 {
		return 0, false
	}
	minute := ref.Name[n+1:]
	if len(minute) < minuteDigits || strings.Trim(minute, "0123456789") != "" {
		return 0, false
	}
	at, known := of[identity{schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}, t.namespace, ref.Name[:n]}]
	return at, known
}

// qualify has two workloads of one kind and name, of different groups, told with their groups.
func (l *loader) qualify() {
	first := map[string]int{}
	for i := range l.in.Workloads {
		w := &l.in.Workloads[i]
		at, known := first[w.String()]
		if !known {
			first[w.String()] = i
			continue
		}
		if other := &l.in.Workloads[at]; other.Group != w.Group {
			w.qualified = isThirdParty(w.GroupVersionKind)
			other.qualified = isThirdParty(other.GroupVersionKind)
		}
	}
}

// identity is that of the workload; it has no name if that is generated.
func (w *Workload) identity() identity { return identity{w.GroupKind(), w.Namespace, w.meta.Name} }

// uid is that of the object. A manifest of a cluster has one; the others get one that follows from the identity.
func (w *Workload) uid() types.UID {
	if w.meta.UID != "" {
		return w.meta.UID
	}
	return identity{w.GroupKind(), w.Namespace, cmp.Or(w.meta.Name, w.Name)}.uid()
}
