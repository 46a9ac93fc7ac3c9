package driver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim that is made again has those owners only that are there: Kubernetes would delete it for
// one that is not, and for one of a kind that is not served as soon as that kind is served again.
func TestImportKeepsOwnersThatAreThere(t *testing.T) {
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
	sum, real := filled(t, n, "data", "reference", func(claim *corev1.PersistentVolumeClaim) {
		claim.OwnerReferences = owners
	})
	out, err := runImport(t, n, "data", "--class", "liqo-reference")
	if err != nil {
		t.Fatal(err)
	}
	if told := strings.Count(out, "the Database orders, is of a kind that this cluster does not serve"); told != 1 {
		t.Errorf("it is told %d times that an owner is dropped: %s", told, out)
	}
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	if now := claimOf(t, n, "data").OwnerReferences; len(now) != 1 || now[0].UID != settings.UID {
		t.Errorf("the claim has the owners %v", now)
	}
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}
