package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// fabricPoints are the crash points of the fabric, and of the controller's work for the fabric.
var fabricPoints = bothSides(
	"fabric-hold", "fabric-node-make", "fabric-node-write", "fabric-node-remember", "fabric-node-lease", "fabric-node-delete",
	"fabric-node-list", "serving-request", "serving-approve", "open-claims-gate",
	"offload-hold", "offload-label", "offload-status", "offload-create", "offload-bind", "offload-evict", "offload-delete", "offload-let-go",
	"reflect-bind", "reflect-create", "reflect-patch", "reflect-delete", "reflect-unbind",
	"pod-claim", "pod-make", "pod-ungate", "pod-status", "pod-change", "pod-delete-there", "pod-avoid", "pod-give-up", "pod-end",
	"pod-let-go", "pod-free")

// crashOrders is a volume of the fabric's pod, which has no socket folder for crash orders.
const crashOrders = "crash-orders"

// offloadedTo is a namespace with a virtual node of the remote cluster, for one leg.
type offloadedTo struct {
	*user.Namespace
	t    *testing.T
	home *clusters.Cluster
	// id is the name of the RemoteCluster, its node and the namespace.
	id         string
	kubeconfig []byte
}

// The fabric and the controller crash before and after every write of offloading. After their restart
// nodes, namespaces and pods still work, no pod runs twice, and nothing is leaked.
func TestFabricWithCrashAtEveryPoint(t *testing.T) {
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	w := &walk{cluster: home}
	kubeconfig := installFabric(t, w)
	for _, leg := range []leg[*offloadedTo]{
		{"the node of a cluster", w.virtualNode},
		{"a namespace that is offloaded", w.offloadedNamespace},
		{"pods of a virtual node", w.virtualPods},
		{"pods that fit on no remote node", w.unplacedPods},
	} {
		t.Run(leg.name, func(t *testing.T) {
			checkLeaks(t, home, remote)
			n := &offloadedTo{t: t, home: home, id: "e2e-" + strings.ToLower(rand.Text()[:8]), kubeconfig: kubeconfig}
			// After the namespace, which has objects in the remote cluster.
			t.Cleanup(n.undeclare)
			n.Namespace = user.NewNamespaceNamed(t, home, n.id)
			leg.run(t, n)
		})
	}
	w.report(t)
}

// installFabric installs one replica, because crash orders are for one process.
func installFabric(t *testing.T, w *walk) (kubeconfig []byte) {
	t.Helper()
	remote := user.Cluster(t, "remote")
	if err := driver.DefineOffloading(t.Context(), w.cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := driver.UndefineOffloading(user.CleanupContext(t), w.cluster); err != nil {
			t.Error(err)
		}
	})
	values := shortTimeouts(1)
	fabric := driver.Fabric()
	fabric["replicas"] = 1
	values["fabric"] = fabric
	if err := driver.Install(t.Context(), w.cluster, driver.Options{Values: values, Progress: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	client, err := w.cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	deployments := client.AppsV1().Deployments(chart.Namespace)
	patch := fmt.Sprintf(`{"spec": {"template": {"spec": {
		"volumes": [{"name": %[1]q, "emptyDir": {}}],
		"containers": [{"name": "fabric", "env": [{"name": "LIQO_CSI_CRASH_ORDERS", "value": "/%[1]s"}],
			"volumeMounts": [{"name": %[1]q, "mountPath": "/%[1]s"}]}]}}}}`, crashOrders)
	// crashFabric waits for the pod with this volume.
	if _, err := deployments.Patch(t.Context(), "liqo-csi-fabric", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	access, kubeconfig, err := driver.GrantAccess(t.Context(), w.cluster, remote, nil)
	t.Cleanup(func() {
		if err := access.Revoke(user.CleanupContext(t)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// crashFabric makes the fabric crash at these points.
func (n *offloadedTo) crashFabric(steps ...string) order {
	n.t.Helper()
	return inEmptyDir(n.t, n.Namespace, "fabric", crashOrders, "", bothSides(steps...))
}

// declare creates the RemoteCluster, and waits for its node.
func (n *offloadedTo) declare() {
	n.t.Helper()
	if err := driver.Declare(n.t.Context(), n.home, n.id, n.kubeconfig, map[string]any{"nodeName": n.id}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *offloadedTo) undeclare() {
	n.t.Helper()
	if err := driver.Undeclare(user.CleanupContext(n.t), n.home, n.id); err != nil {
		n.t.Error(err)
	}
}

// offload offloads the namespace with EnforceSameName.
func (n *offloadedTo) offload(strategy string) (remote *user.Namespace) {
	n.t.Helper()
	n.Apply(`
apiVersion: offloading.liqo.io/v1beta1
kind: NamespaceOffloading
metadata: {name: offloading}
spec: {namespaceMappingStrategy: EnforceSameName, podOffloadingStrategy: ` + strategy + `}
`)
	n.Eventually("the namespace to be offloaded", func(ctx context.Context) (string, error) {
		offloading, err := n.Object(ctx, "namespaceoffloading", "offloading")
		if phase := user.Text(offloading, "status", "offloadingPhase"); phase != "Ready" {
			return "it is " + phase, err
		}
		return "", nil
	})
	return user.ExistingNamespace(n.t, user.Cluster(n.t, "remote"), n.Name)
}

// onVirtualNode puts a pod on the virtual node, with a grace period.
func (n *offloadedTo) onVirtualNode(pod *corev1.Pod) {
	user.OnNode(n.id)(pod)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
	gracefully(pod)
}

func (w *walk) virtualNode(t *testing.T, n *offloadedTo) {
	fabric := n.crashFabric("fabric-hold", "fabric-node-make", "fabric-node-write", "fabric-node-remember", "fabric-node-lease", "serving-request")
	controller := w.crashController(t, n.Namespace, bothSides("fabric-node-list", "serving-approve"))
	n.declare()
	w.waitCrashed(t, n.Namespace, fabric, controller)
	fabric = n.crashFabric("fabric-node-delete", "fabric-hold")
	n.undeclare()
	w.waitCrashed(t, n.Namespace, fabric)
	if _, err := n.Client.CoreV1().Nodes().Get(t.Context(), n.id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node of a deleted RemoteCluster: %v", err)
	}
}

func (w *walk) offloadedNamespace(t *testing.T, n *offloadedTo) {
	n.declare()
	n.Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: blue}}")
	fabric := n.crashFabric("offload-hold", "offload-label", "offload-status", "offload-create", "offload-bind", "reflect-bind", "reflect-create")
	remote := n.offload("Remote")
	w.waitCrashed(t, n.Namespace, fabric)
	n.waitCopy(remote, "blue")

	fabric = n.crashFabric("reflect-patch")
	n.Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: green}}")
	w.waitCrashed(t, n.Namespace, fabric)
	n.waitCopy(remote, "green")

	fabric = n.crashFabric("reflect-delete")
	if err := n.Client.CoreV1().ConfigMaps(n.Name).Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, n.Namespace, fabric)
	n.waitCopy(remote, "")

	n.deployment("web")
	n.waitDeployment("web")
	fabric = n.crashFabric("offload-evict", "offload-delete", "offload-let-go", "reflect-unbind")
	if out, err := n.Kubectl("delete", "namespaceoffloading", "offloading"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.waitCrashed(t, n.Namespace, fabric)
	remote.Eventually("the remote namespace to be deleted", func(ctx context.Context) (string, error) {
		_, err := remote.Client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it exists", err
	})
	n.waitDeployment("web")
	n.deleteDeployment("web")
}

// waitCopy waits until the remote ConfigMap has this color, or is deleted if color is empty.
func (n *offloadedTo) waitCopy(remote *user.Namespace, color string) {
	n.t.Helper()
	remote.Eventually("the copy of the ConfigMap to be up to date", func(ctx context.Context) (string, error) {
		found, err := remote.Client.CoreV1().ConfigMaps(n.Name).Get(ctx, "settings", metav1.GetOptions{})
		if apierrors.IsNotFound(err) && color == "" {
			return "", nil
		}
		if err != nil || found.Data["color"] == color {
			return "", err
		}
		return fmt.Sprintf("it has %v", found.Data), nil
	})
}

func (n *offloadedTo) deployment(name string, edits ...func(*corev1.Pod)) {
	n.t.Helper()
	labels := map[string]string{"app": name}
	pod := user.NewPod(name, "", append(edits, gracefully, func(pod *corev1.Pod) {
		pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
	})...)
	set := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
	}}
	if _, err := n.Client.AppsV1().Deployments(n.Name).Create(n.t.Context(), set, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *offloadedTo) deleteDeployment(name string) {
	n.t.Helper()
	if err := n.Client.AppsV1().Deployments(n.Name).Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// waitDeployment waits until a Deployment has exactly one pod, which is ready.
func (n *offloadedTo) waitDeployment(name string) {
	n.t.Helper()
	n.Eventually("the Deployment "+name+" to have one pod, which is ready", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return "", err
		}
		if len(pods.Items) != 1 {
			return fmt.Sprintf("it has %d pods", len(pods.Items)), nil
		}
		pod := pods.Items[0]
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				return "", nil
			}
		}
		return fmt.Sprintf("%s is %s: %v", pod.Name, pod.Status.Phase, pod.Status.Conditions), nil
	})
}

func (w *walk) virtualPods(t *testing.T, n *offloadedTo) {
	n.declare()
	remote := n.offload("LocalAndRemote")
	runs := user.WatchRuns(t, remote)
	n.Claim("data", "liqo-reference", "64Mi")
	fabric := n.crashFabric("pod-claim", "pod-make", "pod-ungate", "pod-status")
	controller := w.crashController(t, n.Namespace, bothSides("open-claims-gate"))
	n.Pod("writer", "data", n.onVirtualNode)
	w.waitCrashed(t, n.Namespace, fabric, controller)
	n.WaitReady("writer")
	write(remote, "writer", n.Name)

	fabric = n.crashFabric("pod-change")
	if out, err := n.Kubectl("label", "pod", "writer", "team=blue"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.waitCrashed(t, n.Namespace, fabric)
	remote.Eventually("the remote pod to have the new label", func(ctx context.Context) (string, error) {
		pod, err := remote.Client.CoreV1().Pods(n.Name).Get(ctx, "writer", metav1.GetOptions{})
		if err != nil || pod.Labels["team"] == "blue" {
			return "", err
		}
		return fmt.Sprintf("it has %v", pod.Labels), nil
	})

	fabric = n.crashFabric("pod-delete-there", "pod-let-go", "pod-free")
	n.DeletePod("writer")
	w.waitCrashed(t, n.Namespace, fabric)

	n.Pod("reader", "data", n.onVirtualNode)
	n.WaitReady("reader")
	read(t, remote, "reader", n.Name)
	n.DeletePod("reader")
	deleteClaim(n.Namespace, "data")

	// A pod with a controller is replaced.
	n.deployment("web", n.onVirtualNode)
	n.waitDeployment("web")
	fabric = n.crashFabric("pod-end")
	web := metav1.ListOptions{LabelSelector: "app=web"}
	if err := remote.Client.CoreV1().Pods(n.Name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, web); err != nil {
		t.Fatal(err)
	}
	w.waitCrashed(t, n.Namespace, fabric)
	n.waitDeployment("web")
	if ran := runs.CheckNoneTwice(); ran != 4 {
		t.Errorf("%d pods ran remotely, not 4", ran)
	}
	n.deleteDeployment("web")
}

// unplacedPods: each pod requests more than any node has. The declared capacity of the virtual node is
// enough for them.
func (w *walk) unplacedPods(t *testing.T, n *offloadedTo) {
	if err := driver.Declare(t.Context(), n.home, n.id, n.kubeconfig, map[string]any{
		"nodeName": n.id,
		"capacity": map[string]any{"source": "Static", "amounts": map[string]any{"cpu": "9000", "memory": "64Gi"}},
		"pods":     map[string]any{"giveUpAfter": "1s"},
	}); err != nil {
		t.Fatal(err)
	}
	remote := n.offload("LocalAndRemote")
	runs := user.WatchRuns(t, remote)
	fabric := n.crashFabric("pod-avoid", "pod-give-up")
	// The fabric deletes at most one pod per controller and minute; these are enough for each
	// crash.
	names := []string{"one", "two", "three", "four"}
	for _, name := range names {
		n.deployment(name, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
		})
	}
	w.waitCrashed(t, n.Namespace, fabric)
	for _, name := range names {
		n.deleteDeployment(name)
	}
	n.Eventually("the pods to be deleted", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left", len(pods.Items)), nil
	})
	if ran := runs.CheckNoneTwice(); ran != 0 {
		t.Errorf("%d pods ran remotely", ran)
	}
}
