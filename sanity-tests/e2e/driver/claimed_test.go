package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// csi-provisioner deletes PersistentVolumes that are Released and have the policy Delete. A PersistentVolume is so
// for a moment when its claimRef is changed and restored.
func TestVolumeOfAnExistingClaimIsNotDeleted(t *testing.T) {
	n := home(t)
	startPod(n, "writer", "data", "liqo-reference")
	n.Exec("writer", "echo precious > /data/file && sync")
	found := n.WaitVolume("data")

	// With a running pod.
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain","claimRef":{"uid":"another"}}}`)
	waitPhases(t, n, found, corev1.ClaimLost, corev1.VolumeReleased)
	patchVolume(t, n, found.Virtual.Name, fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":"Delete","claimRef":{"uid":%q}}}`, found.Claim.UID))
	waitPhases(t, n, found, corev1.ClaimBound, corev1.VolumeBound)
	if got := n.Exec("writer", "cat /data/file && echo more >> /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}

	// csi-provisioner does not delete attached volumes.
	n.DeletePod("writer")
	waitDetached(n, found.Virtual.Name)
	patchVolume(t, n, found.Virtual.Name, `{"spec":{"claimRef":{"uid":"another"}}}`)
	n.WaitEvent("data", "VolumeNotDeleted")
	patchVolume(t, n, found.Virtual.Name, fmt.Sprintf(`{"spec":{"claimRef":{"uid":%q}}}`, found.Claim.UID))
	waitPhases(t, n, found, corev1.ClaimBound, corev1.VolumeBound)

	n.Pod("reader", "data")
	n.WaitReady("reader")
	if got := n.Exec("reader", "cat /data/file"); got != "precious\nmore" {
		user.Violated(t, "read %q", got)
	}
	if now := n.WaitVolume("data"); now.Twin.UID != found.Twin.UID || now.Real.UID != found.Real.UID {
		user.Violated(t, "the twin or its volume was replaced: %v %v", now.Twin, now.Real)
	}
	n.DeletePod("reader")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, found)
}

func TestChangeFromRetainToDeleteDeletesTheData(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	found := n.WaitVolume("data")
	setReclaimPolicy(t, n, found.Virtual.Name, corev1.PersistentVolumeReclaimRetain)
	waitReclaimPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	setReclaimPolicy(t, n, found.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	waitReclaimPolicy(n, found, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("user")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, found)
}

// An administrator deletes a retained volume.
func TestRetainedVolumeIsDeletedAfterItsPolicyIsChanged(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-retain")
	found := n.WaitVolume("data")
	waitReclaimPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	n.DeletePod("user")
	deleteClaim(t, n, "data")
	waitReleased(n, found.Virtual.Name)
	setReclaimPolicy(t, n, found.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	waitVolumeDeleted(t, n, found)
}

// A volume is bound to another claim, and then its twin is deleted.
func TestVolumeBoundToAnotherClaimIsRecovered(t *testing.T) {
	n := home(t)
	startPod(n, "writer", "old", "liqo-reference-attach")
	n.Exec("writer", "echo precious > /data/file && sync")
	found := n.WaitVolume("old")
	setReclaimPolicy(t, n, found.Virtual.Name, corev1.PersistentVolumeReclaimRetain)
	waitReclaimPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
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
	n.Eventually("the twin is recreated with its volume", func(ctx context.Context) (string, error) {
		twin, err := twins.Get(ctx, found.Twin.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if twin.UID == found.Twin.UID || twin.Status.Phase != corev1.ClaimBound || twin.Spec.VolumeName != found.Real.Name {
			return fmt.Sprintf("it is %s, its UID %s", twin.Status.Phase, twin.UID), nil
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
	setReclaimPolicy(t, n, found.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	deleteClaim(t, n, "new")
	waitVolumeDeleted(t, n, found)
}

// waitTwinReady waits until the condition TwinReady of a claim is True with this text in its message.
func waitTwinReady(n *user.Namespace, name, message string) {
	n.Eventually("TwinReady of claim "+name+" is True", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range claim.Status.Conditions {
			if condition.Type == "storage.liqo.io/TwinReady" && condition.Status == corev1.ConditionTrue && strings.Contains(condition.Message, message) {
				return "", nil
			}
		}
		return fmt.Sprintf("its conditions: %v", claim.Status.Conditions), nil
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

func waitReleased(n *user.Namespace, volume string) {
	n.Eventually("the volume "+volume+" is Released", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if err != nil || found.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "it is " + string(found.Status.Phase), nil
	})
}

func setReclaimPolicy(t *testing.T, n *user.Namespace, volume string, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	patchVolume(t, n, volume, fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy))
}

// waitReclaimPolicy waits until the real PersistentVolume has this reclaim policy.
func waitReclaimPolicy(n *user.Namespace, v user.Volume, policy corev1.PersistentVolumeReclaimPolicy) {
	n.Eventually("the reclaim policy of the real volume is "+string(policy), func(ctx context.Context) (string, error) {
		real, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		if err != nil || real.Spec.PersistentVolumeReclaimPolicy == policy {
			return "", err
		}
		return "it is " + string(real.Spec.PersistentVolumeReclaimPolicy), nil
	})
}

// attachments returns the VolumeAttachments of these PersistentVolumes.
func attachments(ctx context.Context, n *user.Namespace, volumes ...string) (names []string, err error) {
	found, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, attachment := range found.Items {
		if name := attachment.Spec.Source.PersistentVolumeName; name != nil && slices.Contains(volumes, *name) {
			names = append(names, attachment.Name+" to "+attachment.Spec.NodeName)
		}
	}
	return names, nil
}

func waitDetached(n *user.Namespace, volumes ...string) {
	n.Eventually(fmt.Sprintf("%q are detached", volumes), func(ctx context.Context) (string, error) {
		left, err := attachments(ctx, n, volumes...)
		return strings.Join(left, ", "), err
	})
}
