package user

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resizeConditions are on a claim only while it is expanded, or the expansion fails.
var resizeConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing,
	corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError,
	corev1.PersistentVolumeClaimNodeResizeError,
}

// WaitExpanded waits until a claim and its twin in the same cluster have this size, and no status of the
// expansion is left: a twin with one cannot be expanded again.
func (n *Namespace) WaitExpanded(claim, size string) {
	n.t.Helper()
	n.Eventually("claim "+claim+" and its twin have grown to "+size, func(ctx context.Context) (string, error) {
		v, err := n.GetVolume(ctx, claim)
		if err != nil || v.Virtual == nil || v.Real == nil {
			return "it has no volume, or no twin with one", err
		}
		return v.expansionLeft(size), nil
	})
}

// WaitRemoteExpanded is WaitExpanded for a claim whose twin is in a namespace of another cluster.
func (n *Namespace) WaitRemoteExpanded(remote *Namespace, claim, size string) {
	n.t.Helper()
	n.Eventually("claim "+claim+" and its twin have grown to "+size, func(ctx context.Context) (missing string, err error) {
		var v Volume
		if v.Claim, v.Virtual, err = n.withVolume(ctx, claim); err != nil {
			return "", err
		}
		if v.Twin, v.Real, err = remote.withVolume(ctx, claim); err != nil {
			return "", err
		}
		return v.expansionLeft(size), nil
	})
}

// withVolume returns a claim and its PersistentVolume.
func (n *Namespace) withVolume(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	volume, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	return claim, volume, err
}

// expansionLeft describes what is left of the expansion to a size.
func (v Volume) expansionLeft(size string) string {
	wanted := resource.MustParse(size)
	var reasons []string
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	for _, one := range []struct {
		what  string
		claim *corev1.PersistentVolumeClaim
	}{{"the claim", v.Claim}, {"the twin", v.Twin}} {
		status, request := one.claim.Status, one.claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if capacity := status.Capacity[corev1.ResourceStorage]; capacity.Cmp(wanted) != 0 {
			add("%s has %s and requests %s", one.what, capacity.String(), request.String())
		}
		if step, resizing := status.AllocatedResourceStatuses[corev1.ResourceStorage]; resizing {
			allocated := status.AllocatedResources[corev1.ResourceStorage]
			add("%s is %s to %s", one.what, step, allocated.String())
		}
		for _, condition := range status.Conditions {
			if slices.Contains(resizeConditions, condition.Type) {
				add("%s is %s %s", one.what, condition.Type, condition.Message)
			}
		}
	}
	virtual, real := v.Virtual.Spec.Capacity[corev1.ResourceStorage], v.Real.Spec.Capacity[corev1.ResourceStorage]
	if virtual.Cmp(real) != 0 {
		add("the claim's volume has %s, the twin's %s", virtual.String(), real.String())
	}
	return strings.Join(reasons, "; ")
}

// WaitExpansionRefused waits until the expansion of a claim was refused twice, with all of the words.
// csi-resizer retries a refused expansion once immediately, and then less often. It may lose a change of
// the claim at that moment: it overwrites the claim in its cache with its own last write
// (`claims.Update` in its resize_status.go).
func (n *Namespace) WaitExpansionRefused(claim string, words ...string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("the expansion of claim %s is refused twice with %q", claim, words), func(ctx context.Context) (string, error) {
		events, err := n.Client.CoreV1().Events(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		refusals, messages := int32(0), []string{}
		for _, event := range events.Items {
			if event.InvolvedObject.Name != claim || event.Reason != "VolumeResizeFailed" {
				continue
			}
			messages = append(messages, event.Message)
			if mentionsAll(event.Message, words) {
				refusals += event.Count
			}
		}
		if refusals > 1 {
			return "", nil
		}
		return fmt.Sprintf("%d refusals with these words; messages: %s", refusals, strings.Join(messages, " | ")), nil
	})
}

// WaitResizeCondition waits until a claim has this condition with all of the words.
func (n *Namespace) WaitResizeCondition(claim string, condition corev1.PersistentVolumeClaimConditionType, words ...string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("claim %s is %s, with %q", claim, condition, words), func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, one := range found.Status.Conditions {
			if one.Type == condition && one.Status == corev1.ConditionTrue && mentionsAll(one.Message, words) {
				return "", nil
			}
		}
		return fmt.Sprintf("its conditions are %v", found.Status.Conditions), nil
	})
}

// WantCapacity checks the capacity of a claim.
func (n *Namespace) WantCapacity(claim, size string) {
	n.t.Helper()
	capacity := n.GetClaim(claim).Status.Capacity[corev1.ResourceStorage]
	if capacity.Cmp(resource.MustParse(size)) != 0 {
		n.t.Errorf("claim %s has %s instead of %s", claim, capacity.String(), size)
	}
}

// FileSystemKiB returns the size of the file system of a pod's volume.
func (n *Namespace) FileSystemKiB(pod string) int {
	n.t.Helper()
	lines := strings.Split(n.Exec(pod, "df -Pk "+DataPath), "\n")
	if fields := strings.Fields(lines[len(lines)-1]); len(fields) > 1 {
		if size, err := strconv.Atoi(fields[1]); err == nil {
			return size
		}
	}
	n.t.Fatalf("no size in %q", lines)
	return 0
}

// WaitDeviceSize waits until the device of a pod has this size.
func (n *Namespace) WaitDeviceSize(pod, size string) {
	n.t.Helper()
	wanted := resource.MustParse(size)
	n.Eventually("the device of pod "+pod+" has "+size, func(context.Context) (string, error) {
		bytes, err := n.Kubectl("exec", pod, "--", "sh", "-c", "wc -c < "+DataPath)
		if err != nil || strings.TrimSpace(bytes) == strconv.FormatInt(wanted.Value(), 10) {
			return "", err
		}
		return "it has " + strings.TrimSpace(bytes) + " bytes", nil
	})
}
