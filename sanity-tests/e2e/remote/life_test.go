package remote

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestPodRunsThereOnTheTwinAndReturnsToItsData(t *testing.T) {
	p := offloaded(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.there)
	p.home.WaitReady("user")
	pod := p.remote.WaitReady("user")
	if _, err := p.remote.Cluster.Node(pod.Spec.NodeName); err != nil {
		t.Errorf("the pod runs on %s: %v", pod.Spec.NodeName, err)
	}
	found := p.follow("data")
	wantOurs(t, p, found)
	wantGravity(t, p, found.object)
	if *found.twin.Spec.StorageClassName != "reference" {
		t.Errorf("the twin is of class %s", *found.twin.Spec.StorageClassName)
	}
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")

	p.remote.Exec("user", "echo precious > /data/file && sync")
	p.home.DeletePod("user")
	p.home.Pod("user", "data") // wherever the scheduler likes
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
	p.wantGone(found)
}

// Names of claims can be as long as those of any object; so can those of their events.
func TestReleaseOfAVolumeThereIsRefused(t *testing.T) {
	p := offloaded(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.there)
	p.home.WaitReady("user")
	p.remote.WaitReady("user")
	found := p.follow("data")
	p.home.DeletePod("user")
	out, err := p.look(t.Context(), "release", "pvc", p.home.Name+"/data")
	if err == nil || !strings.Contains(err.Error(), "cannot be released yet") {
		t.Errorf("%v: %s", err, out)
	}
	if now := p.follow("data"); now.twin.UID != found.twin.UID || len(now.twin.Annotations) != len(found.twin.Annotations) {
		user.Violated(t, "the twin was changed")
	}
	p.deleteClaim("data")
	p.wantGone(found)
}

func TestClaimsWithLongNames(t *testing.T) {
	p := offloaded(t)
	served, unserved := strings.Repeat("s", 250), strings.Repeat("u", 250)
	p.home.Claim(served, "liqo-reference", "64Mi")
	p.home.Pod("served", served, p.there)
	nothing := p.virtualClass("nothing", map[string]string{"realStorageClass": p.home.Name + "-that-is-not-there"})
	p.home.Claim(unserved, nothing, "64Mi")
	p.home.Pod("unserved", unserved, p.there)
	p.home.WaitReady("served")
	p.home.WaitEvent(unserved, "NoRealClass", "cluster "+p.cluster)

	found := p.follow(served)
	if found.twin.Name != served {
		t.Errorf("the twin is %s", found.twin.Name)
	}
	p.home.DeletePod("served")
	p.deleteClaim(served)
	p.wantGone(found)
}

// wantOurs is that the twin can be told from what others made there.
func wantOurs(t *testing.T, p *pair, v volume) {
	t.Helper()
	if home := homeID(p); home == "" || v.twin.Labels[homeLabel] != home || home == p.cluster {
		t.Errorf("the twin is said to be of cluster %q, home is %q", v.twin.Labels[homeLabel], home)
	}
	if v.twin.Labels[volumeLabel] != v.object.Name || v.twin.Annotations[claimUID] != string(v.claim.UID) {
		t.Errorf("labels %v, annotations %v", v.twin.Labels, v.twin.Annotations)
	}
	if v.object.Spec.CSI.Driver != driver.CSIName {
		t.Errorf("the volume is one of %s", v.object.Spec.CSI.Driver)
	}
}

// wantGravity is that pods with the volume go to its cluster, to any node of it.
func wantGravity(t *testing.T, p *pair, object *corev1.PersistentVolume) {
	t.Helper()
	terms := object.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 {
		t.Fatalf("affinity %v", terms)
	}
	if only := terms[0].MatchExpressions[0]; only.Key != clusterKey || len(only.Values) != 1 || only.Values[0] != p.cluster {
		t.Errorf("affinity %v", terms)
	}
}

// A remote class that waits for its first consumer is bound by the pod that can
// only arrive there when its claim is.
func TestClaimIsBoundBeforeItsTwinIs(t *testing.T) {
	p := offloaded(t)
	heal := p.spoil(notYet)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.there)
	p.home.WaitBound("data")
	p.waitCondition("data", corev1.ConditionFalse, "TwinPending")
	if phase := claimIn(p.remote, t, "data").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the twin is %s without storage", phase)
	}
	heal()
	p.home.WaitReady("user")
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
}
