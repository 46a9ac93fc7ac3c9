package remote

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestRemotePodUsesTheTwinAndReturnsToItsData(t *testing.T) {
	p := newPair(t)
	p.startPod("user", "data", "liqo-reference")
	pod := p.remote.WaitReady("user")
	if _, err := p.remote.Cluster.Node(pod.Spec.NodeName); err != nil {
		t.Errorf("the pod runs on %s: %v", pod.Spec.NodeName, err)
	}
	found := p.waitVolume("data")
	p.wantMarks(found)
	p.wantAffinity(found.Virtual)
	if *found.Twin.Spec.StorageClassName != "reference" {
		t.Errorf("the twin is of class %s", *found.Twin.Spec.StorageClassName)
	}
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")

	p.remote.Exec("user", "echo precious > /data/file && sync")
	p.home.DeletePod("user")
	p.home.Pod("user", "data") // without a node selector
	p.home.WaitReady("user")
	p.remote.WaitReady("user")
	if got := p.remote.Exec("user", "cat /data/file"); got != "precious" {
		user.Violated(t, "the next pod reads %q", got)
	}

	p.home.DeletePod("user")
	if err := p.data(found); err != nil {
		t.Errorf("before the claim is deleted: %v", err)
	}
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

func TestReleaseOfARemoteVolumeIsRefused(t *testing.T) {
	p := newPair(t)
	p.startPod("user", "data", "liqo-reference")
	p.remote.WaitReady("user")
	found := p.waitVolume("data")
	p.home.DeletePod("user")
	out, err := p.liqoCSI(t.Context(), "release", "pvc", p.home.Name+"/data")
	if err == nil || !strings.Contains(err.Error(), "cannot be released yet") {
		t.Errorf("%v: %s", err, out)
	}
	if now := p.waitVolume("data"); now.Twin.UID != found.Twin.UID || len(now.Twin.Annotations) != len(found.Twin.Annotations) {
		user.Violated(t, "the twin was changed")
	}
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

// Names of claims can be as long as those of any object, and events have the names of their claims.
func TestClaimsWithLongNames(t *testing.T) {
	p := newPair(t)
	served, unserved := strings.Repeat("s", 250), strings.Repeat("u", 250)
	p.home.Claim(served, "liqo-reference", "64Mi")
	p.home.Pod("served", served, p.onVirtualNode)
	nothing := p.createVirtualClass("nothing", map[string]string{"realStorageClass": p.home.Name + "-absent"})
	p.home.Claim(unserved, nothing, "64Mi")
	p.home.Pod("unserved", unserved, p.onVirtualNode)
	p.home.WaitReady("served")
	p.home.WaitEvent(unserved, "NoRealClass", "cluster "+p.cluster)

	found := p.waitVolume(served)
	if found.Twin.Name != served {
		t.Errorf("the twin is %s", found.Twin.Name)
	}
	p.home.DeletePod("served")
	p.deleteClaim(served)
	p.waitVolumeDeleted(found)
}

// wantMarks checks the labels and annotations by which the driver recognises its twin.
func (p *pair) wantMarks(v user.Volume) {
	p.t.Helper()
	if home := p.homeID(); home == "" || v.Twin.Labels[homeLabel] != home || home == p.cluster {
		p.t.Errorf("the home cluster of the twin is %q, not %q", v.Twin.Labels[homeLabel], home)
	}
	if v.Twin.Labels[volumeLabel] != v.Virtual.Name || v.Twin.Annotations[claimUID] != string(v.Claim.UID) {
		p.t.Errorf("labels %v, annotations %v", v.Twin.Labels, v.Twin.Annotations)
	}
	if v.Virtual.Spec.CSI.Driver != driver.CSIName {
		p.t.Errorf("the driver of the volume is %s", v.Virtual.Spec.CSI.Driver)
	}
}

// wantAffinity checks that the volume allows all nodes of its cluster, and no others.
func (p *pair) wantAffinity(object *corev1.PersistentVolume) {
	p.t.Helper()
	terms := object.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 {
		p.t.Fatalf("affinity %v", terms)
	}
	if only := terms[0].MatchExpressions[0]; only.Key != clusterKey || len(only.Values) != 1 || only.Values[0] != p.cluster {
		p.t.Errorf("affinity %v", terms)
	}
}

// With WaitForFirstConsumer the twin is bound only when the remote pod exists, which requires that the claim
// is Bound.
func TestClaimIsBoundBeforeItsTwinIs(t *testing.T) {
	p := newPair(t)
	removeFault := p.addFault(createUnavailable)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitBound("data")
	p.waitCondition("data", corev1.ConditionFalse, "TwinPending")
	if phase := p.remote.GetClaim("data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the twin is %s without storage", phase)
	}
	removeFault()
	p.home.WaitReady("user")
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
}
