package suite

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// suites are the packages whose tests use, together, every permission of config/rbac/role.yaml.
var suites = []string{"e2e", "resources", "serving", "situations"}

// unusedFile is where the named one of [suites] writes the permissions that it did not use.
func unusedFile(name string) string {
	return filepath.Join(Repo, "bin", "test", "unused", name+".txt")
}

// RunAudited is [Run] for one of the packages that use every permission. It fails if a request of Stowage was forbidden.
func RunAudited(name string, test func(ctx context.Context) (int, error)) int {
	flag.Parse()
	return Run(true, func(ctx context.Context) (int, error) {
		// Only a whole package uses what it is there for.
		asked := func(name string) bool { return flag.Lookup("test."+name).Value.String() != "" }
		if asked("run") || asked("skip") || asked("list") {
			return test(ctx)
		}
		if err := os.Remove(unusedFile(name)); err != nil && !os.IsNotExist(err) {
			return 0, err
		}
		code, err := test(ctx)
		if err != nil || code != 0 {
			return code, err
		}
		Cluster.StopStowage() // a watch is in the audit log when it has ended
		if err := auditRests(); err != nil {
			return 0, err
		}
		var unused []string
		for _, account := range controlplane.Accounts {
			of, err := unusedOf(account)
			if err != nil {
				return 0, fmt.Errorf("ServiceAccount %s:\n%w", account, err)
			}
			unused = append(unused, of...)
		}
		if err := os.MkdirAll(filepath.Dir(unusedFile(name)), 0o755); err != nil {
			return 0, err
		}
		roles, err := rolesHash()
		if err != nil {
			return 0, err
		}
		return 0, os.WriteFile(unusedFile(name), []byte(strings.Join(append([]string{roles}, unused...), "\n")), 0o644)
	})
}

// auditRests waits until the audit log grows no more.
func auditRests() error {
	last := -1
	return Poll(context.Background(), time.Second, WaitTimeout, func() (bool, error) {
		events, err := Cluster.Audit()
		rests := len(events) == last
		last = len(events)
		return rests, err
	})
}

// Unused returns the permissions that none of the audited packages has used when it last ran as a whole.
func Unused() ([]string, error) {
	var err error
	if Repo, err = controlplane.RepositoryRoot(); err != nil {
		return nil, err
	}
	roles, err := rolesHash()
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, name := range suites {
		text, err := os.ReadFile(unusedFile(name))
		if err != nil {
			return nil, fmt.Errorf("%w: run `make test-cluster test-more`, all of whose packages must pass", err)
		}
		permissions := strings.Split(string(text), "\n")
		if permissions[0] != roles {
			return nil, fmt.Errorf("%s is of another role.yaml: run `make test-cluster test-more`", unusedFile(name))
		}
		permissions = permissions[1:]
		slices.Sort(permissions)
		for _, permission := range slices.Compact(permissions) { // two roles may grant the same
			count[permission]++
		}
	}
	delete(count, "")
	maps.DeleteFunc(count, func(_ string, n int) bool { return n < len(suites) })
	return slices.Sorted(maps.Keys(count)), nil
}

// rolesHash changes with the roles, and is the first line of each [unusedFile].
func rolesHash() (string, error) {
	text, err := os.ReadFile(filepath.Join(Repo, "config", "rbac", "role.yaml"))
	return fmt.Sprintf("%x", sha256.Sum256(text)), err
}

// roleOf reports whether an account has a role: the name of the role says whether it is for one of them alone.
func roleOf(account, role string) bool {
	only := map[string]string{"stowage": "-controllers", "stowage-controllers": "-webhook"}
	return !strings.HasSuffix(role, only[account])
}

// unusedOf returns the permissions that an account has and no request of it has used. Its error names each request that was forbidden.
func unusedOf(account string) ([]string, error) {
	objects, err := controlplane.ReadObjects(filepath.Join(Repo, "config", "rbac", "role.yaml"))
	if err != nil {
		return nil, err
	}
	var rules, shared []rbacv1.PolicyRule
	granted := map[string]bool{} // what the ClusterRole names
	for _, o := range objects {
		if !roleOf(account, o.GetName()) {
			continue
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			return nil, err
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
	events, err := Cluster.Audit()
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(slices.Clone(events), func(e controlplane.AuditEvent) bool { return e.Account() != account })
	// The same code reads for both what a watch does not know (world/cache), so one of them shows that it does.
	own = append(own, slices.DeleteFunc(events, func(e controlplane.AuditEvent) bool {
		return e.Account() == account || e.Verb != "get" || !allows(shared, e)
	})...)
	var unused []string
	for _, p := range unusedRules(slices.Concat(rules, shared), own) {
		unused = append(unused, account+": "+p)
	}
	return unused, refused(own, granted)
}

// allows reports whether rules allow what an event asked for, names apart.
func allows(rules []rbacv1.PolicyRule, e controlplane.AuditEvent) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, e.Verb) && slices.Contains(r.APIGroups, e.ObjectRef.Group) && slices.Contains(r.Resources, e.ObjectRef.Resource)
	})
}

// unusedRules returns the permissions of rules that no event has used.
func unusedRules(rules []rbacv1.PolicyRule, events []controlplane.AuditEvent) (unused []string) {
	type permission struct{ verb, group, resource, name string }
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
						if resource == "pods/resize" && !Server.Resize {
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
							unused = append(unused, fmt.Sprintf("%s of %s.%s %s", p.verb, p.resource, cmp.Or(p.group, "core"), p.name))
						}
					}
				}
			}
		}
	}
	return unused
}

// refused reports requests of Stowage that were forbidden.
func refused(events []controlplane.AuditEvent, granted map[string]bool) error {
	var errs []error
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
