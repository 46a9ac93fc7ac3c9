package remote

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// This file expands volumes in remote clusters. No kubelet at home mounts them, so the driver writes into the
// claim what the remote kubelet did.

// expandUnavailable makes the expansion on nodes fail, and kubelet retry.
var expandUnavailable = storage.Fault{RPC: "NodeExpandVolume", Code: "Unavailable", Message: "the node is busy"}

// expandOutOfRange makes the expansion on nodes infeasible.
var expandOutOfRange = storage.Fault{RPC: "NodeExpandVolume", Code: "OutOfRange", Message: "the node has no free space"}

// createXFS creates a volume whose file system is expanded on the node, and a pod with it.
func (p *pair) createXFS(claim, pod string) {
	p.t.Helper()
	p.home.Claim(claim, "liqo-reference-xfs", "320Mi")
	p.home.Pod(pod, claim, p.onVirtualNode)
	p.home.WaitReady(pod)
	p.remote.WaitReady(pod)
	p.waitVolume(claim)
}

func TestRemoteVolumeGrowsThreeTimes(t *testing.T) {
	p := newPair(t)
	p.createXFS("data", "user")
	p.remote.Exec("user", "echo kept > /data/file")
	before := p.remote.WaitReady("user")
	for _, size := range []string{"400Mi", "480Mi", "560Mi"} {
		small := p.remote.FileSystemKiB("user")
		p.home.Resize("data", size)
		p.home.WaitRemoteExpanded(p.remote, "data", size)
		// The file system uses some space for metadata.
		if large := p.remote.FileSystemKiB("user"); large < small+70*1024 {
			t.Errorf("with %s the file system has %d KiB, it had %d KiB", size, large, small)
		}
	}
	if got := p.remote.Exec("user", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	if after := p.remote.WaitReady("user"); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Error("the pod was restarted")
	}
}

// The capacity of the claim is that of the twin.
func TestHomeClaimWaitsForExpansionOnTheRemoteNode(t *testing.T) {
	p := newPair(t)
	p.createXFS("data", "user")
	removeFault := p.addFault(expandUnavailable)
	p.home.Resize("data", "400Mi")
	p.home.WaitResizeCondition("data", corev1.PersistentVolumeClaimFileSystemResizePending)
	p.remote.WaitEvent("user", expandUnavailable.Message)
	p.home.WantCapacity("data", "320Mi")
	p.wantTable("volumes", []string{"--namespace", p.home.Name}, "320Mi -> 400Mi")
	removeFault()
	p.home.WaitRemoteExpanded(p.remote, "data", "400Mi")
}

// The remote csi-resizer retries after a node reported an infeasible expansion.
func TestFailedExpansionOnARemoteNodeIsRetried(t *testing.T) {
	p := newPair(t)
	p.createXFS("data", "user")
	removeFault := p.addFault(expandOutOfRange)
	p.home.Resize("data", "400Mi")
	p.remote.WaitEvent("user", expandOutOfRange.Message)
	p.home.WantCapacity("data", "320Mi")
	removeFault()
	p.home.WaitRemoteExpanded(p.remote, "data", "400Mi")
	p.home.Resize("data", "480Mi")
	p.home.WaitRemoteExpanded(p.remote, "data", "480Mi")
}

func TestRemoteVolumesGrowWithoutAPod(t *testing.T) {
	p := newPair(t)
	p.createUnused("folder")
	p.home.Resize("folder", "128Mi")
	p.home.WaitRemoteExpanded(p.remote, "folder", "128Mi")

	p.createXFS("image", "first")
	p.home.DeletePod("first")
	p.waitUnstaged("image")
	p.home.Resize("image", "400Mi")
	p.home.WaitResizeCondition("image", corev1.PersistentVolumeClaimFileSystemResizePending)
	p.home.WantCapacity("image", "320Mi")
	p.home.Pod("next", "image", p.onVirtualNode)
	p.home.WaitReady("next")
	p.home.WaitRemoteExpanded(p.remote, "image", "400Mi")
}

// waitUnstaged waits until no remote node has staged a claim's volume, which takes longer than the deletion of
// the pod.
func (p *pair) waitUnstaged(claim string) {
	p.t.Helper()
	p.remote.WaitUnstaged(storage.Reference, p.waitVolume(claim).Real)
}

func TestSmallerRemoteSizeSucceedsAfterAFailedExpansion(t *testing.T) {
	p := newPair(t)
	p.createUnused("data")
	p.home.Resize("data", "20Ti")
	p.home.WaitExpansionRefused("data", "OutOfRange", "directory volumes have 1 to")
	p.home.WantCapacity("data", "64Mi")
	p.home.Resize("data", "128Mi")
	p.home.WaitRemoteExpanded(p.remote, "data", "128Mi")
}

// The claim is Bound before its twin is, and Kubernetes expands only Bound claims.
func TestVolumeGrowsAfterDelayedProvisioning(t *testing.T) {
	p := newPair(t)
	removeFault := p.addFault(createUnavailable)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitBound("data")
	p.home.Resize("data", "128Mi")
	p.home.WaitEvent("data", "VolumeResizeFailed", "Internal", "is bound only when its pod arrives there")
	if phase := p.remote.GetClaim("data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the twin is %s without storage", phase)
	}
	removeFault()
	p.home.WaitReady("user")
	p.home.WaitRemoteExpanded(p.remote, "data", "128Mi")
}

func TestExpansionIsRefusedIfTheRemoteClassForbidsIt(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", p.createFixedClass(), "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitVolume("data")
	p.home.Resize("data", "128Mi")
	p.home.WaitEvent("data", "VolumeResizeFailed", "OutOfRange",
		fmt.Sprintf("the real class %q in the cluster %s", p.fixedClass(), p.cluster), "does not allow expansion")
	if request := p.remote.GetClaim("data").Spec.Resources.Requests[corev1.ResourceStorage]; request.String() != "64Mi" {
		t.Errorf("the twin requests %s", request.String())
	}
}

// createFixedClass creates a real class that does not allow expansion, and a virtual one for it that does.
func (p *pair) createFixedClass() (virtual string) {
	p.t.Helper()
	p.remote.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.fixedClass()}, Provisioner: storage.Reference.Name, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	virtual = p.home.Name + "-fixed"
	p.home.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: virtual}, Provisioner: driver.CSIName, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true), Parameters: map[string]string{"realStorageClass": p.fixedClass()},
	})
	return virtual
}

func (p *pair) fixedClass() string { return p.remote.Name + "-fixed-real" }

func TestRemoteQuotaIsReportedAndASmallerSizeSucceeds(t *testing.T) {
	p := newPair(t)
	p.createUnused("data")
	p.remote.StorageQuota("little", "100Mi")
	p.home.Resize("data", "128Mi")
	p.home.WaitExpansionRefused("data", "OutOfRange", "exceeded quota: little")
	p.home.Resize("data", "96Mi")
	p.home.WaitRemoteExpanded(p.remote, "data", "96Mi")
}

// With the level minimal the driver cannot read remote classes and PersistentVolumes.
func TestVolumesGrowWithMinimalRights(t *testing.T) {
	p, _ := newRestrictedPair(t, "minimal")
	p.createXFS("data", "user")
	p.home.Claim("fixed", p.createFixedClass(), "64Mi")
	p.home.Pod("fixed", "fixed", p.onVirtualNode)
	p.home.WaitReady("fixed")
	p.waitVolume("fixed")
	for _, size := range []string{"400Mi", "480Mi"} {
		p.home.Resize("data", size)
		p.home.WaitRemoteExpanded(p.remote, "data", size)
	}
	p.home.Resize("fixed", "128Mi")
	// A message of the remote API server.
	p.home.WaitEvent("fixed", "VolumeResizeFailed", "OutOfRange", "must support resize")
}

func TestVolumeGrowsOnceItsClusterIsReachableAgain(t *testing.T) {
	p := newDedicatedPair(t, nil)
	p.createUnused("data")
	p.putSecret(kubeconfigWith(t, unusedPort(t)))
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	p.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
	p.home.Resize("data", "128Mi")
	p.home.WaitEvent("data", "VolumeResizeFailed", "Unavailable", p.cluster)
	p.putSecret(shared.kubeconfig)
	p.home.WaitRemoteExpanded(p.remote, "data", "128Mi")
}
