package storage

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func withFSGroup(group int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		id := int64(1000)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group, RunAsUser: &id, RunAsGroup: &id}
	}
}

// wantGroup checks the group of a volume, and that its members can write.
func wantGroup(t *testing.T, n *user.Namespace, pod, group string) {
	t.Helper()
	if got := n.Exec(pod, "stat -c %g /data"); got != group {
		t.Errorf("the group of the volume of pod %s is %s, want %s", pod, got, group)
	}
	if group != "0" {
		n.Exec(pod, "echo written > /data/file")
	}
}

func TestFSGroupPolicyOfEachDriver(t *testing.T) {
	t.Parallel()
	for class, group := range map[string]string{
		"reference":        "0",    // by fsType, which this class does not set
		"reference-ext4":   "4321", // by fsType
		"reference-attach": "4321", // File
		"reference-local":  "0",    // None
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("data", class, "64Mi")
			n.Pod("user", "data", withFSGroup(4321))
			n.WaitReady("user")
			wantGroup(t, n, "user", group)
		})
	}
}

func TestSecretsReachTheDriver(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-secret", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	volume := n.WaitBound("data")
	calls, err := storage.BackendOf(n.Cluster, storage.Reference).Calls(func(call storage.Call) bool {
		return call.Volume == volume.Spec.CSI.VolumeHandle && strings.Join(call.Secrets, "") == "password"
	})
	if err != nil || len(calls) < 2 {
		t.Errorf("stage and publish with the secret: %v, %v", calls, err)
	}
}

func TestMountOptionsOfTheClass(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	if mount := n.Exec("user", "grep ' /data ' /proc/mounts"); !strings.Contains(mount, "noatime") || !strings.Contains(mount, "xfs") {
		t.Errorf("mounted as %s", mount)
	}
}

func TestImmediateAndSlowClasses(t *testing.T) {
	n := home(t)
	n.Claim("immediate", "reference-immediate", "64Mi")
	n.WaitBound("immediate")

	n.Claim("slow", "reference-slow", "64Mi")
	began := time.Now()
	n.Pod("user", "slow")
	n.WaitReady("user")
	if took := time.Since(began); took < time.Second {
		t.Errorf("the slow class took %s", took)
	}
}

func TestVolumeAttributesClass(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference", "64Mi", user.WithAttributesClass("reference-silver"))
	n.Pod("user", "data")
	n.WaitReady("user")
	volume := n.WaitBound("data")
	n.WaitIOPS(storage.Reference, volume, "1000")
	n.SetAttributesClass("data", "reference-gold")
	n.WaitIOPS(storage.Reference, volume, "5000")
}

func TestManyNodesShareADirectory(t *testing.T) {
	n := home(t)
	n.Claim("shared", "reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	nodes := n.Cluster.Nodes()
	for _, node := range nodes {
		n.Pod(node.Name, "shared", user.OnNode(node.Name))
	}
	for _, node := range nodes {
		n.WaitReady(node.Name)
	}
	n.Exec(nodes[0].Name, "echo shared > /data/file")
	for _, node := range nodes {
		if got := n.Exec(node.Name, "cat /data/file"); got != "shared" {
			user.Violated(t, "node %s reads %q", node.Name, got)
		}
	}
}
