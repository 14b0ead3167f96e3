package preview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	"github.com/stowage-dev/stowage/internal/world"
)

// Inputs are the objects that matter to a preview, in the order they were given.
type Inputs struct {
	Workloads      []Workload
	RuntimeClasses []nodev1.RuntimeClass
	autoscalers    []autoscaler
	scaleDowns     []*policies.Policy
	Objects        world.Objects
	// Warnings are about single inputs.
	Warnings []string
	// Ignored counts the objects of kinds that do not matter, by kind, and Unknown
	// those of kinds that Kubernetes itself does not have.
	Ignored, Unknown kindCounts
}

// kindCounts counts objects by kind.
type kindCounts map[string]int

func (c kindCounts) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d %s", c[kind], line(kind)))
	}
	return strings.Join(parts, ", ")
}

// source is where an object was read, for messages.
type source struct {
	file     string
	document int // counts from 1, over the documents that are not empty
	item     int // counts from 1 in a List; 0 outside of one
}

func (s source) String() string {
	at := fmt.Sprintf("%s: document %d", line(s.file), s.document)
	if s.item > 0 {
		at += fmt.Sprintf(", item %d", s.item)
	}
	return at
}

// Source is where manifests are read from.
type Source struct {
	// Names are files, directories (their *.yaml, *.yml and *.json, and if Recursive those of their directories), and "-" for In.
	Names     []string
	In        io.Reader
	Recursive bool
	// Namespace is that of objects that name none.
	Namespace string
	// Schemas check objects of Stowage's own kinds; nil checks none.
	Schemas Schemas
}

// Load reads manifests. It reports every input error it finds, joined.
func Load(ctx context.Context, from Source) (*Inputs, error) {
	l := newLoader(ctx, from)
	l.read(from.Names, from.In)
	l.connect()
	if len(l.errs) == 0 && len(l.in.Workloads) == 0 {
		l.errs = append(l.errs, l.nothing(from.Names))
	}
	return l.done()
}

// LoadChange is [Load] for manifests that change a cluster. What they name may be there already, so nothing is said of what the input
// lacks.
func LoadChange(ctx context.Context, from Source) (*Inputs, error) {
	l := newLoader(ctx, from)
	l.read(from.Names, from.In)
	return l.done()
}

func newLoader(ctx context.Context, from Source) *loader {
	return &loader{
		ctx: ctx, namespace: from.Namespace, recursive: from.Recursive, schemas: from.Schemas,
		in: &Inputs{Ignored: kindCounts{}, Unknown: kindCounts{}}, places: map[identity]int{}, podless: map[identity]bool{},
	}
}

// read reads all inputs.
func (l *loader) read(names []string, in io.Reader) {
	for _, name := range names {
		l.path(name, in)
	}
	l.settle()
}

func (l *loader) done() (*Inputs, error) {
	if err := errors.Join(l.errs...); err != nil {
		return nil, err
	}
	return l.in, nil
}

type loader struct {
	ctx       context.Context
	namespace string
	recursive bool
	schemas   Schemas
	in        *Inputs
	errs      []error
	// taken are the objects that were read, and places where those with a name are.
	taken  []taken
	places map[identity]int
	// references are looked up when everything is read.
	references []*reference
	// dangling says which references lead nowhere, and podless has the objects whose kind has no pod template that is known.
	dangling []error
	podless  map[identity]bool
}

func (l *loader) warn(format string, args ...any) {
	l.in.Warnings = append(l.in.Warnings, line(fmt.Sprintf(format, args...)))
}

func (l *loader) fail(format string, args ...any) {
	l.errs = append(l.errs, printed{fmt.Errorf(format, args...)})
}

// printed is an error whose text is [Printable].
type printed struct{ error }

func (p printed) Error() string { return Printable(p.error.Error()) }

func (p printed) Unwrap() error { return p.error }

var onlyComments = regexp.MustCompile(`^(\s|#[^\n]*(\n|$)|---[^\n]*(\n|$))*$`)

// decoder refuses fields that do not exist, as kubectl does by default.
var decoder = serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

// scheme has the types of the kinds that matter.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(
		corev1.AddToScheme(s), appsv1.AddToScheme(s), batchv1.AddToScheme(s), nodev1.AddToScheme(s), schedulingv1.AddToScheme(s), autoscalingv1.AddToScheme(s), autoscalingv2.AddToScheme(s),
		stowage.AddToScheme(s), versprei.AddToScheme(s), flexdaemonsets.AddToScheme(s),
	); err != nil {
		panic(err) // only a program that is wrong in itself gets here
	}
	return s
}()

// TestGroup is the API group of the files that `stowage test` runs. They may lie among manifests.
const TestGroup = "cli.stowage.dev"

// maxDepth is how deep Lists may be in Lists.
const maxDepth = 8

// head is what any object says of itself, and the items of a List.
type head struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      any `json:"name"` // the decoder says what is wrong with one that is no text
		Namespace any `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// document takes one object, as JSON.
func (l *loader) document(at source, data []byte, depth int) {
	var head head
	if json.Unmarshal(data, &head) != nil || head.Kind == "" || head.APIVersion == "" {
		l.fail("%s: expected a Kubernetes object, with apiVersion and kind", at)
		return
	}
	name, _ := head.Metadata.Name.(string)
	where := fmt.Sprintf("%s (%s)", at, line(strings.TrimSpace(head.Kind+" "+name)))

	switch gvk := head.GroupVersionKind(); {
	case strings.HasSuffix(head.Kind, "List") && head.Items != nil:
		l.list(at, where, head, depth)
	case gvk.Group == "kustomize.config.k8s.io" || gvk.Group == TestGroup: // names the files around it
	case isThirdParty(gvk):
		l.thirdParty(at, where, gvk, data)
	case !kubernetes().all[gvk] && kubernetes().groups[gvk.Group]:
		l.fail("%s: %s has no kind %q", where, head.APIVersion, head.Kind)
	case !kubernetes().all[gvk]:
		l.in.Unknown[head.Kind]++
		l.withoutPods(head)
	case !slices.Contains(kindsOfInterest, head.Kind):
		l.in.Ignored[head.Kind]++
		l.withoutPods(head)
	case !scheme.Recognizes(gvk):
		l.fail("%s: %s is not served any more; write it as %s", where, gvk.GroupVersion(), workloadVersion(gvk.Kind))
	default:
		l.decode(at, where, gvk, data)
	}
}

// withoutPods notes an object of a kind that does not matter: a PodDistributor may name it.
func (l *loader) withoutPods(h head) {
	name, _ := h.Metadata.Name.(string)
	namespace, _ := h.Metadata.Namespace.(string)
	l.home(&namespace)
	l.podless[identity{h.GroupVersionKind().GroupKind(), namespace, name}] = true
}

// list takes the items of a List, or of a PodList, whose items may leave their kind out.
func (l *loader) list(at source, where string, list head, depth int) {
	if depth == maxDepth {
		l.fail("%s: Lists are nested more than %d deep", where, maxDepth)
		return
	}
	kind := strings.TrimSuffix(list.Kind, "List")
	for i, item := range list.Items {
		at.item = i + 1
		if kind != "" {
			var err error
			if item, err = withKind(item, list.APIVersion, kind); err != nil {
				l.fail("%s: %w", at, err)
				continue
			}
		}
		l.document(at, item, depth+1)
	}
}

// failValues refuses an object for each of its [badValues], and reports whether it has some.
func (l *loader) failValues(where string, data []byte) bool {
	bad := badValues(data)
	for _, b := range bad {
		l.fail("%s: %s", where, b)
	}
	return len(bad) > 0
}

// decode takes an object of a kind that decisions depend on, as JSON.
func (l *loader) decode(at source, where string, gvk schema.GroupVersionKind, data []byte) {
	// The decoder does not say which value is wrong, and takes hours for some quantities.
	if l.failValues(where, data) {
		return
	}
	data, ok := l.completeCustomResource(where, gvk, data)
	if !ok {
		return
	}
	obj, _, err := decoder.Decode(data, nil, nil)
	if err != nil {
		l.fail("%s: %s", where, report.Plain(err.Error()))
		return
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	if o, ok := obj.(object); ok {
		l.object(at, where, o)
	}
}

// withKind gives an item of a typed list its kind, which the API server leaves out.
func withKind(item []byte, apiVersion, kind string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(item, &object); err != nil || object == nil {
		return nil, errors.New("expected a Kubernetes object")
	}
	object["apiVersion"], object["kind"] = quoted(apiVersion), quoted(kind)
	return json.Marshal(object)
}

func quoted(s string) json.RawMessage {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return data
}
