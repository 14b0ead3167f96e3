//go:build !offline

package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// completeTimeout bounds what a shell waits for after the Tab key.
const completeTimeout = 3 * time.Second

// completable are the kinds whose names are completed, as people write them.
var completable = []struct {
	kind string
	list func() client.ObjectList
}{
	{"pod", func() client.ObjectList { return &corev1.PodList{} }},
	{"deployment", func() client.ObjectList { return &appsv1.DeploymentList{} }},
	{"statefulset", func() client.ObjectList { return &appsv1.StatefulSetList{} }},
	{"daemonset", func() client.ObjectList { return &appsv1.DaemonSetList{} }},
	{"replicaset", func() client.ObjectList { return &appsv1.ReplicaSetList{} }},
	{"node", func() client.ObjectList { return &corev1.NodeList{} }},
}

// names lists the objects of a kind, in the namespace that the flags name. Errors give no names: a shell has no
// place for them.
func (o *connection) names(ctx context.Context, list client.ObjectList, namespaced bool) (names []string) {
	c, _, namespace, err := o.client()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	if !namespaced {
		namespace = ""
	}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(obj runtime.Object) error {
		if o, ok := obj.(client.Object); ok {
			names = append(names, o.GetName())
		}
		return nil
	})
	return names
}

// completeObjects completes KIND/NAME and, where two words are one object, KIND NAME. Kinds are left out by
// without.
func (o *inspectOptions) completeObjects(twoWords bool, without ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) (out []string, _ cobra.ShellCompDirective) {
		kind, _, slash := strings.Cut(text, "/")
		named := slash // the kind is written, and a name is to come
		if twoWords && len(args) > 0 {
			if len(args) > 1 || strings.Contains(args[0], "/") {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			kind, named = args[0], true
		}
		for _, k := range completable {
			switch {
			case slices.Contains(without, k.kind):
			case named && world.SameKind(k.kind, kind):
				for _, name := range o.names(cmd.Context(), k.list(), k.kind != "node") {
					if slash {
						name = kind + "/" + name
					}
					out = append(out, name)
				}
			case !named && strings.HasPrefix(k.kind, text):
				out = append(out, k.kind+"/")
			}
		}
		if named {
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeNamespaces completes the values of a flag that is a namespace.
func (o *connection) completeNamespaces(cmd *cobra.Command, flag string) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.names(cmd.Context(), &corev1.NamespaceList{}, false), cobra.ShellCompDirectiveNoFileComp
	})) // the flag was added just before
}
