package offload

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// The API server there holds what runs in the namespace to the baseline. Namespaces of older versions have no such
// label, and serve all the same.
func TestRemoteNamespacesHaveAPodSecurityLabel(t *testing.T) {
	n, remote := offloadedTenant(t)
	if level := n.remote(remote.Name).Labels[podSecurity]; level != "baseline" {
		t.Errorf("its level is %q", level)
	}
	label := func(patch string) {
		t.Helper()
		patched := []byte(`{"metadata": {"labels": {"` + podSecurity + `": ` + patch + `}}}`)
		if _, err := remote.Client.CoreV1().Namespaces().Patch(t.Context(), remote.Name, types.MergePatchType, patched, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("null")
	n.Pod("web", "", stateless)
	n.WaitReady("web")
	uid := n.pod("web").UID
	// Administrators do this after an upgrade.
	label(`"baseline"`)
	n.Pod("other", "", stateless)
	n.WaitReady("other")
	n.WaitReady("web")
	if n.pod("web").UID != uid {
		t.Error("the pod that ran is another one now")
	}
	n.unoffload()
}

// Nodes there can be drained without force, and an autoscaler may remove them, where the pods have a controller
// here.
func TestNodesThereCanBeEmptied(t *testing.T) {
	n := newTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", "Remote")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.Apply(deploymentManifest("web", 1))
	n.Pod("bare", "", stateless)
	web := n.onlyPod("app=web")
	n.WaitReady(web)
	n.WaitReady("bare")
	remotePod := func(name string) *corev1.Pod {
		t.Helper()
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	for name, want := range map[string]string{web: "true", "bare": ""} {
		if found := remotePod(name).Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]; found != want {
			t.Errorf("an autoscaler finds %q on %s", found, name)
		}
	}
	for _, name := range []string{web, "bare"} {
		if out, err := n.Kubectl("label", "pod", name, "e2e-drained="+n.Name); err != nil {
			t.Fatal(err, out)
		}
		n.Eventually("a drain to take "+name, func(ctx context.Context) (string, error) {
			// Other tests run on that node.
			drain := exec.CommandContext(ctx, remote.Cluster.Kubectl(), "drain", remotePod(name).Spec.NodeName,
				"--dry-run=server", "--ignore-daemonsets", "--pod-selector=e2e-drained="+n.Name)
			out, err := drain.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "evicting pod "+n.Name+"/"+name) {
				return fmt.Sprintf("%v: %s", err, out), nil
			}
			return "", nil
		})
	}
	n.DeletePod("bare")
}
