package remote

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// Annotations by which Liqo's users choose the class and the access modes of the remote claim.
const (
	liqoClass = "liqo.io/remote-storage-class"
	liqoModes = "liqo.io/remote-access-modes"
)

// Claims may choose these classes by annotation. Each exists during one test.
const (
	annotatedClass = "e2e-annotated"
	namedClass     = "e2e-named"
)

// Liqo's annotations have the same meaning as with Liqo, and no effect at home.
func TestLiqosAnnotations(t *testing.T) {
	p := newLiqoPair(t, liqoAnnotated, func(p *pair) string { return p.remote.Cluster.ProxyKubeconfig() }, "reference")
	p.offload()
	p.remote.Class(classWithoutCapacity(annotatedClass))
	p.home.Claim("data", "liqo-reference", "64Mi", withLiqoAnnotations(annotatedClass, "RWX"))
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.Claim("denied", "liqo-reference", "64Mi", withLiqoAnnotations("reference-ext4", ""))
	p.home.Pod("denied", "denied", p.onVirtualNode)
	p.home.Claim("odd", "liqo-reference", "64Mi", withLiqoAnnotations("", "RWX,RWY"))
	p.home.Pod("odd", "odd", p.onVirtualNode)
	p.home.Claim("modes", "liqo-reference", "64Mi", withLiqoAnnotations("", "ReadWriteOnce,ROX"))
	p.home.Pod("modes", "modes", p.onVirtualNode)
	p.home.Claim("here", "liqo-reference", "64Mi", withLiqoAnnotations("reference-ext4", "RWY"))
	p.home.Pod("here", "here", user.OnNode(p.home.Cluster.Nodes()[0].Name))

	p.home.WaitReady("user")
	p.remote.WaitReady("user")
	found := p.waitVolume("data")
	if *found.Twin.Spec.StorageClassName != annotatedClass || !slices.Equal(found.Twin.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Errorf("the twin is of class %s with %v", *found.Twin.Spec.StorageClassName, found.Twin.Spec.AccessModes)
	}
	if !slices.Equal(found.Claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
		t.Errorf("the claim has %v", found.Claim.Spec.AccessModes)
	}
	p.remote.Exec("user", "echo precious > /data/file")
	p.home.WaitReady("here")
	p.home.WaitEvent("denied", "ProvisioningFailed", "annotation "+liqoClass+` requests the class "reference-ext4"`, "allow-list")
	p.home.WaitEvent("odd", "ProvisioningFailed", `"RWY" is not an access mode`)
	p.wantPending("denied")
	p.wantPending("odd")

	p.annotate("denied", map[string]any{liqoClass: nil})
	p.home.WaitReady("denied")
	p.home.WaitReady("modes")
	twin := p.remote.GetClaim("modes")
	if !slices.Equal(twin.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}) {
		t.Errorf("the twin has %v", twin.Spec.AccessModes)
	}
}

// classWithoutCapacity is a usable class for which no capacity is published, so that it does not affect other
// tests: no node matches its topology, which its driver ignores.
func classWithoutCapacity(class string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: storage.Reference.Name, VolumeBindingMode: new(storagev1.VolumeBindingImmediate),
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: clusterLabel, Values: []string{"none"}},
		}}},
	}
}

// withLiqoAnnotations sets Liqo's annotations, except empty ones.
func withLiqoAnnotations(class, modes string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{}
		for key, value := range map[string]string{liqoClass: class, liqoModes: modes} {
			if value != "" {
				claim.Annotations[key] = value
			}
		}
	}
}

func (p *pair) annotate(claim string, annotations map[string]any) {
	p.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		claims := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name)
		_, err = claims.Patch(p.t.Context(), claim, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
