package server

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/config"
)

func TestEnvironment(t *testing.T) {
	parse := func(env map[string]string, args ...string) Options {
		t.Helper()
		o := DefaultOptions()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := config.ApplyEnv(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		return o
	}
	env := map[string]string{"LOG_LEVEL": "", "TARGET_RUNTIMECLASS": " kata-a , kata-b,", "POD_NAMESPACE": "", "TLS_MIN_VERSION": "1.3"}
	o := parse(env, "--tls-min-version", "VersionTLS12")
	if o.LogLevel != "" {
		t.Errorf("the log level is %q, want none: an empty LOG_LEVEL has a meaning", o.LogLevel)
	}
	if got := strings.Join(o.VM.Feature.Config.RuntimeClasses, "|"); got != "kata-a|kata-b" {
		t.Errorf("the RuntimeClasses are %s", got)
	}
	if o.Namespace != "stowage-system" {
		t.Errorf("the namespace is %q: an empty variable counts as unset", o.Namespace)
	}
	if o.TLSMinVersion != "VersionTLS12" {
		t.Errorf("the TLS version is %s: a flag wins over a variable", o.TLSMinVersion)
	}
}

func TestUnknownVariablesAreRefused(t *testing.T) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := config.UnknownVariables(fs, []string{
		"STOWAGE_LOGLEVEL=INFO", "PEERPODS_LIMIT_PER_NODES=3", // wrong
		"STOWAGE_SPREAD=false", "PEERPODS_LIMIT_PER_NODE=3", "LOG_LEVELS=x", "PATH=/bin", // right, or not ours
		"STOWAGE_WEBHOOK_PORT=tcp://10.0.0.1:443", "STOWAGE_WEBHOOK_SERVICE_HOST=10.0.0.1", "STOWAGE_METRICS_PORT_8080_TCP=x", "PEERPODS_X_SERVICE_PORT_HTTPS=443",
		"STOWAGE_PORT=9443", // wrong
	})
	if got, want := fmt.Sprint(err), "$STOWAGE_LOGLEVEL is no setting; unset it, or correct its name\n$PEERPODS_LIMIT_PER_NODES is no setting; unset it, or correct its name\n$STOWAGE_PORT is no setting; unset it, or correct its name"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// What is wrong with a ConfigMap is said at once, and a flag or variable wins over it.
func TestConfigMap(t *testing.T) {
	base := DefaultOptions()
	base.LogLevel = "WARN"
	for name, tc := range map[string]struct {
		data     map[string]string
		pinned   map[string]bool
		level    string
		excluded string
		problems []string
	}{
		"nothing":          {level: "WARN"},
		"both":             {data: map[string]string{"LOG_LEVEL": "DEBUG", "BLOCKLISTED_NAMESPACE_LIST": "a , b"}, level: "DEBUG", excluded: "a,b"},
		"a flag wins":      {data: map[string]string{"LOG_LEVEL": "DEBUG"}, pinned: map[string]bool{"log-level": true}, level: "WARN"},
		"an empty list":    {data: map[string]string{"BLOCKLISTED_NAMESPACE_LIST": ""}, level: "WARN"},
		"all that's wrong": {data: map[string]string{"LOG_LEVEL": "LOUD", "BLOCKLISTED_NAMESPACE_LIST": "A_B", "TARGET_RUNTIMECLASS": "x"}, problems: []string{`"LOUD" must be`, `"A_B"`, "TARGET_RUNTIMECLASS is not one of", "stowage-system/stowage-config"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := withConfigMap(base, tc.pinned, tc.data)
			if (err != nil) != (tc.problems != nil) {
				t.Fatal(err)
			}
			for _, p := range tc.problems {
				if !strings.Contains(err.Error(), p) {
					t.Errorf("%q is missing in\n%v", p, err)
				}
			}
			if err == nil && (o.LogLevel != tc.level || strings.Join(o.Spread.Feature.ExcludedNamespaces, ",") != tc.excluded) {
				t.Errorf("level %s, excluded %v", o.LogLevel, o.Spread.Feature.ExcludedNamespaces)
			}
		})
	}
	if base.LogLevel != "WARN" || len(base.Spread.Feature.ExcludedNamespaces) != 0 {
		t.Error("the settings without the ConfigMap have changed")
	}
}

// The TLS settings are read as the peer-pods webhook reads them.
func TestTLSSettings(t *testing.T) {
	o := DefaultOptions()
	o.TLSMinVersion = " VersionTLS13 "
	if err := o.Validate(); err != nil || o.TLSMinVersion != "VersionTLS13" {
		t.Errorf("spaces around a version: %q, %v", o.TLSMinVersion, err)
	}
	o.TLSCipherSuites = []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "TLS 1.3 has its own suites") {
		t.Errorf("cipher suites with TLS 1.3: %v", err)
	}
	o.TLSMinVersion = "VersionTLS12"
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

// A Deployment's arguments and variables are its settings; the ConfigMap changes what they leave out.
func TestDeployed(t *testing.T) {
	d := &appsv1.Deployment{}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "proxy"}, {
		Name: "stowage", Args: []string{"serve", "--sizing=false", "--of-a-later-version=1"},
		Env: []corev1.EnvVar{{Name: "TARGET_RUNTIMECLASS", Value: "kata-a,kata-b"}, {Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{}}},
	}}
	o, _, err := Deployed(d, map[string]string{"BLOCKLISTED_NAMESPACE_LIST": "a, b"})
	if err != nil || o.Size.Feature.Enabled || len(o.VM.Feature.Config.RuntimeClasses) != 2 || len(o.Spread.Feature.ExcludedNamespaces) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, invalid, err := Deployed(&appsv1.Deployment{}, map[string]string{"LOG_LEVEL": "loud"}); err != nil || invalid == nil || !o.Size.Feature.Enabled {
		t.Errorf("without a Deployment, and with a ConfigMap that is refused: %+v, %v", o, err)
	}
	d.Spec.Template.Spec.Containers[1].Args = []string{"serve", "--port=many"}
	if _, _, err := Deployed(d, nil); err == nil {
		t.Error("an argument that does not parse is taken")
	}
}

// Kubernetes sets variables named after the Services of a namespace; ours must not
// be among them.
func TestVariablesDoNotCollideWithServices(t *testing.T) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	seen := map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) {
		env := config.Variable(f)
		if seen[env] {
			t.Errorf("two flags have the variable %s", env)
		}
		seen[env] = true
		ours := regexp.MustCompile(`^STOWAGE_((WEBHOOK|METRICS)_)?(PORT|SERVICE)(_|$)`)
		anybodys := regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT_[0-9]+_(TCP|UDP|SCTP)`)
		if ours.MatchString(env) || anybodys.MatchString(env) {
			t.Errorf("--%s: Kubernetes sets $%s beside one of our Services", f.Name, env)
		}
	})
}
