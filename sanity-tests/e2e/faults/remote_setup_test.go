package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

// remoteSetup is the remote cluster for one test: a virtual node, a namespace at home, and the remote
// namespace that it is mapped to.
type remoteSetup struct {
	home, remote *user.Namespace
	// id is the name of the RemoteCluster, its Secret and its node.
	id string
}

// newRemoteSetup creates namespaces and virtual node. declare creates the RemoteCluster.
func newRemoteSetup(t *testing.T) *remoteSetup {
	t.Helper()
	var reflecting *fabric.Fabric
	b := &remoteSetup{remote: user.NewNamespace(t, user.Cluster(t, "remote"))}
	b.id = "to-" + b.remote.Name
	// After the namespace at home, whose claims need the fabric.
	t.Cleanup(func() {
		if reflecting == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), user.Timeout)
		defer cancel()
		if err := reflecting.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { b.undeclare(t) })
	b.home = user.NewNamespace(t, user.Cluster(t, "home"))

	options := fabric.Plain(b.id)
	options.Home, options.Remote = b.home.Cluster, b.remote.Cluster
	options.NoNamespaces = true
	options.Namespace = func(namespace string) (string, bool) { return b.remote.Name, namespace == b.home.Name }
	reflecting, err := fabric.Start(context.WithoutCancel(t.Context()), options)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// declare creates the RemoteCluster, with a kubeconfig through the proxy.
func (b *remoteSetup) declare(t *testing.T) {
	t.Helper()
	kubeconfig, err := os.ReadFile(b.remote.Cluster.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: b.id},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if _, err := b.home.Client.CoreV1().Secrets(chart.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.home.Apply(fmt.Sprintf(`
apiVersion: storage.liqo.io/v1alpha1
kind: RemoteCluster
metadata: {name: %[1]s}
spec:
  kubeconfigSecretRef: {name: %[1]s}
  nodeSelector: {matchLabels: {%[2]s: %[1]s}}
  namespaces: {strategy: Mapped, mapping: {%[3]s: %[4]s}}
`, b.id, corev1.LabelHostname, b.home.Name, b.remote.Name))
}

// undeclare deletes the RemoteCluster and its Secret.
func (b *remoteSetup) undeclare(t *testing.T) {
	t.Helper()
	// Not the test's context, which is cancelled before clean-up.
	ctx, cancel := context.WithTimeout(context.Background(), user.Timeout)
	defer cancel()
	for _, kind := range []string{"remotecluster", "secret"} {
		out, err := exec.CommandContext(ctx, b.home.Cluster.Kubectl(), "delete", kind, b.id, "--namespace", chart.Namespace, "--ignore-not-found").CombinedOutput()
		if err != nil {
			t.Errorf("delete %s %s: %v: %s", kind, b.id, err, out)
		}
	}
}

// waitReady waits until claims of pods on the virtual node can be provisioned.
func (b *remoteSetup) waitReady() {
	b.home.Eventually("the cluster is ready", func(ctx context.Context) (string, error) {
		cluster, err := b.home.Object(ctx, "remotecluster", b.id)
		if err != nil {
			return "", err
		}
		conditions, _, _ := unstructured.NestedSlice(cluster.Object, "status", "conditions")
		for _, one := range conditions {
			if one, ok := one.(map[string]any); ok && one["type"] == "Ready" && one["status"] == "True" {
				return "", nil
			}
		}
		return fmt.Sprintf("its status is %v", cluster.Object["status"]), nil
	})
	b.waitMarked(true)
}

// waitMarked waits until the virtual node has the driver's labels and CSINode entry, or has none.
func (b *remoteSetup) waitMarked(wanted bool) {
	b.home.Eventually(fmt.Sprintf("the virtual node has the driver's marks: %v", wanted), func(ctx context.Context) (string, error) {
		node, err := b.home.Client.CoreV1().Nodes().Get(ctx, b.id, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		csiNode, err := b.home.Client.StorageV1().CSINodes().Get(ctx, b.id, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		entries := 0
		for _, entry := range csiNode.Spec.Drivers {
			if entry.Name == driver.CSIName {
				entries++
			}
		}
		_, virtual := node.Labels["storage.liqo.io/virtual-node"]
		cluster := node.Labels["topology.storage.liqo.io/cluster"]
		if virtual == wanted && (cluster == b.id) == wanted && (entries == 1) == wanted {
			return "", nil
		}
		return fmt.Sprintf("labels %v, entries of its CSINode %v", node.Labels, csiNode.Spec.Drivers), nil
	})
}

// onVirtualNode makes a pod run in the remote cluster. The fabric reports its end only with a grace period.
func (b *remoteSetup) onVirtualNode(pod *corev1.Pod) {
	user.OnNode(b.id)(pod)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
}

// follow waits until claim and twin are Bound, and returns all objects of the volume.
func (b *remoteSetup) follow(claim string) user.Volume {
	return b.home.WaitRemoteVolume(b.remote, claim)
}

// waitOneTwinEach waits until each claim is Bound and has exactly one twin, in either cluster, and there
// are no other twins.
func (b *remoteSetup) waitOneTwinEach() {
	b.home.Eventually("each claim has exactly one twin, and there are no others", func(ctx context.Context) (string, error) {
		claims, err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		twins, err := b.twins(ctx)
		if err != nil {
			return "", err
		}
		var wrong []string
		for _, claim := range claims.Items {
			uid := string(claim.UID)
			if claim.Status.Phase != corev1.ClaimBound || len(twins[uid]) != 1 {
				wrong = append(wrong, fmt.Sprintf("claim %s is %s with twins %q", claim.Name, claim.Status.Phase, twins[uid]))
			}
			delete(twins, uid)
		}
		for uid, twins := range twins {
			wrong = append(wrong, fmt.Sprintf("no claim %s for %q", uid, twins))
		}
		return strings.Join(wrong, "; "), nil
	})
}

// twins returns the twins in both clusters of the claims in this namespace, by the uid of the claim.
func (b *remoteSetup) twins(ctx context.Context) (map[string][]string, error) {
	byClaim := map[string][]string{}
	for _, n := range []*user.Namespace{b.home, b.remote} {
		ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=" + driver.CSIName}
		found, err := n.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, ours)
		if err != nil {
			return nil, err
		}
		for _, twin := range found.Items {
			if twin.Annotations["storage.liqo.io/claim-namespace"] == b.home.Name {
				uid := twin.Annotations["storage.liqo.io/claim-uid"]
				byClaim[uid] = append(byClaim[uid], n.Cluster.Name()+": "+twin.Namespace+"/"+twin.Name)
			}
		}
	}
	return byClaim, nil
}

// waitRecovered waits until a claim has another twin with the same volume and reclaim policy.
func (b *remoteSetup) waitRecovered(was user.Volume) {
	claim, real := was.Claim.Name, was.Real
	b.remote.Eventually("the twin of "+claim+" is bound to its data again", func(ctx context.Context) (string, error) {
		again, err := b.remote.Client.CoreV1().PersistentVolumeClaims(b.remote.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		now, err := b.remote.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if again.UID == was.Twin.UID || again.Status.Phase != corev1.ClaimBound || again.Spec.VolumeName != real.Name ||
			now.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
			return fmt.Sprintf("twin %s is %s, bound to %s with the reclaim policy %s", again.UID, again.Status.Phase,
				again.Spec.VolumeName, now.Spec.PersistentVolumeReclaimPolicy), nil
		}
		return "", nil
	})
}
