package offload

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// foreignClaim is the claim of the foreign volume.
const foreignClaim = "theirs"

func restrictedVolume(access *user.Namespace) string { return access.Name + "-restricted" }

// claimOf is a claim of the foreign volume with these labels.
func claimOf(access *user.Namespace, name string, labels map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(string), VolumeName: restrictedVolume(access),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// createForeignVolume creates a volume in the remote cluster that is bound to a claim in a namespace that is not the fabric's.
func createForeignVolume(t *testing.T, access *user.Namespace) {
	t.Helper()
	volumes, claims := access.Client.CoreV1().PersistentVolumes(), access.Client.CoreV1().PersistentVolumeClaims(access.Name)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: restrictedVolume(access), Annotations: map[string]string{"e2e/test": "a"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: access.Name, Name: foreignClaim},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	}
	if _, err := volumes.Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := volumes.Delete(user.CleanupContext(t), volume.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := claims.Create(t.Context(), claimOf(access, foreignClaim, nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	access.Eventually("the volume to be bound", func(ctx context.Context) (string, error) {
		found, err := volumes.Get(ctx, volume.Name, metav1.GetOptions{})
		if err != nil || found.Status.Phase == corev1.VolumeBound {
			return "", err
		}
		return "it is " + string(found.Status.Phase), nil
	})
}

// A volume stays bound to its claim, only the fields that twins need can be changed, and its data
// is not deleted. Where the identity may create pods, which system:masters may everywhere, moves
// unbind volumes from their claims.
func volumesAreRestricted(t *testing.T, access *user.Namespace) {
	client, _ := impersonate(t, access.Cluster, "system:serviceaccount:"+access.Name+":liqo-csi-remote")
	const mark = `{"metadata": {"annotations": {"storage.liqo.io/data-of": "home/pvc"}}}`
	for what, one := range map[string]struct{ patch, words string }{
		"a claim of another namespace":            {`{"spec": {"claimRef": {"namespace": "default", "name": "mine", "uid": null}}}`, "of another namespace"},
		"no claim":                                {`{"spec": {"claimRef": null}}`, "of another namespace"},
		"a claim of that name":                    {`{"spec": {"claimRef": {"uid": "another", "resourceVersion": null}}}`, "where it may not create pods"},
		"a claim of its namespace":                {`{"spec": {"claimRef": {"name": "other", "uid": "another"}}}`, "where it may not create pods"},
		"the reclaim policy":                      {`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, "back to what it was"},
		"the annotation with the previous policy": {`{"metadata": {"annotations": {"storage.liqo.io/reclaim-policy-before": "Delete"}}}`, "back to what it was"},
		"its marks":                               {mark, ""},
		"the class":                               {`{"spec": {"storageClassName": "other"}}`, "but their reclaim policy and claim"},
		"the size":                                {`{"spec": {"capacity": {"storage": "2Gi"}}}`, "but their reclaim policy and claim"},
		"mount options":                           {`{"spec": {"mountOptions": ["ro"]}}`, "but their reclaim policy and claim"},
		"an annotation of others":                 {`{"metadata": {"annotations": {"e2e/test": null}}}`, "but its own"},
		"a finalizer of others":                   {`{"metadata": {"finalizers": ["example.test/held"]}}`, "no finalizers"},
		"a finalizer like its own":                {`{"metadata": {"finalizers": ["kubernetes.io/pv-protection", "storage.liqo.io/move"]}}`, "no finalizers"},
	} {
		_, err := client.CoreV1().PersistentVolumes().Patch(t.Context(), restrictedVolume(access), types.MergePatchType, []byte(one.patch), dryRunPatch)
		checkOutcome(t, what, err, one.words)
	}
}

// Claims without the marks of this home cluster cannot be changed.
func claimsAreRestricted(t *testing.T, client kubernetes.Interface, access *user.Namespace) {
	twin := map[string]string{"app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": access.Name}
	for name, one := range map[string]struct {
		labels map[string]string
		words  string
	}{
		"twin":  {twin, ""},
		"other": {map[string]string{"app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "another-home"}, "those that it has made"},
		"plain": {nil, "those that it has made"},
	} {
		if _, err := access.Client.CoreV1().PersistentVolumeClaims(access.Name).Create(t.Context(), claimOf(access, name, one.labels), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		claims := client.CoreV1().PersistentVolumeClaims(access.Name)
		marks := []byte(`{"metadata": {"labels": {"app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "` + access.Name + `"}}}`)
		_, err := claims.Patch(t.Context(), name, types.MergePatchType, marks, dryRunPatch)
		checkOutcome(t, "change "+name, err, one.words)
		checkOutcome(t, "delete "+name, claims.Delete(t.Context(), name, dryRunDelete), one.words)
	}
}
