//go:build !offline

package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/server"
)

func newPauseCommand(s Streams) *cobra.Command {
	return newSwitch(s, true, &cobra.Command{
		Use:   "pause",
		Short: "Have Stowage change and evict no pods that exist, in the cluster or a namespace",
		Long: `Stop everything that Stowage does to pods that exist: evictions, seats for pods that have
none, resizes, and deletion costs. It takes a few seconds, and lasts until "stowage resume",
whichever replica leads. What is written on pods stays. New pods are decided as ever.

Without -n, the whole cluster is paused, by a key of the ConfigMap ` + server.ConfigMapName + `; that takes
the right to patch it. With -n, the namespace is paused by its label
` + stowage.PausedLabel + `=` + stowage.PausedOn + `.

"stowage status" says what is paused before anything else.`,
		Example: `  # Stop everything, such as during an incident
  kubectl stowage pause

  # One namespace
  kubectl stowage pause -n shop`,
	})
}

func newResumeCommand(s Streams) *cobra.Command {
	return newSwitch(s, false, &cobra.Command{
		Use:   "resume",
		Short: "Have Stowage go on after a pause, in the cluster or a namespace",
		Long: `Undo "stowage pause": without -n that of the cluster, and with -n that of a namespace.
A namespace that was paused by itself stays so when the cluster goes on.`,
		Example: `  kubectl stowage resume
  kubectl stowage resume -n shop`,
	})
}

// newSwitch adds flags and the action to the command pause or resume.
func newSwitch(s Streams, pause bool, cmd *cobra.Command) *cobra.Command {
	c, own := newConnection(), server.DefaultOptions().Namespace
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, _, namespace, err := c.client()
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("namespace") {
			namespace = ""
		}
		return setPaused(cmd.Context(), s, api, own, namespace, pause)
	}
	cmd.Flags().StringVar(&own, "stowage-namespace", own, "Namespace that Stowage runs in")
	c.addFlags(cmd)
	c.completeNamespaces(cmd, "stowage-namespace")
	return cmd
}

// setPaused pauses a namespace, or the cluster if it is empty, or has it go on.
func setPaused(ctx context.Context, s Streams, api client.Client, own, namespace string, pause bool) error {
	var object client.Object = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	what, key, value := "namespace "+namespace, stowage.PausedLabel, any(stowage.PausedOn)
	at := func(value any) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}}
	}
	if namespace == "" {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: server.ConfigMapName}}
		what, key, value = "the cluster", server.PausedKey, "true"
		at = func(value any) map[string]any { return map[string]any{"data": map[string]any{key: value}} }
	}
	if !pause {
		value = nil
	}
	body, err := json.Marshal(at(value))
	if err != nil {
		return err
	}
	err = api.Patch(ctx, object, client.RawPatch(types.MergePatchType, body))
	switch {
	case apierrors.IsNotFound(err) && namespace == "":
		return config.NewUsageError(fmt.Errorf("there is no ConfigMap %s in namespace %s; name the namespace that Stowage runs in with --stowage-namespace", server.ConfigMapName, own))
	case apierrors.IsNotFound(err):
		return config.NewUsageError(fmt.Errorf("there is no namespace %s", namespace))
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	text := what + " is paused: Stowage changes and evicts no pods that exist there; kubectl stowage resume has it go on"
	if !pause {
		text = what + " is not paused any more"
	}
	_, err = fmt.Fprintln(s.Out, text)
	return err
}
