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

// A second pod reads what the first wrote, with each real class on each node.
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
					t.Errorf("the class of the twin is %s", got)
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

func TestDefaultClassOfTheClusterIsTheRealClass(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo")
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference" {
		t.Errorf("the class of the twin is %s, the default of the cluster is reference", got)
	}
}

// Claims and moves choose a real class that the chart allows. No other test runs meanwhile, because the list changes the
// published capacity of all classes.
func TestMovesAndClaimsChooseAllowedClasses(t *testing.T) {
	cluster := homeSerial(t).Cluster
	set := func(classes ...string) {
		t.Helper()
		values := chart.Values{"allowedRealStorageClasses": append([]string{}, classes...)}
		if err := installWith(context.WithoutCancel(t.Context()), cluster, values); err != nil {
			t.Fatal(err)
		}
	}
	set("reference-attach", "reference-ext4", "reference-local", "reference-xfs", fixedClass)
	t.Cleanup(func() { set() })
	for what, run := range map[string]func(*testing.T, *user.Namespace){
		"claim":               chooseAllowedClass,
		"move":                moveToAnotherClass,
		"move of a device":    moveOfADeviceToAnotherClass,
		"move, full at first": moveToATargetThatGetsFull,
		"move, it grows":      moveOfAClaimThatGrows,
		"move, it outgrows":   moveOfAClaimThatOutgrowsItsTarget,
		"move of a tree":      moveOfAGeneratedTreeWithLosses,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			run(t, user.NewNamespace(t, cluster))
		})
	}
}

func chooseAllowedClass(t *testing.T, n *user.Namespace) {
	n.Claim("allowed", "liqo", "64Mi", withAnnotation("storage.liqo.io/real-storage-class", "reference-ext4"))
	n.Claim("forbidden", "liqo", "64Mi", withAnnotation("storage.liqo.io/real-storage-class", "reference-group"))
	n.Pod("user", "allowed")
	n.Pod("refused", "forbidden")
	n.WaitReady("user")
	if got := *n.WaitVolume("allowed").Twin.Spec.StorageClassName; got != "reference-ext4" {
		t.Errorf("the class of the twin is %s", got)
	}
	n.WaitEvent("forbidden", "reference-group")
}

func TestImmediateVirtualClassBindsWithoutPod(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-always", "64Mi")
	n.WaitVolume("data")
	n.Pod("user", "data")
	n.WaitReady("user")
}

// The real driver gets the secrets of its class, and no log has them.
func TestSecretsReachTheRealDriver(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference-secret")
	handle := n.WaitVolume("data").Real.Spec.CSI.VolumeHandle
	calls, err := storage.BackendOf(n.Cluster, storage.Reference).Calls(func(call storage.Call) bool {
		return call.Volume == handle && call.Code == "OK" && strings.Join(call.Secrets, "") == "password"
	})
	if err != nil || len(calls) < 2 {
		t.Errorf("stage and publish with the secret: %v, %v", calls, err)
	}
	logged := false
	for pod, log := range driverLogs(t, n) {
		logged = logged || strings.Contains(log, "NodeStageVolume")
		if strings.Contains(log, "hunter2") {
			user.Violated(t, "the log of %s has the password", pod)
		}
	}
	if !logged {
		t.Error("no log has the call, so that this test would not find a password")
	}
}

// driverLogs returns the logs of controllers and node plugins by pod. Movers and relays get no secrets of classes,
// and other tests delete them.
func driverLogs(t *testing.T, n *user.Namespace) (logs map[string]string) {
	t.Helper()
	n.Eventually("read the logs of the driver", func(ctx context.Context) (string, error) {
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

// The driver's CSIDriver requests pod information and tokens. Both real drivers request the first, and one the second.
func TestPodTokensReachOnlyDriversThatRequestThem(t *testing.T) {
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
		startPod(n, real.class, real.class, "liqo-"+real.class)
		handle := n.WaitVolume(real.class).Real.Spec.CSI.VolumeHandle
		calls, err := storage.BackendOf(n.Cluster, real.driver).Calls(func(call storage.Call) bool {
			return call.Volume == handle && call.RPC == "NodePublishVolume" && call.Code == "OK"
		})
		if err != nil || len(calls) == 0 {
			t.Fatalf("the volume of class %s was not published: %v", real.class, err)
		}
		if keys := calls[0].VolumeContext; slices.Contains(keys, tokens) != real.wantTokens || !slices.Contains(keys, pod) {
			t.Errorf("the volume context of class %s has %v", real.class, keys)
		}
	}
}

func TestMountOptionsOfTheRealClass(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	if mount := n.Exec("user", "grep ' /data ' /proc/mounts"); !strings.Contains(mount, "noatime") || !strings.Contains(mount, "xfs") {
		t.Errorf("mounted as %s", mount)
	}
}

func TestMountOptionsOfTheVirtualClass(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-options")
	if mount := n.Exec("user", "grep ' /data ' /proc/mounts"); !strings.Contains(mount, "noatime") {
		t.Errorf("mounted as %s", mount)
	}
}

func withAnnotation(key, value string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		if claim.Annotations == nil {
			claim.Annotations = map[string]string{}
		}
		claim.Annotations[key] = value
	}
}

// recycleStatic makes static volumes available that earlier tests released.
func recycleStatic(t *testing.T, n *user.Namespace) {
	t.Helper()
	if err := storage.RecycleStatic(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
}
