package driver

import (
	"context"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

const (
	selectedNode = "volume.kubernetes.io/selected-node"
	claimUID     = "storage.liqo.io/claim-uid"
)

// withPopulator sets a data source for which csi-provisioner waits for a populator.
func withPopulator(claim *corev1.PersistentVolumeClaim) {
	group := "e2e.storage.test"
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Library", Name: "pages"}
}

// The steps are those of lib-volume-populator: a populator creates a prime claim in its own namespace for the node of
// the user's pod, fills it with its own pod, and binds its volume to the user's claim. The volume and its twin keep the
// UID of the prime claim.
func TestVolumeOfAPrimeClaimIsBoundToTheUsersClaim(t *testing.T) {
	n := home(t)
	populator := user.NewNamespace(t, n.Cluster)
	n.Claim("data", "liqo-reference", "64Mi", withPopulator)
	n.Pod("user", "data")
	node := waitSelectedNode(n, "data")
	claim := n.GetClaim("data")

	prime := "prime-" + string(claim.UID)
	populator.Claim(prime, "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{selectedNode: node}
	})
	populator.Pod("filler", prime, user.OnNode(node))
	populator.WaitReady("filler")
	populator.Exec("filler", "echo populated > /data/file && sync")
	found := populator.WaitVolume(prime)
	populator.DeletePod("filler")

	bindVolume(t, n, found.Virtual.Name, claim)
	if bound := n.WaitBound("data"); bound.Name != found.Virtual.Name {
		user.ViolatedNow(t, "the claim has the volume %s instead of %s", bound.Name, found.Virtual.Name)
	}
	deleteClaim(t, populator, prime)
	n.WaitReady("user")
	if got := n.Exec("user", "cat /data/file && echo more >> /data/file && sync"); got != "populated" {
		user.Violated(t, "read %q", got)
	}
	waitTwinReady(n, "data", "the twin "+chart.StorageNamespace+"/"+found.Twin.Name+" is bound")

	n.DeletePod("user")
	n.Pod("next", "data")
	n.WaitReady("next")
	if got := n.Exec("next", "cat /data/file"); got != "populated\nmore" {
		user.Violated(t, "read %q", got)
	}
	wantSameTwin(t, n, found)
	n.DeletePod("next")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, found)
}

// A populated volume is expanded: its twin is found by the volume, not by the claim.
func TestVolumeOfAPrimeClaimGrowsWithTheUsersClaim(t *testing.T) {
	n := home(t)
	populator := user.NewNamespace(t, n.Cluster)
	n.Claim("data", "liqo-reference-xfs", "320Mi", withPopulator)
	n.Pod("user", "data")
	node := waitSelectedNode(n, "data")
	populator.Claim("prime", "liqo-reference-xfs", "320Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{selectedNode: node}
	})
	found := populator.WaitVolume("prime")
	bindVolume(t, n, found.Virtual.Name, n.GetClaim("data"))
	n.WaitBound("data")
	deleteClaim(t, populator, "prime")
	n.WaitReady("user")
	for _, size := range []string{"400Mi", "480Mi"} {
		n.Resize("data", size)
		n.WaitCapacity("data", size)
	}
	wantSameTwin(t, n, found)
	n.DeletePod("user")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, found)
}

// waitSelectedNode waits until the scheduler has selected a node for the claim.
func waitSelectedNode(n *user.Namespace, claim string) (node string) {
	n.Eventually("a node is selected for the claim "+claim, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if node = found.Annotations[selectedNode]; node == "" {
			return "none is selected", nil
		}
		return "", nil
	})
	return node
}

// bindVolume sets the claimRef of a PersistentVolume to this claim.
func bindVolume(t *testing.T, n *user.Namespace, volume string, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"claimRef": corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
		UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	patchVolume(t, n, volume, string(patch))
}

// wantSameTwin checks that the twin is unchanged, although another claim has its volume.
func wantSameTwin(t *testing.T, n *user.Namespace, found user.Volume) {
	t.Helper()
	twin, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(t.Context(), found.Twin.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if twin.UID != found.Twin.UID || twin.Spec.VolumeName != found.Real.Name || twin.Annotations[claimUID] != string(found.Claim.UID) {
		t.Errorf("the twin is %s with the volume %s for the claim %s", twin.UID, twin.Spec.VolumeName, twin.Annotations[claimUID])
	}
}
