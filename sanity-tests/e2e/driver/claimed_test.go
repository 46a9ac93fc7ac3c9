package driver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// csi-provisioner deletes what it sees Released with the policy Delete, and so a
// PV looks when somebody takes it from its claim, or gives it back in one go.
func TestVolumeOfAClaimThatExistsIsNotDeleted(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("writer", "data")
	n.WaitReady("writer")
	n.Exec("writer", "echo precious > /data/file && sync")
	found := n.WaitVolume("data")

	// Under a running pod.
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain","claimRef":{"uid":"somebody-else"}}}`)
	waitPhases(t, n, found, corev1.ClaimLost, corev1.VolumeReleased)
	patchVolume(t, n, found.Virtual.Name, fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":"Delete","claimRef":{"uid":%q}}}`, found.Claim.UID))
	waitPhases(t, n, found, corev1.ClaimBound, corev1.VolumeBound)
	if got := n.Exec("writer", "cat /data/file && echo more >> /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}

	// Without a pod nothing is attached, which would keep csi-provisioner from asking.
	n.DeletePod("writer")
	waitDetached(t, n, found)
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"claimRef":{"uid":"somebody-else"}}}`)
	n.WaitEvent("data", "VolumeNotDeleted")
	patchVolume(t, n, found.Virtual.Name, fmt.Sprintf(`{"spec":{"claimRef":{"uid":%q}}}`, found.Claim.UID))
	waitPhases(t, n, found, corev1.ClaimBound, corev1.VolumeBound)

	n.Pod("reader", "data")
	n.WaitReady("reader")
	if got := n.Exec("reader", "cat /data/file"); got != "precious\nmore" {
		user.Violated(t, "read %q", got)
	}
	if now := n.WaitVolume("data"); now.Twin.UID != found.Twin.UID || now.Real.UID != found.Real.UID {
		user.Violated(t, "twin or real volume are others: %v %v", now.Twin, now.Real)
	}
	n.DeletePod("reader")
	deleteClaim(t, n, "data")
	wantGone(t, n, found)
}

func TestRetainTakenBackDeletesTheData(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	waitPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	waitPolicy(n, found, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("user")
	deleteClaim(t, n, "data")
	wantGone(t, n, found)
}

// An administrator wants what a class retains to be deleted after all.
func TestRetainedVolumeIsDeletedWhenItsPolicyIsChanged(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-retain", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	waitPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	n.DeletePod("user")
	deleteClaim(t, n, "data")
	n.Eventually("the volume is released", func(ctx context.Context) (string, error) {
		object, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, found.Virtual.Name, metav1.GetOptions{})
		if err != nil || object.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "it is " + string(object.Status.Phase), nil
	})
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	wantGone(t, n, found)
}

// A volume goes on under another claim, and then somebody deletes its twin.
func TestVolumeBoundToAnotherClaimIsRescued(t *testing.T) {
	n := home(t)
	n.Claim("old", "liqo-reference-attach", "64Mi")
	n.Pod("writer", "old")
	n.WaitReady("writer")
	n.Exec("writer", "echo precious > /data/file && sync")
	found := n.WaitVolume("old")
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	waitPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	n.DeletePod("writer")
	deleteClaim(t, n, "old")
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"claimRef":null}}`)
	n.Claim("new", "liqo-reference-attach", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = found.Virtual.Name
	})
	n.WaitBound("new")
	waitTwinReady(n, "new", "the twin "+chart.StorageNamespace+"/"+found.Twin.Name+" is bound")

	twins := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	if err := twins.Delete(t.Context(), found.Twin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin is made again onto its data", func(ctx context.Context) (string, error) {
		twin, err := twins.Get(ctx, found.Twin.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if twin.UID == found.Twin.UID || twin.Status.Phase != corev1.ClaimBound || twin.Spec.VolumeName != found.Real.Name {
			return fmt.Sprintf("it is %s, %s", twin.Status.Phase, twin.UID), nil
		}
		return "", nil
	})
	waitTwinReady(n, "new", "is bound")
	n.Pod("reader", "new")
	n.WaitReady("reader")
	if got := n.Exec("reader", "cat /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}
	n.DeletePod("reader")
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	deleteClaim(t, n, "new")
	wantGone(t, n, found)
}

// waitTwinReady waits until the claim says that all is well with its twin.
func waitTwinReady(n *user.Namespace, name, message string) {
	n.Eventually("claim "+name+" says that its twin is ready", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range claim.Status.Conditions {
			if condition.Type == "storage.liqo.io/TwinReady" && condition.Status == corev1.ConditionTrue && strings.Contains(condition.Message, message) {
				return "", nil
			}
		}
		return fmt.Sprintf("it says %v", claim.Status.Conditions), nil
	})
}

func patchVolume(t *testing.T, n *user.Namespace, name, patch string) {
	t.Helper()
	if _, err := n.Client.CoreV1().PersistentVolumes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitPhases(t *testing.T, n *user.Namespace, found user.Volume, claim corev1.PersistentVolumeClaimPhase, volume corev1.PersistentVolumePhase) {
	t.Helper()
	n.Eventually(fmt.Sprintf("the claim is %s and its volume %s", claim, volume), func(ctx context.Context) (string, error) {
		now, err := n.GetVolume(ctx, found.Claim.Name)
		if err != nil || now.Virtual == nil {
			return "there is no claim or no volume", err
		}
		if now.Claim.Status.Phase != claim || now.Virtual.Status.Phase != volume {
			return fmt.Sprintf("they are %s and %s", now.Claim.Status.Phase, now.Virtual.Status.Phase), nil
		}
		return "", nil
	})
}

func waitPolicy(n *user.Namespace, found user.Volume, policy corev1.PersistentVolumeReclaimPolicy) {
	n.Eventually("the policy of the real volume is "+string(policy), func(ctx context.Context) (string, error) {
		real, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, found.Real.Name, metav1.GetOptions{})
		if err != nil || real.Spec.PersistentVolumeReclaimPolicy == policy {
			return "", err
		}
		return "it is " + string(real.Spec.PersistentVolumeReclaimPolicy), nil
	})
}

func waitDetached(t *testing.T, n *user.Namespace, found user.Volume) {
	t.Helper()
	n.Eventually("the volume is attached nowhere", func(ctx context.Context) (string, error) {
		attachments, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, attachment := range attachments.Items {
			if name := attachment.Spec.Source.PersistentVolumeName; name != nil && *name == found.Virtual.Name {
				return "it is attached to " + attachment.Spec.NodeName, nil
			}
		}
		return "", nil
	})
}
