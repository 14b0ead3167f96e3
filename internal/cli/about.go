package cli

import (
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stowage-dev/stowage/internal/platform/version"
	"github.com/stowage-dev/stowage/internal/report"
)

// page returns an output whose pages have their time, the command and the cluster.
func page(cmd *cobra.Command, out io.Writer, made time.Time, cluster string) io.Writer {
	return report.Describe(out, report.About{Made: made, Command: commandLine(cmd), Version: version.String(), Cluster: cluster})
}

// secretFlags are flags of kubectl whose values must not be in a page that somebody passes on.
var secretFlags = map[string]bool{"token": true, "password": true}

// plainWord is what needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[-\w./:=,@%+]+$`)

// commandLine is how the command could be called again, without its secrets. Flags are in the order of their names.
func commandLine(cmd *cobra.Command) string {
	words := append([]string{cmd.CommandPath()}, cmd.Flags().Args()...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		switch {
		case secretFlags[f.Name]:
			value = "SECRET"
		case f.Name == "server":
			value = withoutPassword(value)
		}
		if f.Value.Type() == "bool" && value == "true" {
			words = append(words, "--"+f.Name)
		} else {
			words = append(words, "--"+f.Name+"="+value)
		}
	})
	for i, word := range words[1:] {
		if !plainWord.MatchString(word) {
			words[i+1] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// withoutPassword is an address without the password in it.
func withoutPassword(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that cannot be read"
	}
	return u.Redacted()
}
