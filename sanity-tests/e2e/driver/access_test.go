package driver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func mode(modes ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.AccessModes = modes }
}

func TestReadWriteManyAcrossNodes(t *testing.T) {
	n := home(t)
	nodes := n.Cluster.Nodes()
	n.Claim("shared", "liqo-reference", "64Mi", mode(corev1.ReadWriteMany))
	for _, node := range nodes {
		n.Pod("on-"+node.Name, "shared", user.OnNode(node.Name))
	}
	for _, node := range nodes {
		n.WaitReady("on-" + node.Name)
	}
	n.Exec("on-"+nodes[0].Name, "echo together > /data/file")
	for _, node := range nodes {
		if got := n.Exec("on-"+node.Name, "cat /data/file"); got != "together" {
			user.Violated(t, "on %s: %q", node.Name, got)
		}
	}
}

func TestReadOnlyMany(t *testing.T) {
	n := home(t)
	n.Claim("shelf", "liqo-reference", "64Mi", mode(corev1.ReadOnlyMany))
	n.Pod("reader", "shelf", readOnly)
	n.WaitReady("reader")
	wantReadOnly(t, n, "reader")
}

func TestReadWriteOncePodKeepsASecondPodOut(t *testing.T) {
	n := home(t)
	n.Claim("alone", "liqo-reference", "64Mi", mode(corev1.ReadWriteOncePod))
	n.Pod("first", "alone")
	n.WaitReady("first")
	n.Pod("second", "alone")
	n.WaitEvent("second", "FailedScheduling", "ReadWriteOncePod")
	n.DeletePod("first")
	n.WaitReady("second")
}

func TestTwoPodsShareAVolumeOnOneNode(t *testing.T) {
	n := home(t)
	n.Claim("shared", "liqo-reference-attach", "64Mi")
	n.Pod("first", "shared")
	first := n.WaitReady("first")
	n.Pod("second", "shared", user.OnNode(first.Spec.NodeName))
	n.WaitReady("second")
	n.Exec("first", "echo here > /data/file")
	if got := n.Exec("second", "cat /data/file"); got != "here" {
		user.Violated(t, "the second pod reads %q", got)
	}
	n.DeletePod("first")
	if got := n.Exec("second", "cat /data/file"); got != "here" {
		user.Violated(t, "after the first has gone, the second reads %q", got)
	}
}

func TestBlockVolumes(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"liqo-reference", "liqo-reference-attach", "liqo-static-local"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			if class == "liqo-static-local" {
				recycleStatic(t, n)
			}
			n.Claim("device", class, "16Mi", user.Block)
			n.Pod("writer", "device", user.WithDevice)
			n.WaitReady("writer")
			n.Exec("writer", "test -b /data && echo raw | dd of=/data bs=512 count=1 conv=sync 2>/dev/null && sync")
			n.DeletePod("writer")
			n.Pod("reader", "device", user.WithDevice)
			n.WaitReady("reader")
			if got := n.Exec("reader", "head -c 3 /data"); got != "raw" {
				user.Violated(t, "the next pod reads %q", got)
			}
		})
	}
}

func TestSubPath(t *testing.T) {
	n := home(t)
	n.Claim("tree", "liqo-reference", "64Mi")
	n.Pod("inner", "tree", func(pod *corev1.Pod) { pod.Spec.Containers[0].VolumeMounts[0].SubPath = "branch/leaf" })
	n.WaitReady("inner")
	n.Exec("inner", "echo green > /data/color")
	n.DeletePod("inner")
	n.Pod("outer", "tree")
	n.WaitReady("outer")
	if got := n.Exec("outer", "cat /data/branch/leaf/color"); got != "green" {
		user.Violated(t, "read %q", got)
	}
}

func readOnly(pod *corev1.Pod) { pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }

func wantReadOnly(t *testing.T, n *user.Namespace, pod string) {
	t.Helper()
	if got := n.Exec(pod, "touch /data/file 2>&1 || true"); !strings.Contains(got, "Read-only") {
		user.Violated(t, "writing to a read-only volume says %q", got)
	}
}

func TestReadOnlyPod(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-ext4", "64Mi")
	n.Pod("writer", "data")
	n.WaitReady("writer")
	n.Exec("writer", "echo old > /data/file; sync")
	n.DeletePod("writer")
	n.Pod("reader", "data", readOnly)
	n.WaitReady("reader")
	wantReadOnly(t, n, "reader")
	if got := n.Exec("reader", "cat /data/file"); got != "old" {
		user.Violated(t, "read %q", got)
	}
}

const group = int64(4321)

// inGroup lets root run the pod, so that it can spoil the ownership of a file.
func inGroup(policy corev1.PodFSGroupChangePolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		fsGroup := group
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &fsGroup, FSGroupChangePolicy: &policy}
	}
}

func TestGroupOfFilesFollowsBothChangePolicies(t *testing.T) {
	n := home(t)
	n.Claim("owned", "liqo-reference-ext4", "64Mi")
	// Not Always: the lab's CSIDriver asks for tokens and so to be published again, and
	// each time kubelet would give a pod with Always all its files back to the group.
	n.Pod("first", "owned", inGroup(corev1.FSGroupChangeOnRootMismatch))
	n.WaitReady("first")
	if got := n.Exec("first", "stat -c %g /data"); got != "4321" {
		t.Errorf("the volume belongs to group %s", got)
	}
	n.Exec("first", "touch /data/file && chgrp 99 /data/file")
	n.DeletePod("first")

	n.Pod("lazy", "owned", inGroup(corev1.FSGroupChangeOnRootMismatch))
	n.WaitReady("lazy")
	if got := n.Exec("lazy", "stat -c %g /data/file"); got != "99" {
		t.Errorf("OnRootMismatch: the file belongs to group %s though the root matched", got)
	}
	n.DeletePod("lazy")

	n.Pod("thorough", "owned", inGroup(corev1.FSGroupChangeAlways))
	n.WaitReady("thorough")
	if got := n.Exec("thorough", "stat -c %g /data/file"); got != "4321" {
		t.Errorf("Always: the file belongs to group %s", got)
	}
}

func TestClassWithoutFileSystemTypeLeavesTheGroupAlone(t *testing.T) {
	n := home(t)
	n.Claim("plain", "liqo-no-group", "64Mi")
	n.Pod("user", "plain", inGroup(corev1.FSGroupChangeAlways))
	n.WaitReady("user")
	if got := n.Exec("user", "stat -c %g /data"); got != "0" {
		t.Errorf("the volume belongs to group %s", got)
	}
}
