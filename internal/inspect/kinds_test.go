package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
)

// apiServer is an API server that has Stowage's kinds, except for what it lacks.
type apiServer struct {
	discovery.DiscoveryInterface
	without   func(definition string) bool                       // whether a kind is missing; nil is none
	change    func(fields *apiextensionsv1.JSONSchemaProps) bool // of the schema of SpreadPolicies
	forbidden bool
	openAPI   error
}

func (s *apiServer) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: "v1.36.0"}, nil
}

func (s *apiServer) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	if s.forbidden {
		return nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	}
	kinds, err := ownKinds()
	out := &metav1.APIResourceList{}
	for _, k := range kinds {
		if k.gvk.GroupVersion().String() == gv && (s.without == nil || !s.without(k.definition)) {
			out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.resource})
		}
	}
	if len(out.APIResources) == 0 && err == nil {
		err = apierrors.NewNotFound(schema.GroupResource{}, gv)
	}
	return out, err
}

func (s *apiServer) OpenAPIV3() openapi.Client {
	paths := map[string]openapi.GroupVersion{"api/v1": openapitest.FakeGroupVersion{GVSpec: []byte("no JSON")}}
	kinds, _ := ownKinds()
	of := map[string]map[string]any{}
	for _, k := range kinds {
		fields := k.fields.DeepCopy()
		if k.gvk.Kind == "SpreadPolicy" && s.change != nil && s.change(fields) {
			continue
		}
		var schema map[string]any
		data, _ := json.Marshal(fields)
		_ = json.Unmarshal(data, &schema)
		schema["x-kubernetes-group-version-kind"] = []metav1.GroupVersionKind{metav1.GroupVersionKind(k.gvk)}
		path := "apis/" + k.gvk.GroupVersion().String()
		if of[path] == nil {
			of[path] = map[string]any{"DeleteOptions": map[string]any{"x-kubernetes-group-version-kind": []metav1.GroupVersionKind{{}, {}}}}
		}
		of[path]["dev."+k.definition] = schema
	}
	for path, schemas := range of {
		data, _ := json.Marshal(map[string]any{"components": map[string]any{"schemas": schemas}})
		paths[path] = openapitest.FakeGroupVersion{GVSpec: data, ForcedErr: s.openAPI}
	}
	return openapitest.FakeClient{PathsMap: paths}
}

// refusing is a client whose user may not get some kinds of objects, nor list some lists.
func refusing(c client.Client, objects ...any) client.Client {
	refused := func(o any) error {
		kind := fmt.Sprintf("%T", o)
		if list, is := o.(*metav1.PartialObjectMetadataList); is && list.Kind == "NodeList" {
			kind = fmt.Sprintf("%T", &corev1.NodeList{})
		}
		if slices.ContainsFunc(objects, func(r any) bool { return fmt.Sprintf("%T", r) == kind }) {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x", nil)
		}
		return nil
	}
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := refused(o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := refused(list); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
}

// Status and check name the missing parts of Stowage, and the parts that the user may not read.
func TestInstalled(t *testing.T) {
	t.Parallel()
	all := func(string) bool { return true }
	only := func(names ...string) func(string) bool {
		return func(name string) bool { return strings.Contains(strings.Join(names, " "), name) }
	}
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-leader"}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
	for name, tc := range map[string]struct {
		server  *apiServer
		objects []client.Object
		gone    []client.Object
		refused []any
		want    []string // the reasons of the problems, with parts of their texts
		absent  bool
		warns   string
	}{
		"all is there": {server: &apiServer{}},
		"nothing": {
			server: &apiServer{without: all}, gone: []client.Object{registration, lease}, absent: true,
			want: []string{"NotInstalled: Stowage is not installed in context staging: neither this nor any of its kinds (CustomResourceDefinitions) exists, and no Deployment stowage in namespace stowage-system"},
		},
		"nothing, and the Deployment may not be read": {
			server: &apiServer{without: all}, gone: []client.Object{registration, lease}, refused: []any{deployment}, absent: true,
			want: []string{"NotInstalled: Stowage is not installed in context staging: neither this nor any of its kinds (CustomResourceDefinitions) exists, and whether there is a Deployment stowage in namespace stowage-system may not be read"},
		},
		"no kinds, and the rest may not be read": {
			server: &apiServer{without: all}, gone: []client.Object{lease}, refused: []any{registration, deployment, &stowage.SpreadPolicyList{}},
			want: []string{"KindsMissing: in context staging: what is written in them has no effect; Stowage has no record of pools, and evicts no pods; replicas do not share the seats that they give; whether the webhook is registered there, you may not read"},
		},
		"the registration may not be read":            {server: &apiServer{}, refused: []any{registration}, warns: "the registration of the webhook"},
		"nothing, and what there is may not be asked": {server: &apiServer{forbidden: true}, gone: []client.Object{registration, lease}, want: []string{"NotRegistered: does not exist"}},
		"the kinds alone":                             {server: &apiServer{}, gone: []client.Object{registration, lease}, want: []string{"NotRegistered: does not exist"}},
		"the Deployment alone":                        {server: &apiServer{without: all}, objects: []client.Object{deployment}, gone: []client.Object{registration, lease}, want: []string{"NotRegistered: ", "KindsMissing: "}},
		"no registration":                             {server: &apiServer{}, gone: []client.Object{registration}, want: []string{"NotRegistered: does not exist"}},
		"no kinds":                                    {server: &apiServer{without: all}, want: []string{"KindsMissing: is one of the kinds of Stowage that do not exist (clusterscaledownpolicies.stowage.dev, clusterspreadpolicies.stowage.dev, flexdaemonsettemplates.flexdaemonsets.xai, "}},
		"no PoolStates":                               {server: &apiServer{without: only("poolstates.stowage.dev")}, want: []string{"KindsMissing: does not exist, in context staging: Stowage has no record of pools, and evicts no pods"}},
		"kinds of an older version":                   {server: &apiServer{without: only("spreadpolicies.stowage.dev", "clusterspreadpolicies.stowage.dev")}, want: []string{"KindsMissing: is one of the kinds of Stowage that do not exist (clusterspreadpolicies.stowage.dev, spreadpolicies.stowage.dev), in context staging: what is written in them has no effect"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tc.objects...)
			for _, o := range tc.gone {
				if err := i.Client.Delete(t.Context(), o.DeepCopyObject().(client.Object)); err != nil {
					t.Fatal(err)
				}
			}
			i.Discovery, i.Context, i.Client = tc.server, "staging", refusing(i.Client, tc.refused...)
			r, err := i.Status(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Problems) != len(tc.want) || r.OK() != (len(tc.want) == 0) || r.NotInstalled() != tc.absent {
				t.Errorf("the problems are %+v", r.Problems)
			}
			for n, want := range tc.want {
				reason, text, _ := strings.Cut(want, ": ")
				if n < len(r.Problems) && (string(r.Problems[n].Reason) != reason || !strings.Contains(r.Problems[n].Problem, text)) {
					t.Errorf("problem %d is %s: %s, want %s", n, r.Problems[n].Reason, r.Problems[n].Problem, want)
				}
			}
			if !strings.Contains(strings.Join(r.Warnings, ""), tc.warns) {
				t.Errorf("the warnings are %q", r.Warnings)
			}
			var text strings.Builder
			if err := r.Print(&text, Layout{Format: "table", AllNamespaces: true}); err != nil || strings.Contains(text.String(), nothing) == (len(tc.want) > 0) {
				t.Errorf("it prints %s, %v", &text, err)
			}
		})
	}
}

// Fields that the API server drops without a word are named by status and check, unless Stowage is of another version there.
func TestOlderKinds(t *testing.T) {
	t.Parallel()
	spec := func(fields *apiextensionsv1.JSONSchemaProps) map[string]apiextensionsv1.JSONSchemaProps {
		return fields.Properties["spec"].Properties
	}
	without := func(name string) func(*apiextensionsv1.JSONSchemaProps) bool {
		return func(fields *apiextensionsv1.JSONSchemaProps) bool { delete(spec(fields), name); return false }
	}
	for name, tc := range map[string]struct {
		server *apiServer
		want   string
	}{
		"the same":            {server: &apiServer{}},
		"a field":             {&apiServer{change: without("rebalance")}, "is older than this command, and lacks spec.rebalance: the API server drops it from what is written without a word"},
		"a field with fields": {&apiServer{change: without("across")}, "lacks spec.across: "},
		"a field of a list's items": {&apiServer{change: func(fields *apiextensionsv1.JSONSchemaProps) bool {
			delete(spec(fields)["pools"].Items.Schema.Properties, "spill")
			return false
		}}, "lacks spec.pools[].spill: "},
		"many": {&apiServer{change: func(fields *apiextensionsv1.JSONSchemaProps) bool {
			for name := range spec(fields) {
				delete(spec(fields), name)
			}
			return false
		}}, " more: the API server drops them"},
		"it keeps what it does not know": {server: &apiServer{change: func(fields *apiextensionsv1.JSONSchemaProps) bool {
			fields.XPreserveUnknownFields = new(true)
			return without("rebalance")(fields)
		}}},
		"no schema is published":  {server: &apiServer{change: func(*apiextensionsv1.JSONSchemaProps) bool { return true }}},
		"OpenAPI may not be read": {server: &apiServer{change: without("rebalance"), openAPI: apierrors.NewForbidden(schema.GroupResource{}, "", nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t)
			i.Discovery, i.Heard = tc.server, func() []string { return nil }
			r, err := i.Status(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			a := &Answer{OK: true}
			if err := i.kindProblems(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if len(r.Problems)+len(a.Causes) > 0 || !a.Sound() {
					t.Errorf("the problems are %+v, and those of check %+v", r.Problems, a.Causes)
				}
				return
			}
			for what, problems := range map[string][]Problem{"status": r.Problems, "check": a.Causes} {
				if len(problems) != 1 || problems[0].Reason != finding.KindsOlder || problems[0].Object != "CustomResourceDefinition/spreadpolicies.stowage.dev" || !strings.Contains(problems[0].Problem, tc.want) {
					t.Errorf("%s: the problems are %+v, want %q", what, problems, tc.want)
				}
			}
			if a.Sound() || !strings.Contains(a.text(), "CustomResourceDefinition/spreadpolicies.stowage.dev: is older") {
				t.Errorf("check says %s", a.text())
			}
		})
	}

	// Stowage is of another version there, or that may be.
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage", Labels: map[string]string{"app.kubernetes.io/version": "v0.0.1-other"}}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}
	for want, refused := range map[string][]any{"; Stowage is of version v0.0.1-other there": nil, "; you may not read which version of Stowage is installed": {deployment}} {
		i := newInspector(t, deployment.DeepCopy())
		i.Discovery, i.Client = &apiServer{change: without("rebalance")}, refusing(i.Client, refused...)
		r, err := i.Status(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		a := &Answer{OK: true}
		if err := i.kindProblems(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for what, warnings := range map[string][]string{"status": r.Warnings, "check": a.Notes} {
			if text := strings.Join(warnings, "\n"); !r.OK() || !a.Sound() || !strings.Contains(text, "lacks spec.rebalance") || !strings.Contains(text, want) {
				t.Errorf("%s: the problems are %+v, those of check %+v, and the warnings %q, want %q", what, r.Problems, a.Causes, text, want)
			}
		}
	}
	// A followed status does not read the schemas each time, and sees a change a minute later.
	i := newInspector(t)
	server := &apiServer{change: without("rebalance")}
	i.Discovery = server
	for _, want := range []int{1, 1} {
		if r, err := i.Status(t.Context(), ""); err != nil || len(r.Problems) != want {
			t.Errorf("the problems are %+v, %v", r.Problems, err)
		}
		server.openAPI = errors.New("read again")
	}
	i.olderAt = i.olderAt.Add(-olderEvery)
	if _, err := i.Status(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "read again") {
		t.Errorf("after a minute: %v", err)
	}
}

// No remedy says to wait for evictions while Stowage evicts no pods.
func TestNobodyWaitsForStowage(t *testing.T) {
	t.Parallel()
	uneven := func() []client.Object {
		evicts := func(rs *appsv1.ReplicaSet) { rs.Annotations = map[string]string{stowage.RebalanceAnnotation: "Evict"} }
		return []client.Object{web(3, evicts), pod("x", "0", 1, nil), pod("y", "0", 2, nil), pod("z", "0", 3, nil)}
	}
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
	for name, tc := range map[string]struct {
		without string
		gone    client.Object
		lacks   string
		want    string
	}{
		"all is there":         {want: "wait: Stowage evicts one pod after the other"},
		"no VMCatalogs":        {without: "vmcatalogs.stowage.dev", want: "wait: Stowage evicts one pod after the other"},
		"no PoolStates":        {without: "poolstates.stowage.dev", want: "first correct the problem that stops Stowage from evicting pods; then wait: "},
		"no registration":      {gone: registration, want: "first correct the problem that stops Stowage"},
		"no leader":            {gone: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-leader"}}, want: "first correct the problem that stops Stowage"},
		"it may not evict":     {lacks: "patch-pods create-pods/eviction", want: "first correct the problem that stops Stowage"},
		"another right is not": {lacks: "list-nodes", want: "wait: Stowage evicts one pod after the other"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, uneven()...)
			i.Discovery = &apiServer{without: func(name string) bool { return name == tc.without }}
			if tc.gone != nil {
				if err := i.Client.Delete(t.Context(), tc.gone); err != nil {
					t.Fatal(err)
				}
			}
			if tc.lacks != "" {
				lease := &coordinationv1.Lease{}
				if err := i.Client.Get(t.Context(), client.ObjectKey{Namespace: "stowage-system", Name: "stowage-leader"}, lease); err != nil {
					t.Fatal(err)
				}
				lease.Annotations = map[string]string{stowage.StandingAnnotation: "x" + stowage.CheckLacks + tc.lacks}
				if err := i.Client.Update(t.Context(), lease); err != nil {
					t.Fatal(err)
				}
			}
			r, err := i.Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Problems {
				if p.Reason == finding.OverTarget {
					if !strings.HasPrefix(p.Action, tc.want) {
						t.Errorf("the remedy is %q, want %q", p.Action, tc.want)
					}
					return
				}
			}
			t.Errorf("no pool has too many pods: %+v", r.Problems)
		})
	}
}
