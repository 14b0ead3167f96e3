package comparison

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stowage-dev/stowage/internal/nodefit"
)

// classNames are those of classes whose volumes are made where the pod has its node.
var classNames = []string{"anywhere", "in-zones", "in-zones-of-driver", "in-zone-and-disk", "by-hand"}

func classes() (out []runtime.Object) {
	in := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	one := func(r ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: r}
	}
	for _, name := range classNames {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/p", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
		switch name {
		case "in-zones":
			c.AllowedTopologies = []corev1.TopologySelectorTerm{one(in(corev1.LabelTopologyZone, "z1")), {}, one(in(corev1.LabelTopologyZone, "z3"))}
		case "in-zones-of-driver":
			c.AllowedTopologies = []corev1.TopologySelectorTerm{one(in(ebsZone, "z1", "z2"))}
		case "in-zone-and-disk":
			c.AllowedTopologies = []corev1.TopologySelectorTerm{one(in(corev1.LabelTopologyZone, "z1", "z2"), in("disk", "ssd"))}
		case "by-hand":
			c.Provisioner = "kubernetes.io/no-provisioner"
		}
		out = append(out, c)
	}
	return out
}

func (w *world) class(name string) *storagev1.StorageClass {
	for _, o := range w.stored {
		if c, ok := o.(*storagev1.StorageClass); ok && c.Name == name {
			return c
		}
	}
	return nil
}

// claims gives a pod claims of its own, with what Stowage reads of them: see package shortage.
func (w *world) claims(a *asked) {
	var bound []corev1.PersistentVolume
	for i := range 1 + w.IntN(2) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: fmt.Sprint(a.pod.Name, "-", i)}}
		claim.Spec.StorageClassName = new("anywhere")
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(w.dice, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		a.pod.Spec.Volumes = append(a.pod.Spec.Volumes, corev1.Volume{
			Name: claim.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}},
		})
		w.stored = append(w.stored, claim)
		if w.often(60) {
			v := w.volume(claim)
			bound = append(bound, *v)
			w.stored = append(w.stored, v)
			continue
		}
		name := pick(w.dice, classNames...)
		claim.Spec.StorageClassName, claim.Status.Phase = &name, corev1.ClaimPending
		if terms, _ := nodefit.TopologyTerms(w.class(name)); len(terms) > 0 {
			a.volumes.Terms = append(a.volumes.Terms, terms)
		}
		a.volumes.Unknown = a.volumes.Unknown || name == "by-hand"
	}
	terms, known := nodefit.TermsOf(bound)
	a.volumes.Terms, a.volumes.Unknown = append(a.volumes.Terms, terms...), a.volumes.Unknown || !known
	if a.volumes.Unknown {
		a.unknown[nodefit.ByVolume] = true
	}
}

// volume binds a volume to a claim.
func (w *world) volume(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v-" + claim.Name, Labels: map[string]string{}}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: "anywhere", ClaimRef: &corev1.ObjectReference{Namespace: ours, Name: claim.Name}, AccessModes: claim.Spec.AccessModes,
		Capacity:               claim.Spec.Resources.Requests,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com/p", VolumeHandle: claim.Name}},
	}}
	claim.Spec.VolumeName, claim.Status.Phase = v.Name, corev1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	if w.often(30) {
		v.Labels[pick(w.dice, corev1.LabelTopologyZone, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone)] = pick(w.dice, "z1", "z2", "z1__z2", "z3__z1")
		if w.often(40) {
			v.Labels[pick(w.dice, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion)] = pick(w.dice, "r", "r", "s")
		}
	}
	if w.often(70) {
		var terms []corev1.NodeSelectorTerm
		for range 1 + w.IntN(2) {
			terms = append(terms, w.volumeTerm())
		}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return v
}

func (w *world) volumeTerm() corev1.NodeSelectorTerm {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	switch {
	case w.often(3):
		return corev1.NodeSelectorTerm{}
	case w.often(4):
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in(metav1.ObjectNameField, "n0")}}
	case w.often(15):
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in(corev1.LabelHostname, slices.Clone(some(w.dice, "n0", "n1", "n2"))...)}}
	}
	t := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in(pick(w.dice, corev1.LabelTopologyZone, ebsZone), some(w.dice, "z1", "z2", "z3")...)}}
	if w.often(15) {
		t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: "disk", Operator: pick(w.dice, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpIn), Values: []string{"hdd"}})
	}
	return t
}
