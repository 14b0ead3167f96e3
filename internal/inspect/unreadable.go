package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// The rights to read the kinds of other projects. Stowage's controllers say in the statuses of policies which ones they lack, and a replica of the webhook
// in its answer to a check.

// kindLacks returns which kinds that policies name Stowage may not read, as the statuses of the policies of a namespace and of the cluster say. Those that
// the user may not read are left out. For limits them to the kind of an object, if it is not nil.
func kindLacks(ctx context.Context, reader world.Snapshot, namespace string, of *world.Ref) (lacks []stowage.UnreadableKind, err error) {
	for _, where := range []string{namespace, ""} {
		all, err := reader.Policies(ctx, where)
		if err != nil {
			return nil, err
		}
		if all == nil {
			continue
		}
		var found []stowage.UnreadableKind
		for _, p := range all.Namespaced {
			found = append(found, p.Status.Unreadable...)
		}
		for _, p := range all.Cluster {
			found = append(found, p.Status.Unreadable...)
		}
		for _, u := range found {
			other := of != nil && (u.Kind != of.Kind || u.Group != of.Group())
			if finding.Grantable(u) && !other && !slices.ContainsFunc(lacks, func(have stowage.UnreadableKind) bool { return have.OwnerKind == u.OwnerKind }) {
				lacks = append(lacks, u)
			}
		}
	}
	return lacks, nil
}

// kindsToGrant adds the kinds that the policies of a namespace and of the cluster name and that Stowage may not read, with the ClusterRole to add. Heard are
// the resources that the replica that answered lacks.
func (i *Inspector) kindsToGrant(ctx context.Context, namespace string, heard []string, a *Answer) error {
	lacks, err := kindLacks(ctx, i.live(), namespace, nil)
	if readable(err) != nil && !absent(err) {
		return err
	}
	for _, resource := range heard {
		known := slices.IndexFunc(lacks, func(u stowage.UnreadableKind) bool { return wholeOf(u.Lacks[0]) == wholeOf(resource) })
		switch {
		case known < 0:
			if u := (stowage.UnreadableKind{Lacks: []string{resource}}); finding.Grantable(u) {
				lacks = append(lacks, u)
			}
		case !slices.Contains(lacks[known].Lacks, resource):
			lacks[known].Lacks = append(slices.Clone(lacks[known].Lacks), resource)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	accounts := i.accounts(ctx)
	a.add(finding.Finding{Reason: finding.KindNotReadable, Namespace: i.Namespace, Kind: "ServiceAccount", Name: accounts[0], Values: finding.OfUnreadable(lacks)})
	for _, u := range lacks {
		for _, resource := range u.Lacks {
			if word := stowage.CheckLacksGet + resource; !slices.Contains(a.Lacks, word) {
				a.Lacks = append(a.Lacks, word)
			}
		}
		a.Grant += i.grant(u, accounts)
	}
	return nil
}

// wholeOf is the resource of which one may be a subresource, such as pipelinesets/scale.example.net.
func wholeOf(resource string) string {
	of := schema.ParseGroupResource(resource)
	of.Resource, _, _ = strings.Cut(of.Resource, "/")
	return of.String()
}

// accounts are the names of Stowage's ServiceAccounts. Where the Deployments may not be read, they are those that an installation has by default.
func (i *Inspector) accounts(ctx context.Context) (names []string) {
	for _, deployment := range []string{i.Deployment, i.Controllers} {
		var d appsv1.Deployment
		name := deployment
		if i.Client.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: deployment}, &d) == nil {
			name = cmp.Or(d.Spec.Template.Spec.ServiceAccountName, "default")
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// grant is a ClusterRole with the rights to read a kind, and its binding, as YAML. Each kind has its own, and it has all that was granted before, so that
// nothing is lost when it is applied.
func (i *Inspector) grant(u stowage.UnreadableKind, accounts []string) string {
	whole := wholeOf(u.Lacks[0])
	group, resources := finding.Rule(append([]string{whole}, slices.DeleteFunc(slices.Clone(u.Lacks), func(lack string) bool { return lack == whole })...))
	name := "stowage-get-" + whole
	role := rbacv1.ClusterRole{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get"}}},
	}
	binding := rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: role.APIVersion, Kind: "ClusterRoleBinding"}, ObjectMeta: role.ObjectMeta,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: name},
	}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: i.Namespace, Name: account})
	}
	rules, err := yaml.Marshal(role)
	bound, failed := yaml.Marshal(binding)
	if err != nil || failed != nil {
		return "" // no value of these types does that
	}
	return "---\n" + string(rules) + "---\n" + string(bound)
}

// unreadable says that Stowage may not read the owner of the pod, with what to do, or nothing. A policy that names the kind says it in its status. For a
// strategy that has no such status, Ask has the API server asked, if the user may.
func (s *subject) unreadable(ctx context.Context, ask bool) string {
	owner := s.chain[0]
	if owner.Watched() {
		return ""
	}
	lacks, err := kindLacks(ctx, s.reader, s.pod.Namespace, &owner)
	if err == nil && len(lacks) == 0 && ask {
		lacks = s.review(ctx, owner)
	}
	if lacks = slices.DeleteFunc(lacks, func(u stowage.UnreadableKind) bool { return !finding.Grantable(u) }); len(lacks) == 0 {
		return ""
	}
	f := finding.Finding{Reason: finding.KindNotReadable, Values: finding.OfUnreadable(lacks)}
	return f.String()
}

// review asks the API server whether Stowage's accounts may get objects of a kind. It returns nothing where the user may not ask that.
func (s *subject) review(ctx context.Context, ref world.Ref) (lacks []stowage.UnreadableKind) {
	gvk, named := ref.GroupVersionKind()
	if !named {
		return nil
	}
	mapping, err := s.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil
	}
	for _, account := range s.accounts(ctx) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + s.Namespace + ":" + account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + s.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.pod.Namespace, Verb: "get", Group: gvk.Group, Resource: mapping.Resource.Resource},
		}}
		if err := s.Client.Create(ctx, review); err != nil {
			return nil
		}
		if !review.Status.Allowed {
			return []stowage.UnreadableKind{{OwnerKind: stowage.OwnerKind{Group: gvk.Group, Kind: gvk.Kind}, Lacks: []string{mapping.Resource.GroupResource().String()}}}
		}
	}
	return nil
}

// listed reports whether repair can list the pods of the owner: by its own watch, or by the selector of the owner's scale, which not every kind has.
func (s *subject) listed(ctx context.Context) bool {
	if s.chain[0].Watched() {
		return true
	}
	scale, err := worldapi.ReadScale(ctx, s.Client, s.pod.Namespace, s.chain[0])
	return err != nil || scale != nil && scale.Selector != ""
}
