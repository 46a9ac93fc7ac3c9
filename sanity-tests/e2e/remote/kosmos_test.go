package remote

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/storage"
)

// kosmosExample is from Kosmos' documentation of storage across clusters, with another image and command.
const kosmosExample = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: nginx-pvc
  namespace: test-new
spec:
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: 1Gi
  storageClassName: openebs-hostpath
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-new
  namespace: test-new
spec:
  selector:
    matchLabels:
      app: nginx
  replicas: 1
  template:
    metadata:
      labels:
        app: nginx
      deletionGracePeriodSeconds: 30
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: kubernetes.io/hostname
                    operator: In
                    values:
                      - kosmos-cluster38
      tolerations:
        - key: "kosmos.io/node"
          operator: "Equal"
          value: "true"
          effect: "NoSchedule"
      containers:
        - name: nginx
          image: ` + images.BusyboxName + `
          command: [sleep, "2147483647"]
          ports:
            - containerPort: 80
          volumeMounts:
            - name: data
              mountPath: /data
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: "nginx-pvc"
`

// kosmosMutex is locked by the test that has installed Kosmos, which can be in a cluster only once.
var kosmosMutex sync.Mutex

// newKosmosPair creates a pair whose cluster has joined Kosmos, with the virtual node of the options. The virtual
// class has the name of the real one, which is of this driver.
func newKosmosPair(t *testing.T, namespace, class string, real storage.Driver, options fabric.Options) *pair {
	t.Helper()
	t.Parallel()
	kosmosMutex.Lock()
	t.Cleanup(kosmosMutex.Unlock)
	ensureShared(t)
	remote := user.NewNamespaceNamed(t, user.Cluster(t, "remote"), namespace)
	p := &pair{t: t, node: options.Node, cluster: options.KosmosCluster, remote: remote}
	t.Cleanup(p.wantNoTwins)
	remote.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: real.Name, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	options.NoNamespaces = true
	startFabric(t, options)
	t.Cleanup(func() { runFabricObjects(t, "home", "kosmos", "remove") })
	p.join()

	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), namespace)
	p.home.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver.CSIName, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		Parameters: map[string]string{"realStorageClass": class},
	})
	p.waitMarked()
	return p
}

func (p *pair) join() {
	p.t.Helper()
	kubeconfig := user.Cluster(p.t, "remote").ProxyKubeconfig()
	runFabricObjects(p.t, "home", "kosmos", "join", "--cluster", p.cluster, "--remote-kubeconfig", kubeconfig)
}

// The virtual class has the name of the real one, and the scheduler is that of Kubernetes.
func TestKosmosExampleRunsUnchanged(t *testing.T) {
	const class = "openebs-hostpath"
	p := newKosmosPair(t, "test-new", class, storage.Reference, fabric.Kosmos("cluster38"))
	p.home.Apply(kosmosExample)
	pod := p.waitOnlyPod("app=nginx")
	if pod.Spec.NodeName != p.node {
		t.Errorf("the pod runs on %s", pod.Spec.NodeName)
	}
	p.remote.WaitReady(pod.Name)
	found := p.waitVolume("nginx-pvc")
	if *found.Twin.Spec.StorageClassName != class || found.Real.Spec.CSI.Driver != storage.Reference.Name {
		t.Errorf("the twin is of class %s", *found.Twin.Spec.StorageClassName)
	}
	p.wantMarks(found)
	p.wantAffinity(found.Virtual)
	p.remote.Exec(pod.Name, "echo kept > /data/file")
	p.home.DeletePod(pod.Name)
	next := p.waitOnlyPod("app=nginx")
	p.remote.WaitReady(next.Name)
	if got := p.remote.Exec(next.Name, "cat /data/file"); got != "kept" {
		user.Violated(t, "the next pod reads %q", got)
	}
}

// Kosmos overwrites a twin with its claim if their requests are equal but have different notation.
func TestKosmosDoesNotOverwriteTwinsWithSizesInBytes(t *testing.T) {
	const class = "e2e-kosmos-bytes"
	p := newKosmosPair(t, "e2e-kosmos-bytes", class, storage.Reference, fabric.Kosmos("bytes"))
	for claim, size := range map[string]string{"bytes": "67108864", "decimal": "68M"} {
		p.home.Claim(claim, class, size)
		p.home.Pod(claim, claim, p.onVirtualNode)
		p.home.WaitReady(claim)
		found := p.waitVolume(claim)
		p.wantMarks(found)
		p.home.DeletePod(claim)
		p.deleteClaim(claim)
		p.waitVolumeDeleted(found)
	}
}

// While the cluster is unreachable for the driver, the twin is deleted, and Kosmos copies the claim.
func TestCopyOfKosmosIsReplacedByTheTwin(t *testing.T) {
	const class = "e2e-kosmos-copy"
	p := newKosmosPair(t, "e2e-kosmos-copy", class, storage.Reference, fabric.Kosmos("copies"))
	p.startPod("writer", "data", class)
	p.remote.Exec("writer", "echo precious > /data/file && sync")
	found := p.waitVolume("data")
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
	p.home.DeletePod("writer")

	runFabricObjects(t, "home", "kosmos", "leave", "--cluster", p.cluster)
	p.setReclaimPolicy(p.remote, found.Real, corev1.PersistentVolumeReclaimRetain)
	p.deleteTwin(found)
	claims := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name)
	p.remote.Eventually("the twin is deleted", func(ctx context.Context) (string, error) {
		_, err := claims.Patch(ctx, found.Twin.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it still exists", err
	})
	p.home.Pod("reader", "data", p.pinned)
	p.remote.Eventually("Kosmos has copied the claim", func(ctx context.Context) (string, error) {
		copied, err := claims.Get(ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is none", nil
		}
		if err != nil || copied.Status.Phase == corev1.ClaimLost {
			return "", err
		}
		return fmt.Sprintf("it is %s", copied.Status.Phase), nil
	})

	p.join()
	found.Real.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	p.waitTwinRecreated(found)
	p.home.WaitReady("reader")
	if got := p.remote.Exec("reader", "cat /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}
	p.home.DeletePod("reader")
	p.setReclaimPolicy(p.remote, found.Real, corev1.PersistentVolumeReclaimDelete)
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

func (p *pair) setReclaimPolicy(n *user.Namespace, volume *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) {
	p.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
	if _, err := n.Client.CoreV1().PersistentVolumes().Patch(p.t.Context(), volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// Kosmos copies metadata of a twin to its claim, which must not block the deletion of the claim.
func TestMarksThatKosmosWritesOnAClaimAreRemoved(t *testing.T) {
	const class = "e2e-kosmos-marks"
	p := newKosmosPair(t, "e2e-kosmos-marks", class, storage.Reference, fabric.Kosmos("marks"))
	p.startPod("user", "data", class)
	found := p.waitVolume("data")
	// Kosmos copies a changed claim to home if it had the annotation of Kosmos before the change.
	claims := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name)
	for _, mark := range []string{`"true"`, `null`} {
		patch := []byte(`{"metadata":{"annotations":{"kosmos.io/global":` + mark + `,"e2e.storage.test/mark":` + mark + `}}}`)
		if _, err := claims.Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	copied := func(claim *corev1.PersistentVolumeClaim) bool { return claim.Annotations["kosmos.io/global"] == "true" }
	p.home.Eventually("the annotation is copied, and the marks of the driver are removed", func(ctx context.Context) (string, error) {
		claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if !copied(claim) || claim.Labels[homeLabel] != "" || slices.Contains(claim.Finalizers, twinFinalizer) {
			return fmt.Sprintf("labels %v, annotations %v, finalizers %v", claim.Labels, claim.Annotations, claim.Finalizers), nil
		}
		return "", nil
	})
	p.home.DeletePod("user")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

// One-to-one: the virtual node represents one remote node, and Kosmos sets spec.nodeName of remote pods.
func TestVolumeIsOnTheNodeThatKosmosRepresents(t *testing.T) {
	const class = "e2e-kosmos-node"
	nodes := user.Cluster(t, "remote").Nodes()
	node := nodes[len(nodes)-1].Name
	p := newKosmosPair(t, "e2e-kosmos-node", class, storage.Local, fabric.KosmosNode("nodes", node))
	other := fabric.KosmosNode("nodes", nodes[0].Name)
	other.NoNamespaces = true
	startFabric(t, other)
	p.startPod("user", "data", class)
	found := p.waitVolume("data")
	if selected := found.Twin.Annotations[selectedNode]; selected != node {
		t.Errorf("the selected node of the twin is %q, want %s", selected, node)
	}
	p.home.DeletePod("user")
	anywhere := func(pod *corev1.Pod) { p.onVirtualNode(pod); pod.Spec.NodeSelector = nil }
	p.home.Pod("next", "data", anywhere)
	if next := p.home.WaitReady("next"); next.Spec.NodeName != node {
		user.Violated(t, "the next pod is on %s, its volume on %s", next.Spec.NodeName, node)
	}
	p.home.DeletePod("next")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

// waitOnlyPod waits until exactly one pod with the label is ready.
func (p *pair) waitOnlyPod(label string) (pod *corev1.Pod) {
	p.t.Helper()
	p.home.Eventually("a pod with "+label, func(ctx context.Context) (string, error) {
		pods, err := p.home.Client.CoreV1().Pods(p.home.Name).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil || len(pods.Items) == 1 {
			if err == nil {
				pod = &pods.Items[0]
			}
			return "", err
		}
		return fmt.Sprintf("there are %d", len(pods.Items)), nil
	})
	return p.home.WaitReady(pod.Name)
}
