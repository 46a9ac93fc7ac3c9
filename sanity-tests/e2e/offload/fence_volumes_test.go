package offload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func fencedVolume(access *user.Namespace) string { return access.Name + "-fenced" }

// createForeignVolume creates a volume in the remote cluster that is bound to a claim in another namespace.
func createForeignVolume(t *testing.T, access *user.Namespace) {
	t.Helper()
	volumes := access.Client.CoreV1().PersistentVolumes()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fencedVolume(access), Annotations: map[string]string{"e2e/test": "a"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: "theirs", UID: "theirs"},
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
}

// A volume stays with the namespace of its claim, and all of it but what twins need is left as it is.
func volumesAreFenced(t *testing.T, client kubernetes.Interface, access *user.Namespace) {
	const mark = `{"metadata": {"annotations": {"storage.liqo.io/reclaim-policy-before": "Delete"}, "finalizers": ["kubernetes.io/pv-protection", "storage.liqo.io/move"]}}`
	for what, one := range map[string]struct{ patch, words string }{
		"a claim of another namespace": {`{"spec": {"claimRef": {"namespace": "` + access.Name + `", "name": "mine", "uid": null}}}`, "from a claim of another namespace"},
		"no claim":                     {`{"spec": {"claimRef": null}}`, "from a claim of another namespace"},
		"a claim made again":           {`{"spec": {"claimRef": {"uid": "another", "resourceVersion": null}}}`, ""},
		"a claim of its namespace":     {`{"spec": {"claimRef": {"name": "other", "uid": "another"}}}`, ""},
		"the reclaim policy":           {`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, ""},
		"its marks":                    {mark, ""},
		"the class":                    {`{"spec": {"storageClassName": "other"}}`, "but their reclaim policy and claim"},
		"the size":                     {`{"spec": {"capacity": {"storage": "2Gi"}}}`, "but their reclaim policy and claim"},
		"mount options":                {`{"spec": {"mountOptions": ["ro"]}}`, "but their reclaim policy and claim"},
		"an annotation of others":      {`{"metadata": {"annotations": {"e2e/test": null}}}`, "but its own"},
		"a finalizer of others":        {`{"metadata": {"finalizers": ["example.test/held"]}}`, "but its own"},
	} {
		_, err := client.CoreV1().PersistentVolumes().Patch(t.Context(), fencedVolume(access), types.MergePatchType, []byte(one.patch), dryRunPatch)
		checkOutcome(t, what, err, one.words)
	}
}
