package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func TestRemoteClassWithImmediateBinding(t *testing.T) {
	p := newPair(t)
	removeFault := p.addFault(createUnavailable)
	p.home.Claim("data", "liqo-reference-immediate", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.waitCreateCalls(1)
	if phase := p.home.GetClaim("data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim is %s before its twin is bound", phase)
	}
	removeFault()
	p.home.WaitReady("user")
	if found := p.waitVolume("data"); *found.Twin.Spec.StorageClassName != "reference-immediate" {
		t.Errorf("the twin is of class %s", *found.Twin.Spec.StorageClassName)
	}
}

func TestTwoClaimsInOnePod(t *testing.T) {
	p := newPair(t)
	p.home.Claim("first", "liqo-reference", "64Mi")
	p.home.Claim("second", "liqo-reference-immediate", "64Mi")
	p.home.Pod("user", "first", p.onVirtualNode, withClaim("second"))
	p.home.WaitReady("user")
	p.remote.Exec("user", "echo 1 > /data/file && echo 2 > /second/file")
	first, second := p.waitVolume("first"), p.waitVolume("second")
	if first.Real.Name == second.Real.Name {
		user.Violated(t, "both claims have one volume")
	}
	p.home.DeletePod("user")
	p.home.Pod("user", "second", p.onVirtualNode)
	p.home.WaitReady("user")
	if got := p.remote.Exec("user", "cat /data/file"); got != "2" {
		user.Violated(t, "the second volume has %q", got)
	}
}

// Both twins get the same selected node, and the claims wait for both.
func TestPolicyWaitForBound(t *testing.T) {
	p := newPair(t)
	class := p.createVirtualClass("patient", map[string]string{"realStorageClass": "reference", "remoteBindingPolicy": "WaitForBound"})
	removeFault := p.addFault(createUnavailable)
	p.home.Claim("first", class, "64Mi")
	p.home.Claim("second", class, "64Mi")
	p.home.Pod("user", "first", p.onVirtualNode, withClaim("second"))
	p.waitCreateCalls(2)
	selected := map[string]bool{}
	for _, name := range []string{"first", "second"} {
		if phase := p.home.GetClaim(name).Status.Phase; phase != corev1.ClaimPending {
			t.Errorf("claim %s is %s before its twin is bound", name, phase)
		}
		selected[p.remote.GetClaim(name).Annotations[selectedNode]] = true
	}
	if len(selected) != 1 || selected[""] {
		t.Errorf("the selected nodes of the twins are %v", selected)
	}
	removeFault()
	p.home.WaitReady("user")
}

// The published capacity is zero, so that a pod that may run elsewhere does.
func TestMissingRealClass(t *testing.T) {
	p := newPair(t)
	real := p.home.Name + "-real"
	p.home.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: real}, Provisioner: storage.Reference.Name, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	virtual := p.createVirtualClass("virtual", map[string]string{"realStorageClass": real})
	p.home.Claim("pinned", virtual, "64Mi")
	p.home.Pod("pinned", "pinned", p.pinned)
	p.home.WaitEvent("pinned", real, "does not exist", "cluster "+p.cluster)
	if phase := p.home.GetClaim("pinned").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim is %s", phase)
	}
	p.waitCapacity(virtual, func(bytes int64) bool { return bytes == 0 })

	// CreateVolume is not called for a pod that fits no other node; the claim gets an event anyway.
	p.home.Claim("data", virtual, "64Mi")
	p.home.Pod("stuck", "data", p.onVirtualNode)
	p.home.WaitEvent("data", "NoRealClass", real, "cluster "+p.cluster, "realStorageClass of the class "+virtual,
		"spec.storageClasses of the RemoteCluster "+p.cluster)
	p.waitListed("the limit of the cluster", func(c listedCluster, v listedVolume) bool {
		// While another test allows claims to name a real class, these are not limited.
		limit := func(line string) bool { return strings.Contains(line, " of the class "+virtual+" ") }
		return slices.ContainsFunc(c.Limits, limit) && v.Cluster == ""
	})
	p.home.DeletePod("stuck")
	p.home.Pod("stuck", "data", p.pinned)
	p.waitListed("the cluster of the pod", func(_ listedCluster, v listedVolume) bool { return v.Cluster == p.cluster })
	p.home.Claim("free", virtual, "64Mi")
	p.home.Pod("free", "free", p.preferRemote)
	if pod := p.home.WaitReady("free"); pod.Spec.NodeName == p.node {
		t.Error("the pod runs on a node that its volume does not allow")
	}
}

func TestMountOptionsOfTheVirtualClassAreRefused(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-options", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitEvent("data", "ProvisioningFailed", "mountOptions of the virtual class", "set them there")
	p.wantPending("data")
}

// withClaim adds a claim to a pod, at the path of its name.
func withClaim(claim string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		container := &pod.Spec.Containers[0]
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/" + claim})
	}
}

// waitCreateCalls waits for CreateVolume calls of the real driver for this number of volumes.
func (p *pair) waitCreateCalls(volumes int) {
	p.t.Helper()
	p.remote.Eventually("the real driver gets CreateVolume calls", func(context.Context) (string, error) {
		calls, err := storage.BackendOf(p.remote.Cluster, storage.Reference).Calls(func(call storage.Call) bool {
			return call.RPC == "CreateVolume" && strings.HasPrefix(call.Claim, p.remote.Name+"/")
		})
		claims := map[string]bool{}
		for _, call := range calls {
			claims[call.Claim] = true
		}
		if err != nil || len(claims) >= volumes {
			return "", err
		}
		return fmt.Sprintf("only for %v", claims), nil
	})
}

// createVirtualClass creates a virtual class for the test, and returns its name.
func (p *pair) createVirtualClass(name string, parameters map[string]string) string {
	p.t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: p.home.Name + "-" + name},
		Provisioner: driver.CSIName, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer), Parameters: parameters,
	}
	p.home.Class(class)
	return class.Name
}

// waitCapacity waits until all CSIStorageCapacities of a class that select the virtual node have the wanted capacity.
func (p *pair) waitCapacity(class string, wanted func(bytes int64) bool) {
	p.t.Helper()
	p.home.Eventually("capacity of class "+class, func(ctx context.Context) (string, error) {
		all, err := p.home.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		node, err := p.home.Client.CoreV1().Nodes().Get(ctx, p.node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		missing := "there is none"
		for _, one := range all.Items {
			if one.StorageClassName != class || one.NodeTopology == nil {
				continue
			}
			selects, err := metav1.LabelSelectorAsSelector(one.NodeTopology)
			if err != nil || !selects.Matches(labels.Set(node.Labels)) {
				continue
			}
			if one.Capacity == nil || !wanted(one.Capacity.Value()) {
				return fmt.Sprintf("it is %v", one.Capacity), nil
			}
			missing = ""
		}
		return missing, nil
	})
}

func (p *pair) wantPending(claim string) {
	p.t.Helper()
	if phase := p.home.GetClaim(claim).Status.Phase; phase != corev1.ClaimPending {
		p.t.Errorf("claim %s is %s", claim, phase)
	}
}
