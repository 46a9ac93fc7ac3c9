package offload

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

// The claim and the Deployment of Kosmos' documentation, unchanged: their class is one of this
// driver, and the node that they name represents the remote cluster.
func TestManifestsOfKosmosRunUnchanged(t *testing.T) {
	t.Parallel()
	prepare(t)
	importServer(t, "registry.paas/cnp/nginx:1.14-alpine", "echo nginx serves; exec httpd -f -p 80 -h /data")
	n := tenant{user.NewNamespaceNamed(t, user.Cluster(t, "home"), "test-new"), t}
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	n.Class(&storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "openebs-hostpath"},
		Provisioner:       driver.CSIName,
		VolumeBindingMode: &binding,
		Parameters:        map[string]string{"realStorageClass": "reference"},
	})
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	manifests, err := os.ReadFile("testdata/kosmos.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.Apply(string(manifests))
	pod := n.onlyPod("app=nginx")
	n.WaitReady(pod)
	if on := n.pod(pod).Spec.NodeName; on != "kosmos-cluster38" {
		t.Errorf("it is on %s", on)
	}
	if volume := n.WaitBound("nginx-pvc"); volume.Spec.CSI == nil || volume.Spec.CSI.Driver != driver.CSIName {
		t.Errorf("its volume is %v", volume.Spec.PersistentVolumeSource)
	}
	remote.WaitBound("nginx-pvc")
	if out, err := n.Kubectl("exec", pod, "--", "sh", "-c", "echo hello > /data/index.html && sync"); err != nil {
		t.Fatal(err, out)
	}
	if text := remote.Exec(pod, "cat /data/index.html"); strings.TrimSpace(text) != "hello" {
		user.Violated(t, "the remote pod has %q", text)
	}
	if out, err := n.Kubectl("logs", pod); err != nil || !strings.Contains(out, "nginx serves") {
		t.Errorf("its log is %q: %v", out, err)
	}
	if out, err := n.Kubectl("delete", "pod", pod); err != nil {
		t.Fatal(err, out)
	}
	next := n.onlyPod("app=nginx")
	n.WaitReady(next)
	if text := n.Exec(next, "cat /data/index.html"); strings.TrimSpace(text) != "hello" {
		user.Violated(t, "the next pod reads %q", text)
	}
}

// importServer imports an image in place of one that the lab cannot pull.
func importServer(t *testing.T, name, script string) {
	t.Helper()
	image, err := images.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	image.Name, image.Cmd = name, []string{"sh", "-c", script}
	for _, cluster := range []string{"home", "remote"} {
		if err := user.Cluster(t, cluster).Import(t.Context(), image); err != nil {
			t.Fatal(err)
		}
	}
}

// onlyPod returns the one pod with this label that is not being deleted.
func (n tenant) onlyPod(label string) (name string) {
	n.t.Helper()
	n.Eventually("a pod with "+label, func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return "", err
		}
		var live []corev1.Pod
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil {
				live = append(live, pod)
			}
		}
		if len(live) != 1 {
			return fmt.Sprintf("there are %d", len(live)), nil
		}
		name = live[0].Name
		return "", nil
	})
	return name
}
