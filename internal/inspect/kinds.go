package inspect

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/config/crd"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/version"
)

// What the API server knows of Stowage's kinds. Discovery and OpenAPI say it, which every user may read, and CustomResourceDefinitions few.

// kind is a kind of Stowage in one version, as this program has it.
type kind struct {
	definition string // the name of its CustomResourceDefinition
	resource   string
	gvk        schema.GroupVersionKind
	fields     *apiextensionsv1.JSONSchemaProps
}

// ownKinds are all kinds of Stowage, in the order of their names.
var ownKinds = sync.OnceValues(func() (out []kind, err error) {
	err = crd.Each(func(data []byte) error {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &definition); err != nil {
			return err
		}
		spec := &definition.Spec
		for i := range spec.Versions {
			out = append(out, kind{
				definition.Name, spec.Names.Plural, schema.GroupVersionKind{Group: spec.Group, Version: spec.Versions[i].Name, Kind: spec.Names.Kind}, spec.Versions[i].Schema.OpenAPIV3Schema,
			})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b kind) int { return strings.Compare(a.definition, b.definition) })
	return out, err
})

// served is what the API server knows of the kinds.
type served struct {
	known   bool // else discovery may not be read
	some    bool
	missing []kind
}

// lacks reports whether the API server is known not to have a kind.
func (s served) lacks(gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(s.missing, func(k kind) bool { return k.gvk == gvk })
}

// readKinds asks the API server which kinds it has.
func (i *Inspector) readKinds() (err error) {
	i.kinds, err = i.servedKinds()
	return err
}

func (i *Inspector) servedKinds() (s served, _ error) {
	if i.Discovery == nil {
		return s, nil
	}
	kinds, err := ownKinds()
	if err != nil {
		return s, err
	}
	s.known = true
	has := map[string][]string{} // resources, by group and version
	for n := range kinds {
		k := &kinds[n]
		of := k.gvk.GroupVersion().String()
		if _, asked := has[of]; !asked {
			list, err := i.Discovery.ServerResourcesForGroupVersion(of)
			switch {
			case apierrors.IsForbidden(err):
				return served{}, nil
			case err != nil && !apierrors.IsNotFound(err):
				return s, fmt.Errorf("what the API server serves of %s: %w", of, err)
			}
			has[of] = []string{}
			if err == nil {
				for r := range list.APIResources {
					has[of] = append(has[of], list.APIResources[r].Name)
				}
			}
		}
		if slices.Contains(has[of], k.resource) {
			s.some = true
		} else {
			s.missing = append(s.missing, *k)
		}
	}
	return s, nil
}

// poolStates is the name of the CustomResourceDefinition of PoolStates.
const poolStates = "poolstates.stowage.dev"

// withoutKind says what Stowage does not do while the API server lacks a kind. Objects of the other kinds have no effect then.
var withoutKind = map[string]string{
	poolStates:                "Stowage has no record of pools, and evicts no pods",
	"seatledgers.stowage.dev": "replicas do not share the seats that they give",
}

// installed adds the problems that Stowage, its registration or its kinds are missing. Hidden says that the registration may not be read.
func (i *Inspector) installed(unregistered, hidden bool, r *Report) {
	kinds := i.kinds
	if unregistered && kinds.known && !kinds.some && r.Stowage == nil {
		r.problem(i.ofRegistration(finding.NotInstalled, finding.Values{
			Text: i.cluster(), Other: i.Deployment, In: i.Namespace, Missing: !slices.Contains(r.hidden, hiddenReplicas),
		}))
		return
	}
	if unknown := !kinds.known && i.Discovery != nil; unregistered && !r.Stowage.withoutWebhook() && (kinds.some || unknown || r.Stowage != nil) {
		r.problem(i.ofRegistration(finding.NotRegistered, finding.Values{}))
	}
	if len(kinds.missing) == 0 {
		return
	}
	var names, becomes []string
	for n := range kinds.missing {
		name := kinds.missing[n].definition
		names = append(names, name)
		if text := withoutKind[name]; text != "" {
			becomes = append(becomes, text)
		} else if lost := "what is written in them has no effect"; !slices.Contains(becomes, lost) {
			becomes = append(becomes, lost)
		}
	}
	if hidden && !kinds.some {
		becomes = append(becomes, "whether the webhook is registered there, you may not read")
	}
	r.problem(finding.Finding{Reason: finding.KindsMissing, Kind: "CustomResourceDefinition", Name: names[0], Values: finding.Values{
		Objects: strings.Join(names, ", "), Several: len(names) > 1, Other: i.cluster(), Text: strings.Join(becomes, "; "), NoMoves: slices.Contains(names, poolStates),
	}})
}

// cluster names what is looked at.
func (i *Inspector) cluster() string {
	if i.Context == "" {
		return "this cluster"
	}
	return "context " + i.Context
}

// stopsMoves reports whether Stowage moves no pods because of this problem of its own.
func (p *Problem) stopsMoves() bool {
	switch p.Reason {
	case finding.NotInstalled, finding.NotRegistered, finding.WithoutWebhook, finding.NoLeader, finding.NoCertificate, finding.NoAnswer:
		return true
	}
	return p.of.NoMoves
}

// mostFields is how many fields are named that a kind lacks.
const mostFields = 5

// olderEvery is how old what is known of the fields of kinds may be: a status that is followed asks every two seconds.
const olderEvery = time.Minute

// older are the kinds of the API server that lack fields which this program knows. It drops these from what is written, without a word. Where OpenAPI
// cannot be read, that is not known.
func (i *Inspector) older() ([]finding.Finding, error) {
	if i.Discovery == nil {
		return nil, nil
	}
	if now := i.Clock.Now(); i.olderAt.IsZero() || now.Sub(i.olderAt) >= olderEvery {
		found, err := i.readOlder()
		if err != nil {
			return nil, err
		}
		i.olderAt, i.olderKinds = now, found
	}
	return i.olderKinds, nil
}

func (i *Inspector) readOlder() (found []finding.Finding, _ error) {
	kinds, err := ownKinds()
	if err != nil {
		return nil, err
	}
	paths, err := i.Discovery.OpenAPIV3().Paths()
	if err != nil {
		return nil, ifReadable("the OpenAPI of the API server", err)
	}
	schemas := map[schema.GroupVersionKind]*apiextensionsv1.JSONSchemaProps{}
	read := map[schema.GroupVersion]bool{}
	for n := range kinds {
		k := &kinds[n]
		gv := k.gvk.GroupVersion()
		path := paths["apis/"+gv.String()]
		if path == nil {
			continue
		}
		if !read[gv] {
			read[gv] = true
			data, err := path.Schema("application/json")
			if err == nil {
				err = addSchemas(schemas, data)
			}
			if err != nil {
				return nil, ifReadable("the OpenAPI of "+gv.String(), err)
			}
		}
		is := schemas[k.gvk]
		if is == nil {
			continue
		}
		if lacks := missingFields("", k.fields, is); len(lacks) > 0 {
			several := len(lacks) > 1
			if more := len(lacks) - mostFields; more > 0 {
				lacks = append(lacks[:mostFields], fmt.Sprintf("%d more", more))
			}
			found = append(found, finding.Finding{Reason: finding.KindsOlder, Kind: "CustomResourceDefinition", Name: k.definition, Values: finding.Values{
				Objects: strings.Join(lacks, ", "), Several: several,
			}})
		}
	}
	return found, nil
}

// ifReadable is an error about something that is read, unless the user may not read it or the API server does not have it.
func ifReadable(what string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// addSchemas adds the schemas of an OpenAPI document, by the kinds that they are of.
func addSchemas(out map[schema.GroupVersionKind]*apiextensionsv1.JSONSchemaProps, document []byte) error {
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		return err
	}
	for _, data := range doc.Components.Schemas {
		var of struct {
			Kinds []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
		}
		if err := json.Unmarshal(data, &of); err != nil || len(of.Kinds) != 1 {
			continue // it is not of one kind alone
		}
		fields := &apiextensionsv1.JSONSchemaProps{}
		if err := json.Unmarshal(data, fields); err != nil {
			return err
		}
		out[schema.GroupVersionKind(of.Kinds[0])] = fields
	}
	return nil
}

// missingFields returns the sorted paths of the fields that is lacks. It does not name the fields inside a missing field.
func missingFields(at string, want, is *apiextensionsv1.JSONSchemaProps) (out []string) {
	if is.XPreserveUnknownFields != nil && *is.XPreserveUnknownFields {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(want.Properties)) {
		path := strings.TrimPrefix(at+"."+name, ".")
		field, have := want.Properties[name], is.Properties[name]
		if _, there := is.Properties[name]; !there {
			out = append(out, path)
			continue
		}
		out = append(out, missingFields(path, &field, &have)...)
	}
	if want.Items != nil && want.Items.Schema != nil && is.Items != nil && is.Items.Schema != nil {
		out = append(out, missingFields(at+"[]", want.Items.Schema, is.Items.Schema)...)
	}
	if w, h := want.AdditionalProperties, is.AdditionalProperties; w != nil && w.Schema != nil && h != nil && h.Schema != nil {
		out = append(out, missingFields(at+"{}", w.Schema, h.Schema)...)
	}
	return out
}

// olderProblems adds the kinds that lack fields. While Stowage itself is of another version than this program, or may be, its kinds are of that version,
// and only a warning says so.
func (i *Inspector) olderProblems(r *Report) error {
	found, err := i.older()
	if err != nil {
		return err
	}
	for n := range found {
		f := &found[n]
		switch v := versionOf(r); {
		case v != "" && strings.TrimPrefix(v, "v") != strings.TrimPrefix(version.String(), "v"):
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s %s; Stowage is of version %s there", f.Object(), f.Sentence(), v))
		case v == "" && slices.Contains(r.hidden, hiddenReplicas):
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s %s; you may not read which version of Stowage is installed", f.Object(), f.Sentence()))
		default:
			r.problem(*f)
		}
	}
	return nil
}

// versionOf is the version of Stowage in the cluster, or "" where that is not known.
func versionOf(r *Report) string {
	if r.Stowage == nil {
		return ""
	}
	return r.Stowage.Version
}
