package driver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func withAccessModes(modes ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.AccessModes = modes }
}

func TestReadWriteManyAcrossNodes(t *testing.T) {
	n := home(t)
	nodes := n.Cluster.Nodes()
	n.Claim("shared", "liqo-reference", "64Mi", withAccessModes(corev1.ReadWriteMany))
	for _, node := range nodes {
		n.Pod("on-"+node.Name, "shared", user.OnNode(node.Name))
	}
	for _, node := range nodes {
		n.WaitReady("on-" + node.Name)
	}
	n.Exec("on-"+nodes[0].Name, "echo shared text > /data/file")
	for _, node := range nodes {
		if got := n.Exec("on-"+node.Name, "cat /data/file"); got != "shared text" {
			user.Violated(t, "on %s: %q", node.Name, got)
		}
	}
}

func TestReadOnlyMany(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi", withAccessModes(corev1.ReadOnlyMany))
	n.Pod("reader", "data", readOnly)
	n.WaitReady("reader")
	wantReadOnly(t, n, "reader")
}

func TestReadWriteOncePodBlocksASecondPod(t *testing.T) {
	n := home(t)
	n.Claim("exclusive", "liqo-reference", "64Mi", withAccessModes(corev1.ReadWriteOncePod))
	n.Pod("first", "exclusive")
	n.WaitReady("first")
	n.Pod("second", "exclusive")
	n.WaitEvent("second", "FailedScheduling", "ReadWriteOncePod")
	n.DeletePod("first")
	n.WaitReady("second")
}

func TestTwoPodsShareAVolumeOnOneNode(t *testing.T) {
	n := home(t)
	first := startPod(n, "first", "shared", "liqo-reference-attach")
	n.Pod("second", "shared", user.OnNode(first.Spec.NodeName))
	n.WaitReady("second")
	n.Exec("first", "echo kept > /data/file")
	if got := n.Exec("second", "cat /data/file"); got != "kept" {
		user.Violated(t, "the second pod reads %q", got)
	}
	n.DeletePod("first")
	if got := n.Exec("second", "cat /data/file"); got != "kept" {
		user.Violated(t, "after the first pod is deleted, the second reads %q", got)
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
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("writer", "data", func(pod *corev1.Pod) { pod.Spec.Containers[0].VolumeMounts[0].SubPath = "a/b" })
	n.WaitReady("writer")
	n.Exec("writer", "echo kept > /data/file")
	n.DeletePod("writer")
	n.Pod("reader", "data")
	n.WaitReady("reader")
	if got := n.Exec("reader", "cat /data/a/b/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
}

func readOnly(pod *corev1.Pod) { pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }

func wantReadOnly(t *testing.T, n *user.Namespace, pod string) {
	t.Helper()
	if got := n.Exec(pod, "touch /data/file 2>&1 || true"); !strings.Contains(got, "Read-only") {
		user.Violated(t, "a write to a read-only volume prints %q", got)
	}
}

func TestReadOnlyPod(t *testing.T) {
	n := home(t)
	startPod(n, "writer", "data", "liqo-reference-ext4")
	n.Exec("writer", "echo old > /data/file; sync")
	n.DeletePod("writer")
	n.Pod("reader", "data", readOnly)
	n.WaitReady("reader")
	wantReadOnly(t, n, "reader")
	if got := n.Exec("reader", "cat /data/file"); got != "old" {
		user.Violated(t, "read %q", got)
	}
}

// withFSGroup sets the fsGroup 4321. The pod runs as root, so that it can change the group of a file.
func withFSGroup(policy corev1.PodFSGroupChangePolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321)), FSGroupChangePolicy: &policy}
	}
}

func TestFSGroupWithBothChangePolicies(t *testing.T) {
	n := home(t)
	n.Claim("owned", "liqo-reference-ext4", "64Mi")
	// Not Always: the lab's CSIDriver has requiresRepublish because of tokens, and with Always kubelet resets the
	// group of all files at each publish.
	n.Pod("first", "owned", withFSGroup(corev1.FSGroupChangeOnRootMismatch))
	n.WaitReady("first")
	if got := n.Exec("first", "stat -c %g /data"); got != "4321" {
		t.Errorf("the group of the volume is %s", got)
	}
	n.Exec("first", "touch /data/file && chgrp 99 /data/file")
	n.DeletePod("first")

	n.Pod("on-root-mismatch", "owned", withFSGroup(corev1.FSGroupChangeOnRootMismatch))
	n.WaitReady("on-root-mismatch")
	if got := n.Exec("on-root-mismatch", "stat -c %g /data/file"); got != "99" {
		t.Errorf("OnRootMismatch: the group of the file is %s although that of the root matched", got)
	}
	n.DeletePod("on-root-mismatch")

	n.Pod("always", "owned", withFSGroup(corev1.FSGroupChangeAlways))
	n.WaitReady("always")
	if got := n.Exec("always", "stat -c %g /data/file"); got != "4321" {
		t.Errorf("Always: the group of the file is %s", got)
	}
}

func TestFSGroupIsIgnoredWithoutFileSystemType(t *testing.T) {
	n := home(t)
	n.Claim("plain", "liqo-no-group", "64Mi")
	n.Pod("user", "plain", withFSGroup(corev1.FSGroupChangeAlways))
	n.WaitReady("user")
	if got := n.Exec("user", "stat -c %g /data"); got != "0" {
		t.Errorf("the group of the volume is %s", got)
	}
}
