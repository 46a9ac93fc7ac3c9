package driver

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// Every kind of real storage, used on every node: a pod writes, goes, and another
// one finds what was written.
func TestEveryRealClassOnEveryNode(t *testing.T) {
	t.Parallel()
	for _, real := range []string{
		"reference", "reference-immediate", "reference-ext4", "reference-xfs", "reference-attach", "reference-local",
		"local-path", "static-local",
	} {
		for _, node := range user.Cluster(t, "home").Nodes() {
			t.Run(real+" on "+node.Name, func(t *testing.T) {
				n := home(t)
				if real == "static-local" {
					recycleStatic(t, n)
				}
				n.Claim("data", "liqo-"+real, "320Mi")
				n.Pod("writer", "data", user.OnNode(node.Name))
				n.WaitReady("writer")
				found := n.WaitVolume("data")
				if got := *found.Twin.Spec.StorageClassName; got != real {
					t.Errorf("the twin is of class %s", got)
				}
				n.Exec("writer", "echo kept > /data/file && sync")
				n.DeletePod("writer")
				n.Pod("reader", "data", user.OnNode(node.Name))
				n.WaitReady("reader")
				if got := n.Exec("reader", "cat /data/file"); got != "kept" {
					user.Violated(t, "the next pod reads %q", got)
				}
			})
		}
	}
}

func TestDefaultClassOfTheClusterIsTheRealOne(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference" {
		t.Errorf("the twin is of class %s, the cluster's default is reference", got)
	}
}

// With a list the controller tells the scheduler that every class has room wherever
// one of the listed ones has, so it is set for this test only.
func TestClaimChoosesItsRealClassWithinTheAllowList(t *testing.T) {
	n := homeAlone(t)
	allow(t, n, "reference-ext4")
	t.Cleanup(func() { allow(t, n) })
	n.Claim("allowed", "liqo", "64Mi", annotated("storage.liqo.io/real-storage-class", "reference-ext4"))
	n.Claim("forbidden", "liqo", "64Mi", annotated("storage.liqo.io/real-storage-class", "reference-local"))
	n.Pod("user", "allowed")
	n.Pod("refused", "forbidden")
	n.WaitReady("user")
	if got := *n.WaitVolume("allowed").Twin.Spec.StorageClassName; got != "reference-ext4" {
		t.Errorf("the twin is of class %s", got)
	}
	n.WaitEvent("forbidden", "reference-local")
}

func allow(t *testing.T, n *user.Namespace, classes ...string) {
	t.Helper()
	values := chart.Values{"allowedRealStorageClasses": append([]string{}, classes...)}
	if err := installWith(context.WithoutCancel(t.Context()), n.Cluster, values); err != nil {
		t.Fatal(err)
	}
}

func TestImmediateVirtualClassBindsWithoutPod(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-always", "64Mi")
	n.WaitVolume("data")
	n.Pod("user", "data")
	n.WaitReady("user")
}

// The claim is Bound and the volume mounted with what the real driver needs.
func TestSecretsReachTheRealDriver(t *testing.T) {
	n := home(t)
	n.Claim("guarded", "liqo-reference-secret", "64Mi")
	n.Pod("user", "guarded")
	n.WaitReady("user")
	handle := n.WaitVolume("guarded").Real.Spec.CSI.VolumeHandle
	calls, err := storage.BackendOf(n.Cluster, storage.Reference).Calls(func(call storage.Call) bool {
		return call.Volume == handle && call.Code == "OK" && strings.Join(call.Secrets, "") == "password"
	})
	if err != nil || len(calls) < 2 {
		t.Errorf("stage and publish with the secret: %v, %v", calls, err)
	}
	told := false
	for pod, log := range logsOfTheDriver(t, n) {
		told = told || strings.Contains(log, "NodeStageVolume")
		if strings.Contains(log, "hunter2") {
			user.Violated(t, "the log of %s has the password", pod)
		}
	}
	if !told {
		t.Error("no log tells of the call: this test would not see a password in it")
	}
}

// logsOfTheDriver are the logs of all containers of its controllers and node plugins, by pod. Movers and
// relays, which come and go with the tests beside this one, are given no secret of a class.
func logsOfTheDriver(t *testing.T, n *user.Namespace) (logs map[string]string) {
	t.Helper()
	n.Eventually("the logs of the driver to be readable", func(ctx context.Context) (string, error) {
		logs = map[string]string{}
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component in (controller,node)",
		})
		if err != nil {
			return "", err
		}
		for _, pod := range pods.Items {
			if logs[pod.Name], err = n.Kubectl("logs", "--namespace", pod.Namespace, pod.Name, "--all-containers"); err != nil {
				return "", err
			}
		}
		return "", nil
	})
	return logs
}

// Our own CSIDriver asks kubelet for everything; a real driver gets what it asks
// for: both for the pod, one for tokens.
func TestTokensOfThePodOnlyForWhoAsks(t *testing.T) {
	n := home(t)
	const tokens, pod = "csi.storage.k8s.io/serviceAccount.tokens", "csi.storage.k8s.io/pod.name"
	for _, real := range []struct {
		class      string
		driver     storage.Driver
		wantTokens bool
	}{
		{"reference-attach", storage.Attach, true},
		{"reference", storage.Reference, false},
	} {
		n.Claim(real.class, "liqo-"+real.class, "64Mi")
		n.Pod(real.class, real.class)
		n.WaitReady(real.class)
		handle := n.WaitVolume(real.class).Real.Spec.CSI.VolumeHandle
		calls, err := storage.BackendOf(n.Cluster, real.driver).Calls(func(call storage.Call) bool {
			return call.Volume == handle && call.RPC == "NodePublishVolume" && call.Code == "OK"
		})
		if err != nil || len(calls) == 0 {
			t.Fatalf("%s is not published: %v", real.class, err)
		}
		if told := calls[0].VolumeContext; slices.Contains(told, tokens) != real.wantTokens || !slices.Contains(told, pod) {
			t.Errorf("%s is told %v", real.class, told)
		}
	}
}

func TestMountOptionsOfTheRealClass(t *testing.T) {
	n := home(t)
	n.Claim("quiet", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "quiet")
	n.WaitReady("user")
	if mount := n.Exec("user", "grep ' /data ' /proc/mounts"); !strings.Contains(mount, "noatime") || !strings.Contains(mount, "xfs") {
		t.Errorf("mounted as %s", mount)
	}
}

func TestMountOptionsOfTheVirtualClass(t *testing.T) {
	n := home(t)
	n.Claim("quiet", "liqo-options", "64Mi")
	n.Pod("user", "quiet")
	n.WaitReady("user")
	if mount := n.Exec("user", "grep ' /data ' /proc/mounts"); !strings.Contains(mount, "noatime") {
		t.Errorf("mounted as %s", mount)
	}
}

func annotated(key, value string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		if claim.Annotations == nil {
			claim.Annotations = map[string]string{}
		}
		claim.Annotations[key] = value
	}
}

// recycleStatic makes the volumes that earlier tests released available again,
// before the test and after it.
func recycleStatic(t *testing.T, n *user.Namespace) {
	t.Helper()
	if err := storage.RecycleStatic(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
}
