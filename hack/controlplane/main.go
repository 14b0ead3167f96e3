// Command controlplane runs a local cluster with Stowage in it: a real control
// plane on loopback, fake nodes, no Docker. `make up` and `make down` call it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stowage-dev/stowage/test/controlplane"
)

func main() {
	// Without a logger, controller-runtime prints a goroutine's stack after half a minute.
	ctrllog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "controlplane",
		Short:         "Build and run a local Kubernetes control plane with Stowage in it",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", "", "Directory of the cluster's files (default bin/cluster)")
	root.AddCommand(
		buildCommand(),
		pinCommand(),
		upCommand(&dir),
		&cobra.Command{
			Use:   "down",
			Short: "End the local cluster and remove its files",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				c, err := newLocal(dir)
				if err != nil {
					return err
				}
				return c.down(cmd.OutOrStdout())
			},
		},
		superviseCommand(&dir),
		&cobra.Command{
			Use:   "certs DIR",
			Short: "Write a self-signed certificate for localhost, as tls.crt and tls.key, and as ca.crt for a caBundle",
			Args:  cobra.ExactArgs(1),
			RunE:  func(_ *cobra.Command, args []string) error { return controlplane.WriteServingCertificate(args[0]) },
		},
		&cobra.Command{
			Use:   "status",
			Short: "Say whether the local cluster is up; the exit status is 1 if it is not",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				l, err := newLocal(dir)
				if err != nil {
					return err
				}
				if l.supervisor() == 0 {
					return errors.New("no local cluster is up")
				}
				fmt.Fprintln(cmd.OutOrStdout(), "A local cluster is up.")
				return nil
			},
		},
	)
	return root
}

func pinCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pin",
		Short: "Download the released programs of the pinned versions, and write their checksums",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			repo, err := controlplane.RepositoryRoot()
			if err != nil {
				return err
			}
			return controlplane.Pin(cmd.Context(), repo, cmd.OutOrStdout())
		},
	}
}

func buildCommand() *cobra.Command {
	var nodes bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the control plane's programs that are missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			repo, err := controlplane.RepositoryRoot()
			if err != nil {
				return err
			}
			if err := controlplane.Build(cmd.Context(), repo, cmd.OutOrStdout()); err != nil || !nodes {
				return err
			}
			return controlplane.BuildNodePrograms(cmd.Context(), repo, cmd.OutOrStdout())
		},
	}
	cmd.Long = cmd.Short + `.

A program whose checksum is in hack/controlplane/checksums.txt is downloaded from its
project's release address, and built if that fails. With the variable CONTROLPLANE=build,
every program is built.`
	cmd.Flags().BoolVar(&nodes, "nodes", false, "Build kubelet and kube-proxy, too, for real nodes")
	return cmd
}
