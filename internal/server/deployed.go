package server

import (
	"cmp"
	"slices"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/config"
)

// Deployed returns the settings of a Stowage that runs as a Deployment. They come from its arguments and variables,
// and from the ConfigMap that may change some of them. Without a container, they are the defaults. An invalid ConfigMap is ignored,
// and why it is invalid is returned: the replicas keep what held before it.
func Deployed(d *appsv1.Deployment, configMap map[string]string) (o Options, invalid, err error) {
	o = DefaultOptions()
	o.Namespace = cmp.Or(d.Namespace, o.Namespace)
	containers := d.Spec.Template.Spec.Containers
	pinned := map[string]bool{}
	if n := max(0, slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "stowage" })); len(containers) > 0 {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.ParseErrorsAllowlist.UnknownFlags = true // of another version
		o.AddFlags(fs)
		env := map[string]string{}
		for _, e := range containers[n].Env {
			if e.ValueFrom == nil {
				env[e.Name] = e.Value
			}
		}
		if err := fs.Parse(containers[n].Args); err != nil {
			return o, nil, err
		}
		if err := config.ApplyEnv(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok }); err != nil {
			return o, nil, err
		}
		fs.Visit(func(f *pflag.Flag) { pinned[f.Name] = true })
		if err := o.Validate(); err != nil {
			return o, nil, err
		}
	}
	with, invalid := withConfigMap(o, pinned, configMap)
	if invalid == nil {
		o = with
	}
	return o, invalid, nil
}
