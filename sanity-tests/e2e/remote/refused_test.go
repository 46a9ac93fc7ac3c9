package remote

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// refusalsConfigMap is where the driver remembers refusals of remote clusters.
const refusalsConfigMap = "liqo-csi-refusals"

// The class is the test's own, because a refusal lowers the published capacity of the class for all users.
func TestRemoteQuotaIsReportedAndThePodRunsAtHome(t *testing.T) {
	p := newPair(t)
	class := p.createVirtualClass("limited", map[string]string{"realStorageClass": "reference"})
	p.remote.StorageQuota("nothing", "1Mi")
	p.waitCapacity(class, func(bytes int64) bool { return bytes > 0 })
	p.home.Claim("data", class, "64Mi")
	p.home.Pod("user", "data", p.preferRemote)
	p.home.WaitEvent("data", "exceeded quota: nothing", "cluster "+p.cluster)
	if pod := p.home.WaitReady("user"); pod.Spec.NodeName == p.node {
		t.Error("the pod runs on a node that its volume does not allow")
	}
	remembered, err := p.home.Client.CoreV1().ConfigMaps(chart.Namespace).Get(t.Context(), refusalsConfigMap, metav1.GetOptions{})
	if err != nil || !strings.Contains(fmt.Sprint(remembered.Data), class) {
		t.Errorf("the refusal is not remembered: %v, %v", remembered, err)
	}
}

// Published capacities affect all users, so annotations and ConfigMaps of users must not change them.
func TestForgedRefusalsHaveNoEffect(t *testing.T) {
	p := newPair(t)
	class := p.createVirtualClass("open", map[string]string{"realStorageClass": "reference"})
	large := func(bytes int64) bool { return bytes > 1<<30 }
	p.waitCapacity(class, large)
	until := time.Now().Add(100 * time.Second).Unix()
	forged := fmt.Sprintf(`{"class":%q,"cluster":%q,"bytes":1,"until":%d}`, class, p.cluster, until)
	p.home.Claim("forged", class, "1Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"storage.liqo.io/refused": forged}
	})
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: refusalsConfigMap}, Data: map[string]string{"forged": forged}}
	if _, err := p.home.Client.CoreV1().ConfigMaps(p.home.Name).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The capacity of a later class shows that capacities were published since.
	p.waitCapacity(p.createVirtualClass("later", map[string]string{"realStorageClass": "reference"}), large)
	p.startPod("user", "data", class)
	p.home.WantNoEvent("user", "did not have enough free storage")
}

func TestGenericEphemeralVolumeIsRefused(t *testing.T) {
	p := newPair(t)
	p.home.Pod("user", "", p.onVirtualNode, func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: new("liqo-reference"),
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
				},
			}},
		}}
	})
	p.home.WaitEvent("user-data", "generic ephemeral volume of the pod user", "cluster "+p.cluster)
	p.wantPending("user-data")
}

func TestForeignClaimOfTheSameNameIsUnchanged(t *testing.T) {
	p := newPair(t)
	p.remote.Claim("data", "reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Labels = map[string]string{"owner": "somebody"}
	})
	before := p.remote.GetClaim("data")
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitEvent("data", p.remote.Name+"/data", "not ours")
	p.wantPending("data")
	wantUnchanged(t, before, p.remote.GetClaim("data"))

	err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Delete(t.Context(), "data", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.home.WaitReady("user")
}

// wantUnchanged checks the fields of a claim that the driver could have written.
func wantUnchanged(t *testing.T, before, after *corev1.PersistentVolumeClaim) {
	t.Helper()
	same := before.UID == after.UID && after.DeletionTimestamp == nil &&
		equality.Semantic.DeepEqual(before.Labels, after.Labels) &&
		equality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) &&
		before.Annotations[claimUID] == after.Annotations[claimUID]
	if !same {
		user.Violated(t, "it was %v\nand is %v", before.ObjectMeta, after.ObjectMeta)
	}
}
