package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// usesEveryPermission reports each permission of config/rbac/role.yaml that one of Stowage's accounts has and no request of
// that account has used in the suite, and each request that was forbidden.
func usesEveryPermission() error {
	var errs []error
	for _, account := range controlplane.Accounts {
		if err := usesPermissionsOf(account); err != nil {
			errs = append(errs, fmt.Errorf("ServiceAccount %s:\n%w", account, err))
		}
	}
	return errors.Join(errs...)
}

// roleOf reports whether an account has a role: the name of the role says whether it is for one of them alone.
func roleOf(account, role string) bool {
	only := map[string]string{"stowage": "-controllers", "stowage-controllers": "-webhook"}
	return !strings.HasSuffix(role, only[account])
}

func usesPermissionsOf(account string) error {
	objects, err := controlplane.ReadObjects(filepath.Join(repo, "config", "rbac", "role.yaml"))
	if err != nil {
		return err
	}
	var rules, shared []rbacv1.PolicyRule
	granted := map[string]bool{} // what the ClusterRole names
	for _, o := range objects {
		if !roleOf(account, o.GetName()) {
			continue
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			return err
		}
		if roleOf(controlplane.Accounts[0], o.GetName()) && roleOf(controlplane.Accounts[1], o.GetName()) {
			shared = append(shared, role.Rules...)
		} else {
			rules = append(rules, role.Rules...)
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				granted[resource] = granted[resource] || o.GetKind() == "ClusterRole"
			}
		}
	}
	// The log is written behind the requests.
	var left error
	err = wait.PollUntilContextTimeout(context.Background(), waitInterval, 5*time.Second, true, func(context.Context) (bool, error) {
		events, err := cluster.Audit()
		if err != nil {
			return false, err
		}
		own := slices.DeleteFunc(slices.Clone(events), func(e controlplane.AuditEvent) bool { return e.Account() != account })
		// The same code reads for both what a watch does not know (world/cache), so one of them shows that it does.
		own = append(own, slices.DeleteFunc(events, func(e controlplane.AuditEvent) bool {
			return e.Account() == account || e.Verb != "get" || !allows(shared, e)
		})...)
		left = unused(slices.Concat(rules, shared), granted, own)
		return left == nil, nil
	})
	if left != nil {
		return left
	}
	return err
}

// allows reports whether rules allow what an event asked for, names apart.
func allows(rules []rbacv1.PolicyRule, e controlplane.AuditEvent) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, e.Verb) && slices.Contains(r.APIGroups, e.ObjectRef.Group) && slices.Contains(r.Resources, e.ObjectRef.Resource)
	})
}

// unused reports the permissions of rules that no event has used, and forbidden events.
func unused(rules []rbacv1.PolicyRule, granted map[string]bool, events []controlplane.AuditEvent) error {
	type permission struct{ verb, group, resource, name string }
	var errs []error
	for _, r := range rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, verb := range r.Verbs {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						p := permission{verb, group, resource, name}
						if resource == "pods/resize" && !suite.Server.Resize {
							continue // this Kubernetes does not serve it
						}
						if !slices.ContainsFunc(events, func(e controlplane.AuditEvent) bool {
							asked := e.ObjectRef.Resource
							if e.ObjectRef.Subresource != "" {
								asked += "/" + e.ObjectRef.Subresource
							}
							end, anyResource := strings.CutPrefix(p.resource, "*")
							// Servers without streamed lists, before 1.34, are asked for a list first.
							return (e.Verb == p.verb || p.verb == "list" && e.Verb == "watch") && (p.group == "*" || p.group == e.ObjectRef.Group) &&
								(asked == p.resource || anyResource && strings.HasSuffix(asked, end)) &&
								(p.name == "" || p.name == e.ObjectRef.Name)
						}) {
							errs = append(errs, fmt.Errorf("nothing uses %s of %s.%s %s", p.verb, p.resource, cmp.Or(p.group, "core"), p.name))
						}
					}
				}
			}
		}
	}
	for _, e := range events {
		// An owner of a kind that nobody granted us is asked for, and its pod left alone.
		owner := e.Verb == "get" && !granted[e.ObjectRef.Resource] && e.ObjectRef.Namespace != "" && e.ObjectRef.Namespace != controlplane.StowageNamespace
		ours := strings.HasPrefix(e.UserAgent, "stowage/") // and not a test with our token
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" && ours && !owner {
			errs = append(errs, fmt.Errorf("forbidden: %+v", e))
		}
		if ours && strings.Contains(e.ResponseStatus.Message, "ValidatingAdmissionPolicy 'stowage-") {
			errs = append(errs, fmt.Errorf("refused by a policy of Stowage's own: %+v", e))
		}
	}
	return errors.Join(errs...)
}
