package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestServeReportsEveryBadSettingAtOnce(t *testing.T) {
	code, shown := run(t, "", map[string]string{"STOWAGE_DRAIN_TIMEOUT": "soon", "LOG_LEVEL": "LOUD", "TLS_MIN_VERSION": "VersionTLS11", "PEERPODS_SIZING": "Half"},
		"serve", "--port", "0", "--namespace", "Not_A_Name", "--tls-cipher-suites", "TLS_RSA_WITH_RC4_128_SHA,NONE",
		"--metrics-bind-address", "9", "--log-format", "xml", "--shutdown-delay=-1s", "--pod-vm-extended-resource", "vm",
		"--cert-extra-dns-names", "a b")
	if code != 2 {
		t.Errorf("exit status %d, want 2", code)
	}
	for _, part := range []string{
		`$STOWAGE_DRAIN_TIMEOUT`, `"LOUD" must be ERROR`, `"VersionTLS11" is not secure`, "--port is 0", `--namespace is "Not_A_Name"`,
		"TLS_RSA_WITH_RC4_128_SHA is insecure", `"NONE" is no cipher suite`, `--metrics-bind-address is "9"`, `--log-format is "xml"`,
		"--shutdown-delay is -1s", `--pod-vm-extended-resource: VM resource: "vm"`, "$LOG_LEVEL", `$TLS_MIN_VERSION: `,
		`$PEERPODS_SIZING: sizing "Half"`, `--cert-extra-dns-names has "a b"`,
	} {
		if !strings.Contains(shown, part) {
			t.Errorf("%q is missing in\n%s", part, shown)
		}
	}
}

func TestServeWithoutACluster(t *testing.T) {
	code, shown := run(t, "", nil, "serve", "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	if code != 1 || !strings.Contains(shown, "find the API server") {
		t.Errorf("exit status %d:\n%s", code, shown)
	}
}

func TestCommandLine(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		code int
		part string
	}{
		"no command":         {nil, 0, "Available Commands"},
		"help":               {[]string{"serve", "--help"}, 0, "[$LOG_LEVEL]"},
		"version":            {[]string{"version"}, 0, "\n"},
		"completion":         {[]string{"completion", "bash"}, 0, "__start_stowage"},
		"completed kinds":    {[]string{"__complete", "explain", "d"}, 0, "deployment/\ndaemonset/\n"},
		"completed formats":  {[]string{"__complete", "status", "-o", ""}, 0, "table\nwide\njson\nyaml\n"},
		"an unknown command": {[]string{"sevre"}, 2, `unknown command "sevre"`},
		"an argument":        {[]string{"version", "now"}, 2, "now"},
	} {
		t.Run(name, func(t *testing.T) {
			code, shown := run(t, "", nil, tc.args...)
			if code != tc.code || !strings.Contains(shown, tc.part) {
				t.Errorf("exit status %d, want %d; %q in\n%s", code, tc.code, tc.part, shown)
			}
		})
	}
}
