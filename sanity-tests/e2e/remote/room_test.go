package remote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/storage"
)

// This file tests full storage in the remote cluster.

// createExhausted makes CreateVolume fail for lack of capacity, whatever capacity is published.
var createExhausted = storage.Fault{RPC: "CreateVolume", Code: "ResourceExhausted", Message: "the pool is full"}

// The scheduler does not choose the virtual node for claims that are larger than the published capacity of the remote
// cluster, which follows changes.
func TestSchedulerUsesPublishedRemoteCapacity(t *testing.T) {
	p := newPair(t)
	const class = "liqo-reference-local"
	p.waitCapacity(class, func(bytes int64) bool { return bytes > 0 && bytes == p.largestRemote("reference-local") })
	p.setSpaceLeft(1 << 30)
	p.waitCapacity(class, func(bytes int64) bool { return bytes == 1<<30 && p.largestRemote("reference-local") == 1<<30 })
	// The scheduler sees the new capacity with a delay.
	p.home.Claim("probe", class, "2Gi")
	p.home.Pod("probe", "probe", p.onVirtualNode)
	p.home.WaitEvent("probe", "FailedScheduling", "did not have enough free storage")

	p.home.Claim("free", class, "2Gi")
	p.home.Pod("free", "free", p.preferRemote)
	p.home.Claim("bound", class, "2Gi")
	p.home.Pod("bound", "bound", p.onVirtualNode)
	p.home.Claim("small", class, "512Mi")
	p.home.Pod("small", "small", p.onVirtualNode)
	if pod := p.home.WaitReady("free"); pod.Spec.NodeName == p.node {
		t.Error("the pod runs in the cluster without capacity")
	}
	p.home.WaitReady("small")
	p.home.WaitEvent("bound", "FailedScheduling", "did not have enough free storage")
	p.wantNoCreateCalls("free")
	p.wantNoCreateCalls("bound")

	p.setSpaceLeft(3 << 30)
	p.waitCapacity(class, func(bytes int64) bool { return bytes == 3<<30 })
	p.home.WaitReady("bound")
	p.remote.WaitReady("bound")
}

// The published capacity may be outdated. With WaitForBound the refusal of the real driver moves the pod home.
func TestPodRunsAtHomeIfRemoteStorageIsFull(t *testing.T) {
	p := newPair(t)
	removeFault := p.addDriverFault(storage.Local, createExhausted)
	class := p.createVirtualClass("patient", map[string]string{"realStorageClass": "reference-local", "remoteBindingPolicy": "WaitForBound"})
	p.waitCapacity(class, func(bytes int64) bool { return bytes > 0 })
	p.home.Claim("data", class, "64Mi")
	p.home.Pod("user", "data", p.preferRemote)
	p.home.Claim("early", "liqo-reference-local", "64Mi")
	p.home.Pod("early", "early", p.onVirtualNode)
	p.home.WaitEvent("data", "ProvisioningFailed", "cannot provision the volume", createExhausted.Message)
	if pod := p.home.WaitReady("user"); pod.Spec.NodeName == p.node {
		t.Error("the pod runs in the cluster without capacity")
	}
	if _, err := p.twin(t.Context(), "data"); !apierrors.IsNotFound(err) {
		t.Errorf("the refused twin is not deleted: %v", err)
	}

	// With Optimistic the claim is Bound already, and the pod waits for the twin.
	p.home.WaitBound("early")
	p.home.WaitEvent("early", "TwinPending", createExhausted.Message)
	p.waitCondition("early", corev1.ConditionFalse, "TwinPending")
	removeFault()
	p.home.WaitReady("early")
	p.waitCondition("early", corev1.ConditionTrue, "TwinBound")
}

// setSpaceLeft sets the free space of the remote driver that publishes its capacity. No other test uses it there.
func (p *pair) setSpaceLeft(bytes int64) {
	p.t.Helper()
	backend := storage.BackendOf(p.remote.Cluster, storage.Local)
	p.t.Cleanup(func() {
		if err := backend.SetSpaceLeft(nil); err != nil {
			p.t.Error(err)
		}
	})
	if err := backend.SetSpaceLeft(&bytes); err != nil {
		p.t.Fatal(err)
	}
}

// largestRemote returns the largest volume of a real class according to the remote CSIStorageCapacities.
func (p *pair) largestRemote(class string) (bytes int64) {
	p.t.Helper()
	all, err := p.remote.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, one := range all.Items {
		if one.StorageClassName == class && one.MaximumVolumeSize != nil {
			bytes = max(bytes, one.MaximumVolumeSize.Value())
		}
	}
	return bytes
}

// wantNoCreateCalls checks that the volume was never requested in the remote cluster.
func (p *pair) wantNoCreateCalls(claim string) {
	p.t.Helper()
	calls, err := storage.BackendOf(p.remote.Cluster, storage.Local).Calls(func(call storage.Call) bool {
		return call.Claim == p.remote.Name+"/"+claim
	})
	if err != nil || len(calls) > 0 {
		p.t.Errorf("the remote driver was called for %s %d times, %v", claim, len(calls), err)
	}
	if _, err := p.twin(p.t.Context(), claim); !apierrors.IsNotFound(err) {
		p.t.Errorf("the twin of %s exists: %v", claim, err)
	}
	p.home.WantNoEvent(claim, "cluster "+p.cluster)
}
