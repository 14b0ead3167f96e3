package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/world"
)

// mostEdits is in how many letters a word may differ from the one that it is taken for.
const mostEdits = 2

// unknownCommand refuses the first argument of a command that has only subcommands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return config.NewUsageError(fmt.Errorf("unknown command %q%s", args[0], didYouMean(cmd.SuggestionsFor(args[0])...)))
}

// unknownShell refuses a shell for which there is no completion.
func unknownShell(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var shells []string
	for _, c := range cmd.Commands() {
		shells = append(shells, c.Name())
	}
	return config.NewUsageError(fmt.Errorf("there is no completion for %q; the shells are %s", args[0], strings.Join(shells, ", ")))
}

// flagError marks an error about flags as one in how the command was called, and names a flag that is like an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if name := closest(unknown.GetSpecifiedName(), names); name != "" {
			err = fmt.Errorf("%w%s", err, didYouMean("--"+name))
		}
	}
	return config.NewUsageError(err)
}

// completeRoot adds the commands that the library has for every program, and has them refuse what they do not know.
func completeRoot(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.Args = unknownShell
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range c.Commands() {
				shell.Args = noArgs
			}
		case "help":
			c.Run = nil
			c.RunE = func(_ *cobra.Command, args []string) error {
				of, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return unknownCommand(root, args)
				}
				of.InitDefaultHelpFlag()
				return of.Help()
			}
		}
	}
}

// writtenKinds are the kinds that the commands look at, as people write them.
var writtenKinds = []string{
	"pod", "deployment", "statefulset", "daemonset", "replicaset", "replicationcontroller", "job", "cronjob", "node", "rollout", "cloneset",
	"poddistributor", "spreadpolicy", "clusterspreadpolicy", "flexdaemonsettemplate",
}

// likeKinds returns the objects, written as KIND/NAME, with a known kind instead of one that is like it. It leaves out those whose kind is
// known, or like none.
func likeKinds(objects []string) (out []string) {
	for _, object := range objects {
		kind, name, _ := strings.Cut(object, "/")
		known := slices.ContainsFunc(writtenKinds, func(k string) bool { return world.SameKind(k, kind) })
		if like := closest(kind, writtenKinds); like != "" && !known {
			out = append(out, like+"/"+name)
		}
	}
	return out
}

// closest returns the candidate that a word is probably meant to be, or "". Short words are like many others, so they have none.
func closest(word string, candidates []string) (best string) {
	word = strings.ToLower(word)
	if len(word) <= mostEdits+1 {
		return ""
	}
	least := mostEdits + 1
	for _, c := range candidates {
		if n := edits(word, strings.ToLower(c)); n < least && n > 0 {
			best, least = c, n
		}
	}
	return best
}

// edits is the least number of characters to insert, remove or replace that makes one word the other.
func edits(a, b string) int {
	before := make([]int, len(b)+1) // of the prefixes of b, for the prefix of a that is one shorter
	for j := range before {
		before[j] = j
	}
	for i := range len(a) {
		now := make([]int, len(b)+1)
		now[0] = i + 1
		for j := range len(b) {
			replaced := before[j]
			if a[i] != b[j] {
				replaced++
			}
			now[j+1] = min(replaced, before[j+1]+1, now[j]+1)
		}
		before = now
	}
	return before[len(b)]
}

// didYouMean is the end of a message about an unknown word, or nothing where no other word is like it.
func didYouMean(words ...string) string {
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	if len(words) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(words, " or ") + "?"
}

// completeFormats completes the values of -o.
func completeFormats(cmd *cobra.Command, formats []string) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
}
