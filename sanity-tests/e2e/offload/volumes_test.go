package offload

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// tenantWithData is a tenant with the pod writer, which has written a file to the claim data.
func tenantWithData(t *testing.T) (tenant, *user.Namespace, user.Volume) {
	t.Helper()
	n, remote := offloadedTenant(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("writer", "data", onVirtualNode)
	n.WaitReady("writer")
	remote.Exec("writer", "echo kept > "+user.DataPath+"/file && sync")
	return n, remote, n.WaitRemoteVolume(remote, "data")
}

func (n tenant) wantClaim(name string, is bool) {
	n.t.Helper()
	_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		n.t.Fatal(err)
	}
	if (err == nil) != is {
		user.Violated(n.t, "claim %s exists: %t, want %t", name, err == nil, is)
	}
}

func (n tenant) wantUnchanged() {
	n.t.Helper()
	n.wantClaim("data", true)
	if n.offloading().GetDeletionTimestamp() != nil {
		user.Violated(n.t, "the namespace is unoffloaded")
	}
}

// A refused pod whose volume is in the cluster that refuses it cannot be returned.
func TestRefusedPodReportsHowToMoveItsData(t *testing.T) {
	n, _, _ := tenantWithData(t)
	n.Pod("refused", "data", onVirtualNode, func(pod *corev1.Pod) {
		pod.Spec.HostPID = true
		// The scheduler would find no node.
		pod.Spec.NodeName, pod.Spec.NodeSelector = node, nil
	})
	words := "liqo-csi move volume data -n " + n.Name
	n.waitPod("the pod to report why it waits", "refused", func(pod *corev1.Pod) string {
		said := pod.Status.Reason + ": " + pod.Status.Message
		if !strings.Contains(said, "PodNotSupported: it has spec.hostPID") || !strings.Contains(said, words) {
			return said
		}
		return ""
	})
	n.WaitEvent("refused", "PodNotSupported", words)
	n.DeletePod("refused")
	n.DeletePod("writer")
}

func TestUnoffloadDeletesVolumes(t *testing.T) {
	n, remote, volume := tenantWithData(t)
	remote.Claim("theirs", "reference", "64Mi")
	unoffload := func(more ...string) (string, error) {
		args := append([]string{"unoffload", "namespace", n.Name, "--delete-volumes", "--timeout", "180s"}, more...)
		return n.program(args...)
	}
	var refused *exec.ExitError
	if _, err := unoffload("--retain-volumes"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "cannot be used with") {
		t.Errorf("with both flags: %v", err)
	}
	// The pod has no owner.
	if _, err := unoffload(); !errors.As(err, &refused) || refused.ExitCode() != 2 || !strings.Contains(err.Error(), n.Name+"/writer") {
		t.Errorf("it is not refused because of the pod: %v", err)
	}
	if out, err := unoffload("--dry-run", "--force"); err != nil || !strings.Contains(out, "Claims to be deleted with their data: 1.") {
		t.Errorf("%v: %s", err, out)
	}
	n.wantUnchanged()
	if out, err := unoffload("--force"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.wantClaim("data", false)
	if n.remote(n.Name) != nil {
		t.Error("the remote namespace still exists, with the claim that was created in it")
	}
	n.Eventually("the data to be deleted", func(ctx context.Context) (string, error) {
		found, err := remote.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Real.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("its volume is %s", found.Status.Phase), nil
	})
}

func TestRetainedVolumesAreReusedByTheNextOffloading(t *testing.T) {
	n, remote, volume := tenantWithData(t)
	retain := []string{"unoffload", "namespace", n.Name, "--retain-volumes", "--force", "--timeout", "180s"}
	if out, err := n.program(append(retain, "--dry-run")...); err != nil || !strings.Contains(out, "Claims to be kept, with their data in other clusters: 1.") {
		t.Errorf("%v: %s", err, out)
	}
	n.wantUnchanged()
	if out, err := n.program(retain...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n.remote(n.Name) != nil {
		t.Error("the remote namespace still exists")
	}
	n.wantClaim("data", true)
	remote.WantRetained(volume.Real.Name)

	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	n.Pod("reader", "data", onVirtualNode)
	n.WaitReady("reader")
	if text := remote.Exec("reader", "cat "+user.DataPath+"/file"); strings.TrimSpace(text) != "kept" {
		user.Violated(t, "the file has %q", text)
	}
	again := n.WaitRemoteVolume(remote, "data")
	if again.Real.UID != volume.Real.UID || again.Claim.UID != volume.Claim.UID {
		user.Violated(t, "the volume was replaced: %s, it was %s", again.Real.Name, volume.Real.Name)
	}

	// The data are to be deleted with the claim again.
	patch := `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`
	if out, err := n.Kubectl("patch", "pv", volume.Virtual.Name, "-p", patch); err != nil {
		t.Fatal(err, out)
	}
	n.Eventually("the policy of the remote cluster to be restored", func(ctx context.Context) (string, error) {
		real, err := remote.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Real.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if policy := real.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimDelete {
			return "it is " + string(policy), nil
		}
		return "", nil
	})
	if out, err := n.program("unoffload", "namespace", n.Name, "--delete-volumes", "--force", "--timeout", "180s"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.wantClaim("data", false)
}
