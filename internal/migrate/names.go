package migrate

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// plain returns a name of the input as notes and errors have it: quoted if a part of it does not print. Whoever may write the input
// would otherwise add lines to a manifest that an administrator applies.
func plain(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// show names an object in notes and errors.
func show(u *unstructured.Unstructured) string {
	return plain(fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName()))
}

// checkIdentity refuses an object that no API server has stored: its PodDistributor names the workload's API version, kind and name.
func checkIdentity(u *unstructured.Unstructured) error {
	var wrong []string
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	for _, part := range []struct {
		field, value string
		ok           bool
	}{
		{"apiVersion", u.GetAPIVersion(), err == nil && len(validation.IsDNS1035Label(gv.Version)) == 0 && (gv.Group == "" || len(validation.IsDNS1123Subdomain(gv.Group)) == 0)},
		{"kind", u.GetKind(), len(validation.IsDNS1035Label(strings.ToLower(u.GetKind()))) == 0},
		{"metadata.namespace", u.GetNamespace(), len(validation.IsDNS1123Label(u.GetNamespace())) == 0},
		{"metadata.name", u.GetName(), len(validation.IsDNS1123Subdomain(u.GetName())) == 0},
	} {
		if !part.ok {
			wrong = append(wrong, fmt.Sprintf("%s is %q, which no object of a cluster has", part.field, part.value))
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// checkFirst refuses a workload that the input has before. Two of one kind in different API groups count as one, too: their
// PodDistributors would have one name.
func checkFirst(seen map[string]bool, u *unstructured.Unstructured) error {
	key := u.GetNamespace() + "/" + distributorName(u.GetName(), u.GetKind())
	if seen[key] {
		return errors.New("the input has it twice; leave one in the input")
	}
	seen[key] = true
	return nil
}

// distributorName returns the name of a workload's PodDistributor. It always ends with the kind: a Deployment and a StatefulSet of one
// name get two objects, also when they are read one after the other. A long name is cut, and then has a hash.
func distributorName(workload, kind string) string {
	suffix := "-" + strings.ToLower(kind)
	if len(workload)+len(suffix) <= validation.DNS1123SubdomainMaxLength {
		return workload + suffix
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(workload))
	suffix = "-" + strconv.FormatUint(h.Sum64(), 36) + suffix
	return strings.TrimRight(workload[:validation.DNS1123SubdomainMaxLength-len(suffix)], "-.") + suffix
}
