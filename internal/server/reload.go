package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// ConfigMapName is the ConfigMap that may hold the settings of ReloadableFlags, by the names of their
// variables.
const ConfigMapName = "stowage-config"

// ReloadableFlags are the settings that change without a restart.
var ReloadableFlags = []string{"blocklisted-namespaces", "log-level", "paused"}

// PausedKey is the key of the ConfigMap that pauses the whole cluster.
const PausedKey = "STOWAGE_PAUSED"

// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=stowage-config,verbs=list;watch,namespace=stowage-system

// Reloader follows the settings that change without a restart. A flag or variable wins over the ConfigMap, for as long as
// the process runs. A wrong ConfigMap leaves the values from before it. Without a ConfigMap the defaults hold.
type Reloader struct {
	// Options are the settings as flags and variables give them.
	Options Options
	// Level is the level of Log.
	Level *slog.LevelVar
	Log   logr.Logger

	pinned map[string]bool // the flags that were given
}

// NewReloader returns what follows the settings. The flags were parsed into the options.
func NewReloader(o Options, fs *pflag.FlagSet, level *slog.LevelVar, log logr.Logger) *Reloader {
	r := &Reloader{Options: o, Level: level, Log: log, pinned: map[string]bool{}}
	fs.Visit(func(f *pflag.Flag) { r.pinned[f.Name] = true })
	return r
}

// NewMetric registers the metric that tells of a ConfigMap that is invalid.
func NewMetric(set *metrics.Set) prometheus.Gauge {
	return set.Gauge("stowage_config_invalid", "1 while the ConfigMap stowage-config is refused and the last good one holds, or else 0.")
}

// withConfigMap returns settings as a ConfigMap changes them, but for those that are pinned.
// It reports everything that is wrong with the ConfigMap, joined.
func withConfigMap(o Options, pinned map[string]bool, data map[string]string) (Options, error) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	byVariable := map[string]*pflag.Flag{}
	for _, name := range ReloadableFlags {
		f := fs.Lookup(name)
		byVariable[config.Variable(f)] = f
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		f, ok := byVariable[key]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s is not one of %v: any other setting is a flag or a variable of the Deployment", key, slices.Sorted(maps.Keys(byVariable))))
		case !pinned[f.Name]:
			if err := fs.Set(f.Name, data[key]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}
		}
	}
	if err := errors.Join(append(errs, o.Validate())...); err != nil {
		return o, fmt.Errorf("ConfigMap %s/%s:\n%w", o.Namespace, ConfigMapName, err)
	}
	return o, nil
}

// Start reads the ConfigMap once and returns the settings to begin with. That it is invalid
// is a [config.UsageError]; that it can't be read is not: without it, what flags and
// variables say holds.
func (r *Reloader) Start(ctx context.Context, clients kubernetes.Interface) (Options, error) {
	list, err := clients.CoreV1().ConfigMaps(r.Options.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMapName).String(),
	})
	if err != nil {
		r.Log.Error(err, "the ConfigMap is not read; what flags and variables say holds", "namespace", r.Options.Namespace, "kind", "ConfigMap", "name", ConfigMapName)
		return r.Options, nil
	}
	o := r.Options
	for i := range list.Items {
		if o, err = withConfigMap(r.Options, r.pinned, list.Items[i].Data); err != nil {
			return o, config.NewUsageError(err)
		}
	}
	r.setLevel(&o)
	return o, nil
}

// Follow follows the ConfigMap until ctx ends, and has the settings applied whenever they may have changed.
func (r *Reloader) Follow(ctx context.Context, clients kubernetes.Interface, recorder events.Recorder, invalid prometheus.Gauge, apply func(*Options)) error {
	f, err := worldapi.NewConfigMapFollower(clients, types.NamespacedName{Namespace: r.Options.Namespace, Name: ConfigMapName}, func(cm *corev1.ConfigMap) {
		if o, ok := r.configured(cm, recorder); ok {
			invalid.Set(0)
			r.setLevel(&o)
			apply(&o)
		} else {
			invalid.Set(1)
		}
	})
	if err != nil {
		return err
	}
	f.Run(ctx)
	return nil
}

// addReloader has the manager follow the settings that change, and has them applied.
func (p *process) addReloader(reloader *Reloader, apply func(*Options)) error {
	invalid := NewMetric(p.set)
	return p.mgr.Add(withoutElection(func(ctx context.Context) error {
		return reloader.Follow(ctx, p.clients.set, p.recorder, invalid, apply)
	}))
}

// configured returns the settings with a ConfigMap, which is nil if there is none. If it is invalid, configured says why, and
// returns false.
func (r *Reloader) configured(cm *corev1.ConfigMap, recorder events.Recorder) (o Options, ok bool) {
	o = r.Options
	if cm != nil {
		var err error
		if o, err = withConfigMap(r.Options, r.pinned, cm.Data); err != nil {
			r.Log.Error(err, "the last good settings stay; a replica that starts now refuses these", "namespace", cm.Namespace, "kind", "ConfigMap", "name", cm.Name)
			recorder.Warn(cm, stowage.EventInvalidConfiguration, events.Configure, "The last good settings stay, and a replica that starts now refuses these. %v", err)
			return o, false
		}
	}
	return o, true
}

func (r *Reloader) setLevel(o *Options) {
	level, _ := config.ParseLogLevel(o.LogLevel) // validated before
	if r.Level.Level() != level {
		r.Level.Set(level)
		r.Log.Info("the log level has changed", "logLevel", o.LogLevel)
	}
}
