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

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

// neighbour is the remote cluster as one test sees it: a virtual node of its own,
// a namespace here, and the one there that it becomes.
type neighbour struct {
	here, there *user.Namespace
	// id is the name of the RemoteCluster, and of its Secret and its node.
	id string
}

// newNeighbour makes namespaces and virtual node. The driver does not hear of the
// cluster before it is declared.
func newNeighbour(t *testing.T) *neighbour {
	t.Helper()
	var reflecting *fabric.Fabric
	b := &neighbour{there: user.NewNamespace(t, user.Cluster(t, "remote"))}
	b.id = "to-" + b.there.Name
	// What is used by the claims here outlives them.
	t.Cleanup(func() {
		if reflecting == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), user.Patience)
		defer cancel()
		if err := reflecting.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { b.forget(t) })
	b.here = user.NewNamespace(t, user.Cluster(t, "home"))

	options := fabric.Plain(b.id)
	options.Home, options.Remote = b.here.Cluster, b.there.Cluster
	options.NoNamespaces = true
	options.Namespace = func(namespace string) (string, bool) { return b.there.Name, namespace == b.here.Name }
	reflecting, err := fabric.Start(context.WithoutCancel(t.Context()), options)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// declare tells the driver of the cluster, which it reaches through the proxy.
func (b *neighbour) declare(t *testing.T) {
	t.Helper()
	kubeconfig, err := os.ReadFile(b.there.Cluster.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: b.id},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if _, err := b.here.Client.CoreV1().Secrets(chart.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.here.Apply(fmt.Sprintf(`
apiVersion: storage.liqo.io/v1alpha1
kind: RemoteCluster
metadata: {name: %[1]s}
spec:
  kubeconfigSecretRef: {name: %[1]s}
  nodeSelector: {matchLabels: {%[2]s: %[1]s}}
  namespaces: {strategy: Mapped, mapping: {%[3]s: %[4]s}}
`, b.id, corev1.LabelHostname, b.here.Name, b.there.Name))
}

// forget takes the cluster away from the driver.
func (b *neighbour) forget(t *testing.T) {
	t.Helper()
	// Not the test's context, which ends before its clean-up.
	ctx, cancel := context.WithTimeout(context.Background(), user.Patience)
	defer cancel()
	for _, kind := range []string{"remotecluster", "secret"} {
		out, err := exec.CommandContext(ctx, b.here.Cluster.Kubectl(), "delete", kind, b.id, "--namespace", chart.Namespace, "--ignore-not-found").CombinedOutput()
		if err != nil {
			t.Errorf("delete %s %s: %v: %s", kind, b.id, err, out)
		}
	}
}

// ready waits until claims of pods on the virtual node would be served.
func (b *neighbour) ready() {
	b.here.Eventually("the cluster is ready", func(context.Context) (string, error) {
		told, err := b.here.Kubectl("get", "remotecluster", b.id, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.lastError}`)
		if err == nil && strings.HasPrefix(told, "True") {
			return "", nil
		}
		return "ready: " + told, err
	})
	b.marked(true)
}

// marked waits until the virtual node can have volumes, or until it is one that cannot.
func (b *neighbour) marked(wanted bool) {
	b.here.Eventually(fmt.Sprintf("it is %v that the virtual node can have volumes", wanted), func(ctx context.Context) (string, error) {
		node, err := b.here.Client.CoreV1().Nodes().Get(ctx, b.id, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		csiNode, err := b.here.Client.StorageV1().CSINodes().Get(ctx, b.id, metav1.GetOptions{})
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

// onIt makes a pod run in the remote cluster. It gets a moment to end: fabrics
// tell its end only then.
func (b *neighbour) onIt(pod *corev1.Pod) {
	user.OnNode(b.id)(pod)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
}

// follow waits until claim and twin are bound, and finds what stands behind them.
func (b *neighbour) follow(claim string) user.Volume { return b.here.FollowTo(b.there, claim) }

// oneTwinEach waits until each claim here is Bound and has exactly one twin, in
// either cluster, and nobody else has any.
func (b *neighbour) oneTwinEach() {
	b.here.Eventually("each claim has exactly one twin, and nobody else has any", func(ctx context.Context) (string, error) {
		claims, err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).List(ctx, metav1.ListOptions{})
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
			wrong = append(wrong, fmt.Sprintf("there is no claim %s for %q", uid, twins))
		}
		return strings.Join(wrong, "; "), nil
	})
}

// twins are those of the claims here, wherever they are, by the uid of their claims.
func (b *neighbour) twins(ctx context.Context) (map[string][]string, error) {
	of := map[string][]string{}
	for _, n := range []*user.Namespace{b.here, b.there} {
		ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=" + driver.CSIName}
		found, err := n.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, ours)
		if err != nil {
			return nil, err
		}
		for _, twin := range found.Items {
			if twin.Annotations["storage.liqo.io/claim-namespace"] == b.here.Name {
				uid := twin.Annotations["storage.liqo.io/claim-uid"]
				of[uid] = append(of[uid], n.Cluster.Name()+": "+twin.Namespace+"/"+twin.Name)
			}
		}
	}
	return of, nil
}

// madeAgain waits until a claim has another twin on the same volume, which is
// reclaimed as before.
func (b *neighbour) madeAgain(was user.Volume) {
	claim, real := was.Claim.Name, was.Real
	b.there.Eventually("the twin of "+claim+" is bound to its data again", func(ctx context.Context) (string, error) {
		again, err := b.there.Client.CoreV1().PersistentVolumeClaims(b.there.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		now, err := b.there.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if again.UID == was.Twin.UID || again.Status.Phase != corev1.ClaimBound || again.Spec.VolumeName != real.Name ||
			now.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
			return fmt.Sprintf("twin %s is %s, bound to %s, which is to be %s", again.UID, again.Status.Phase,
				again.Spec.VolumeName, now.Spec.PersistentVolumeReclaimPolicy), nil
		}
		return "", nil
	})
}
