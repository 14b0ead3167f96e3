//go:build !offline

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/world"
)

// patchesAtOnce is how many pods are patched at the same time, and podsAPage how many are listed in one request.
const (
	patchesAtOnce = 8
	podsAPage     = 500
)

func newUngateCommand(s Streams) *cobra.Command {
	var allNamespaces, dryRun bool
	c := newConnection()
	cmd := &cobra.Command{
		Use:   "ungate [POD...]",
		Short: "Let pods through that wait at the gate, without a seat",
		Long: `Remove the scheduling gate ` + stowage.SeatGate + ` from pods, so that the scheduler finds a node for
them. They get no seat: they run in any pool until they are recreated. Other gates stay.

Stowage itself removes the gate once it has a seat for a pod. This command is for when it
does not: it is uninstalled, or cannot run. It needs nothing of Stowage. With the names of
pods it needs the right to patch pods, and without names also to list them.

New pods still get the gate where their template has it ("stowage status" lists those), or
where a MutatingAdmissionPolicy gives it to them. Delete its bindings first:

  kubectl delete mutatingadmissionpolicybinding stowage-gate-namespaces stowage-gate-pods

The exit status is 0 if no pod that was found waits at the gate any more, and 1 if not.`,
		Example: `  # Which pods of the current namespace wait?
  kubectl stowage ungate --dry-run

  # Let all pods of the cluster through
  kubectl stowage ungate -A

  # Let two pods through, with the right to patch pods alone
  kubectl stowage ungate -n shop web-0 web-1`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if allNamespaces && len(names) > 0 {
				return config.NewUsageError(errors.New("names are of one namespace; -A looks at all of them"))
			}
			if err := podNames(names); err != nil {
				return config.NewUsageError(err)
			}
			api, _, namespace, err := c.client()
			if err != nil {
				return err
			}
			if allNamespaces {
				namespace = ""
			}
			u := &ungate{api: api, clock: clock.RealClock{}, out: s.Out, progress: s.Err, dryRun: dryRun, namespaced: !allNamespaces}
			return u.run(cmd.Context(), namespace, names)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&allNamespaces, "all-namespaces", "A", allNamespaces, "Let the pods of all namespaces through")
	fs.BoolVar(&dryRun, "dry-run", dryRun, "Have the API server check each patch, and change nothing")
	c.addFlags(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd.Context(), &corev1.PodList{}, true), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// podNames refuses names of what is no pod.
func podNames(names []string) error {
	for _, name := range names {
		kind, of, given := strings.Cut(name, "/")
		if !given {
			kind, of = "pod", name
		}
		if !world.SameKind("Pod", kind) || len(validation.IsDNS1123Subdomain(of)) > 0 {
			return fmt.Errorf("%q is no pod; name pods, such as web-0 or pod/web-0", name)
		}
	}
	return nil
}

// ungate is one call of the command.
type ungate struct {
	api           client.Client
	clock         clock.PassiveClock
	out, progress io.Writer
	dryRun        bool
	namespaced    bool // pods are told without their namespaces

	mu     sync.Mutex
	done   int
	failed []error
	said   time.Time // when the progress was told
}

// ungatePatch removes the gate from a pod that has it, and changes nothing of any other.
var ungatePatch = client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"schedulingGates":[{"$patch":"delete","name":"`+stowage.SeatGate+`"}]}}`))

func (u *ungate) run(ctx context.Context, namespace string, names []string) error {
	u.said = u.clock.Now()
	if len(names) > 0 {
		pods := make([]types.NamespacedName, len(names))
		for i, name := range names {
			if _, of, given := strings.Cut(name, "/"); given {
				name = of
			}
			pods[i] = types.NamespacedName{Namespace: namespace, Name: name}
		}
		u.all(ctx, pods, false)
		return u.result(ctx)
	}
	options := &client.ListOptions{Namespace: namespace, Limit: podsAPage}
	for {
		var page corev1.PodList
		// Pods at a gate have no node, and the API server leaves out all others.
		if err := u.api.List(ctx, &page, options, client.MatchingFields{"spec.nodeName": ""}); err != nil {
			return errors.Join(fmt.Errorf("list pods: %w", err), u.result(ctx))
		}
		var pods []types.NamespacedName
		for i := range page.Items {
			if podpatch.FromPod(&page.Items[i]).Gated(stowage.SeatGate) {
				pods = append(pods, client.ObjectKeyFromObject(&page.Items[i]))
			}
		}
		u.all(ctx, pods, true)
		if options.Continue = page.Continue; options.Continue == "" || ctx.Err() != nil {
			break
		}
	}
	if err := u.result(ctx); err != nil || u.done > 0 {
		return err
	}
	_, err := fmt.Fprintf(u.progress, "No pod waits at the gate %s.\n", stowage.SeatGate)
	return err
}

// all lets some pods through. A pod that was found may be gone since.
func (u *ungate) all(ctx context.Context, pods []types.NamespacedName, found bool) {
	workqueue.ParallelizeUntil(ctx, patchesAtOnce, len(pods), func(i int) {
		var options []client.PatchOption
		if u.dryRun {
			options = append(options, client.DryRunAll)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pods[i].Namespace, Name: pods[i].Name}}
		err := u.api.Patch(ctx, pod, ungatePatch, options...)
		u.mu.Lock()
		defer u.mu.Unlock()
		switch {
		case found && apierrors.IsNotFound(err):
		case err != nil:
			u.failed = append(u.failed, fmt.Errorf("pod %s: %w", u.name(pods[i]), err))
		default:
			u.done++
			fmt.Fprintf(u.out, "pod/%s ungated%s\n", u.name(pods[i]), map[bool]string{true: " (dry run)"}[u.dryRun])
		}
		if u.clock.Since(u.said) >= 2*time.Second {
			u.said = u.clock.Now()
			fmt.Fprintf(u.progress, "%d pods so far\n", u.done)
		}
	})
}

func (u *ungate) name(pod types.NamespacedName) string {
	if u.namespaced {
		return pod.Name
	}
	return pod.String()
}

// mostErrors is how many errors are told.
const mostErrors = 10

func (u *ungate) result(ctx context.Context) error {
	if n := len(u.failed); n > mostErrors {
		u.failed = append(u.failed[:mostErrors:mostErrors], fmt.Errorf("and %d other pods", n-mostErrors))
	}
	return errors.Join(append(u.failed, ctx.Err())...)
}
