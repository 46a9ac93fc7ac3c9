package driver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A recreated claim only has owners that exist. Kubernetes would delete it for an owner that does not exist, and, when
// the kind is served again, for an owner of a kind that is not served.
func TestImportKeepsExistingOwners(t *testing.T) {
	n := home(t)
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}
	settings, err := n.Client.CoreV1().ConfigMaps(n.Name).Create(t.Context(), settings, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owners := []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "settings", UID: settings.UID},
		{APIVersion: "databases.example.test/v1", Kind: "Database", Name: "orders", UID: "6a1c8a4e-0000-4000-8000-000000000001"},
	}
	sum, real := createClaimWithData(t, n, "data", "reference", func(claim *corev1.PersistentVolumeClaim) {
		claim.OwnerReferences = owners
	})
	out, err := runImport(t, n, "data", "--class", "liqo-reference")
	if err != nil {
		t.Fatal(err)
	}
	if count := strings.Count(out, "the Database orders, is of a kind that this cluster does not serve"); count != 1 {
		t.Errorf("%d messages that an owner is dropped: %s", count, out)
	}
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	if now := n.GetClaim("data").OwnerReferences; len(now) != 1 || now[0].UID != settings.UID {
		t.Errorf("the claim has the owners %v", now)
	}
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}
