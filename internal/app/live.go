package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/policy"
)

// configMap may hold the settings of liveFlags, by the names of their variables.
const configMap = "stowage-config"

// liveFlags are the settings that change without a restart.
var liveFlags = []string{"blocklisted-namespaces", "log-level"}

// ReasonInvalidConfiguration is that of the event about a ConfigMap that is refused.
const ReasonInvalidConfiguration = "InvalidConfiguration"

// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=stowage-config,verbs=list;watch,namespace=stowage-system

// live follows the settings that change without a restart. A flag or variable wins over the
// ConfigMap, for as long as the process runs; a ConfigMap that is wrong, or gone, leaves
// what held before it, or what holds without it.
type live struct {
	options   Options         // as flags and variables say
	pinned    map[string]bool // the flags that were given
	level     *slog.LevelVar
	clientset kubernetes.Interface
	log       logr.Logger
	events    events.EventRecorder
	invalid   prometheus.Gauge
	finder    *policy.Finder // nil where the spread is off
}

// newInvalidConfig returns the metric that tells of a ConfigMap that is refused.
func newInvalidConfig() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "stowage_config_invalid",
		Help: "1 while the ConfigMap stowage-config is refused and the last good one holds, or else 0.",
	})
}

// given returns the flags that a flag or a variable has set.
func given(fs *pflag.FlagSet) map[string]bool {
	out := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { out[f.Name] = true })
	return out
}

// withConfigMap returns settings as a ConfigMap changes them, but for those that are pinned.
// It reports everything that is wrong with the ConfigMap, joined.
func withConfigMap(o Options, pinned map[string]bool, data map[string]string) (Options, error) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	byVariable := map[string]*pflag.Flag{}
	for _, name := range liveFlags {
		f := fs.Lookup(name)
		byVariable[f.Annotations[envAnnotation][0]] = f
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
		return o, fmt.Errorf("ConfigMap %s/%s:\n%w", o.Namespace, configMap, err)
	}
	return o, nil
}

// start reads the ConfigMap once and returns the settings to begin with. That it is invalid
// is an error; that it can't be read is not: without it, what flags and variables say holds.
func (l *live) start(ctx context.Context) (Options, error) {
	list, err := l.clientset.CoreV1().ConfigMaps(l.options.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, configMap).String(),
	})
	if err != nil {
		l.log.Error(err, "the ConfigMap is not read; what flags and variables say holds", "configMap", configMap)
		return l.options, nil
	}
	o := l.options
	for i := range list.Items {
		if o, err = withConfigMap(l.options, l.pinned, list.Items[i].Data); err != nil {
			return o, usageError{err}
		}
	}
	l.apply(o)
	return o, nil
}

// follow follows the ConfigMap until ctx ends.
func (l *live) follow(ctx context.Context) error {
	informer := toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewListWatchFromClient(l.clientset.CoreV1().RESTClient(), "configmaps", l.options.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, configMap)), &corev1.ConfigMap{}, toolscache.SharedIndexInformerOptions{})
	seen := func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			l.configured(cm)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(any) { l.gone() },
	}); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) && len(informer.GetStore().ListKeys()) == 0 {
		l.gone() // since we started, perhaps
	}
	return nil
}

// gone takes over that there is no ConfigMap.
func (l *live) gone() {
	l.invalid.Set(0)
	l.apply(l.options)
}

// configured takes over a ConfigMap, or says why not.
func (l *live) configured(cm *corev1.ConfigMap) {
	o, err := withConfigMap(l.options, l.pinned, cm.Data)
	if err != nil {
		l.invalid.Set(1)
		l.log.Error(err, "the last good settings stay; a replica that starts now refuses these")
		l.events.Eventf(cm, nil, corev1.EventTypeWarning, ReasonInvalidConfiguration, "Configure", "%s",
			admission.EventNote(fmt.Sprintf("The last good settings stay, and a replica that starts now refuses these. %v", err)))
		return
	}
	l.invalid.Set(0)
	l.apply(o)
}

func (l *live) apply(o Options) {
	level, _ := parseLogLevel(o.LogLevel) // validated before
	if l.level.Level() != level {
		l.level.Set(level)
		l.log.Info("the log level has changed", "logLevel", o.LogLevel)
	}
	if l.finder != nil {
		l.finder.Exclude(o.Spread.ExcludedNamespaces)
	}
}
