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

// fabricPoints are those of the fabric, and of the controller where it works for the fabric.
var fabricPoints = both(
	"fabric-hold", "fabric-node-make", "fabric-node-write", "fabric-node-remember", "fabric-node-lease", "fabric-node-delete",
	"fabric-node-list", "serving-request", "serving-approve", "open-claims-gate",
	"offload-hold", "offload-label", "offload-status", "offload-create", "offload-bind", "offload-evict", "offload-delete", "offload-let-go",
	"reflect-bind", "reflect-create", "reflect-patch", "reflect-delete", "reflect-unbind",
	"pod-claim", "pod-make", "pod-ungate", "pod-status", "pod-change", "pod-delete-there", "pod-avoid", "pod-give-up", "pod-end",
	"pod-let-go", "pod-free")

// crashOrders is a folder of the fabric's pod, which has no socket beside which it could look for orders.
const crashOrders = "crash-orders"

// offloadedTo is the remote cluster as one leg of the fabric's walk sees it: a virtual node of its own, and a namespace.
type offloadedTo struct {
	*user.Namespace
	t    *testing.T
	home *clusters.Cluster
	// id is the name of the RemoteCluster, of its node and of the namespace.
	id         string
	kubeconfig []byte
}

// The fabric and the controller die before and after every write of offloading, and come back: nodes, namespaces
// and pods still become what they are asked to be, no pod runs twice, and nothing is left.
func TestFabricDyingAtEveryCrashPoint(t *testing.T) {
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	w := &walk{cluster: home}
	kubeconfig := installFabric(t, w)
	for _, leg := range []leg[*offloadedTo]{
		{"the node of a cluster", w.virtualNode},
		{"a namespace that is offloaded", w.offloadedNamespace},
		{"pods of a virtual node", w.virtualPods},
		{"pods that no node there takes", w.unplacedPods},
	} {
		t.Run(leg.name, func(t *testing.T) {
			accounted(t, home, remote)
			n := &offloadedTo{t: t, home: home, id: "walked-" + strings.ToLower(rand.Text()[:8]), kubeconfig: kubeconfig}
			// The namespace is deleted before, with what it has in the remote cluster.
			t.Cleanup(n.undeclare)
			n.Namespace = user.NewNamespaceNamed(t, home, n.id)
			leg.run(t, n)
		})
	}
	w.report(t, true)
}

// installFabric has one replica of it, or orders would be given to one and reach another.
func installFabric(t *testing.T, w *walk) (kubeconfig []byte) {
	t.Helper()
	remote := user.Cluster(t, "remote")
	if err := driver.DefineOffloading(t.Context(), w.cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := driver.UndefineOffloading(user.Afterwards(t), w.cluster); err != nil {
			t.Error(err)
		}
	})
	values := hurried(1)
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
	// onFabric waits for the pod that has this folder.
	if _, err := deployments.Patch(t.Context(), "liqo-csi-fabric", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	access, kubeconfig, err := driver.GrantAccess(t.Context(), remote, nil)
	t.Cleanup(func() {
		if err := access.Revoke(user.Afterwards(t)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// onFabric orders the fabric to die at these points.
func (n *offloadedTo) onFabric(steps ...string) order {
	n.t.Helper()
	return inEmptyDir(n.t, n.Namespace, "fabric", crashOrders, "", both(steps...))
}

// declare has the fabric make the node of the remote cluster.
func (n *offloadedTo) declare() {
	n.t.Helper()
	if err := driver.Declare(n.t.Context(), n.home, n.id, n.kubeconfig, map[string]any{"nodeName": n.id}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *offloadedTo) undeclare() {
	n.t.Helper()
	if err := driver.Undeclare(user.Afterwards(n.t), n.home, n.id); err != nil {
		n.t.Error(err)
	}
}

// offload extends the namespace into the remote cluster, under its own name.
func (n *offloadedTo) offload(strategy string) (there *user.Namespace) {
	n.t.Helper()
	n.Apply(`
apiVersion: offloading.liqo.io/v1beta1
kind: NamespaceOffloading
metadata: {name: offloading}
spec: {namespaceMappingStrategy: EnforceSameName, podOffloadingStrategy: ` + strategy + `}
`)
	n.Eventually("the namespace to be offloaded", func(context.Context) (string, error) {
		out, err := n.Kubectl("get", "namespaceoffloading", "offloading", "-o", "jsonpath={.status.offloadingPhase}")
		if err == nil && out == "Ready" {
			return "", nil
		}
		return "it is " + out, err
	})
	return user.Existing(n.t, user.Cluster(n.t, "remote"), n.Name)
}

// onIt puts a pod on the virtual node. It gets a moment to end, in which it can be seen there.
func (n *offloadedTo) onIt(pod *corev1.Pod) {
	user.OnNode(n.id)(pod)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
	gently(pod)
}

func (w *walk) virtualNode(t *testing.T, n *offloadedTo) {
	fabric := n.onFabric("fabric-hold", "fabric-node-make", "fabric-node-write", "fabric-node-remember", "fabric-node-lease", "serving-request")
	controller := w.onController(t, n.Namespace, both("fabric-node-list", "serving-approve"))
	n.declare()
	w.carriedOut(t, n.Namespace, fabric, controller)
	fabric = n.onFabric("fabric-node-delete", "fabric-hold")
	n.undeclare()
	w.carriedOut(t, n.Namespace, fabric)
	if _, err := n.Client.CoreV1().Nodes().Get(t.Context(), n.id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node of a cluster that is gone: %v", err)
	}
}

func (w *walk) offloadedNamespace(t *testing.T, n *offloadedTo) {
	n.declare()
	n.Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: blue}}")
	fabric := n.onFabric("offload-hold", "offload-label", "offload-status", "offload-create", "offload-bind", "reflect-bind", "reflect-create")
	there := n.offload("Remote")
	w.carriedOut(t, n.Namespace, fabric)
	n.waitCopy(there, "blue")

	fabric = n.onFabric("reflect-patch")
	n.Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: green}}")
	w.carriedOut(t, n.Namespace, fabric)
	n.waitCopy(there, "green")

	fabric = n.onFabric("reflect-delete")
	if err := n.Client.CoreV1().ConfigMaps(n.Name).Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, n.Namespace, fabric)
	n.waitCopy(there, "")

	n.deployment("web")
	n.waitDeployment("web")
	fabric = n.onFabric("offload-evict", "offload-delete", "offload-let-go", "reflect-unbind")
	if out, err := n.Kubectl("delete", "namespaceoffloading", "offloading"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.carriedOut(t, n.Namespace, fabric)
	there.Eventually("the namespace there to be gone", func(ctx context.Context) (string, error) {
		_, err := there.Client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
	n.waitDeployment("web")
	n.deleteDeployment("web")
}

// waitCopy waits until the ConfigMap there has this color, or is gone where none is given.
func (n *offloadedTo) waitCopy(there *user.Namespace, color string) {
	n.t.Helper()
	there.Eventually("the copy of the ConfigMap to be up to date", func(ctx context.Context) (string, error) {
		found, err := there.Client.CoreV1().ConfigMaps(n.Name).Get(ctx, "settings", metav1.GetOptions{})
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
	pod := user.NewPod(name, "", append(edits, gently, func(pod *corev1.Pod) {
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

// waitDeployment waits until it has one pod, which is ready.
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
	there := n.offload("LocalAndRemote")
	runs := user.WatchRuns(t, there)
	n.Claim("data", "liqo-reference", "64Mi")
	fabric := n.onFabric("pod-claim", "pod-make", "pod-ungate", "pod-status")
	controller := w.onController(t, n.Namespace, both("open-claims-gate"))
	n.Pod("writer", "data", n.onIt)
	w.carriedOut(t, n.Namespace, fabric, controller)
	n.WaitReady("writer")
	write(there, "writer", n.Name)

	fabric = n.onFabric("pod-change")
	if out, err := n.Kubectl("label", "pod", "writer", "team=blue"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.carriedOut(t, n.Namespace, fabric)
	there.Eventually("the remote pod to have the new label", func(ctx context.Context) (string, error) {
		pod, err := there.Client.CoreV1().Pods(n.Name).Get(ctx, "writer", metav1.GetOptions{})
		if err != nil || pod.Labels["team"] == "blue" {
			return "", err
		}
		return fmt.Sprintf("it has %v", pod.Labels), nil
	})

	fabric = n.onFabric("pod-delete-there", "pod-let-go", "pod-free")
	n.DeletePod("writer")
	w.carriedOut(t, n.Namespace, fabric)

	n.Pod("reader", "data", n.onIt)
	n.WaitReady("reader")
	read(t, there, "reader", n.Name)
	n.DeletePod("reader")
	deleteClaim(n.Namespace, "data")

	// Another one is created in the place of a pod with a controller.
	n.deployment("web", n.onIt)
	n.waitDeployment("web")
	fabric = n.onFabric("pod-end")
	web := metav1.ListOptions{LabelSelector: "app=web"}
	if err := there.Client.CoreV1().Pods(n.Name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, web); err != nil {
		t.Fatal(err)
	}
	w.carriedOut(t, n.Namespace, fabric)
	n.waitDeployment("web")
	if ran := runs.NoneTwice(); ran != 4 {
		t.Errorf("%d pods ran there, not 4", ran)
	}
	n.deleteDeployment("web")
}

// unplacedPods are more than any node has. What the cluster is said to have is enough for them, at home nothing is.
func (w *walk) unplacedPods(t *testing.T, n *offloadedTo) {
	if err := driver.Declare(t.Context(), n.home, n.id, n.kubeconfig, map[string]any{
		"nodeName": n.id,
		"capacity": map[string]any{"source": "Static", "amounts": map[string]any{"cpu": "9000", "memory": "64Gi"}},
		"pods":     map[string]any{"giveUpAfter": "1s"},
	}); err != nil {
		t.Fatal(err)
	}
	there := n.offload("LocalAndRemote")
	runs := user.WatchRuns(t, there)
	fabric := n.onFabric("pod-avoid", "pod-give-up")
	// Of each controller one pod is given up in a minute: these are enough for each death.
	names := []string{"one", "two", "three", "four"}
	for _, name := range names {
		n.deployment(name, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
		})
	}
	w.carriedOut(t, n.Namespace, fabric)
	for _, name := range names {
		n.deleteDeployment(name)
	}
	n.Eventually("the pods to be gone", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("there are %d", len(pods.Items)), nil
	})
	if ran := runs.NoneTwice(); ran != 0 {
		t.Errorf("%d pods ran there", ran)
	}
}
