package remote

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

// Ids of clusters that Liqo peers with. Their tenant namespaces are in the values of the chart, so they are the same
// in each run.
const (
	liqoFull      = "e2e-full"
	liqoMinimal   = "e2e-minimal"
	liqoAnnotated = "e2e-annotated"
	liqoHonest    = "e2e-honest"
	liqoListed    = "e2e-listed"
	// After the others in alphabetical order, so that its objects are listed last.
	liqoPeer = "e2e-peer"
)

func tenantNamespaces() []string {
	var namespaces []string
	for _, cluster := range []string{liqoFull, liqoMinimal, liqoAnnotated, liqoHonest, liqoListed, liqoPeer} {
		namespaces = append(namespaces, "liqo-tenant-"+cluster)
	}
	return namespaces
}

// newLiqoPair creates a pair with a peering of Liqo, without offloading the namespace. The remote namespace has
// another name, as with Liqo's default strategy. The first class is the default one.
func newLiqoPair(t *testing.T, cluster string, identity func(p *pair) (kubeconfig string), classes ...string) *pair {
	t.Helper()
	t.Parallel()
	ensureShared(t)
	p := newRemoteNamespace(t)
	remote := p.remote
	p.node, p.cluster = "liqo-"+remote.Name, cluster
	options := fabric.Liqo(p.node, p.cluster)
	options.NoNamespaces = true
	options.Namespace = func(string) (string, bool) { return remote.Name, true }
	startFabric(t, options)
	t.Cleanup(func() { runFabricObjects(t, "home", "liqo", "unpeer", "--cluster-id", p.cluster) })
	peering := []string{"liqo", "peer", "--cluster-id", p.cluster, "--node", p.node, "--remote-kubeconfig", identity(p)}
	for _, class := range classes {
		peering = append(peering, "--storage-class", class)
	}
	runFabricObjects(t, "home", peering...)
	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name+"-home")
	p.waitMarked()
	return p
}

// offload offloads the namespace of the pair.
func (p *pair) offload() {
	p.t.Helper()
	runFabricObjects(p.t, "home", "liqo", "map", "--cluster-id", p.cluster, p.home.Name+"="+p.remote.Name)
}

func (p *pair) rotateKubeconfig(kubeconfig string) {
	p.t.Helper()
	runFabricObjects(p.t, "home", "liqo", "rotate", "--cluster-id", p.cluster, "--remote-kubeconfig", kubeconfig)
}

func TestVolumeWithPeeringOfLiqo(t *testing.T) {
	full := user.Cluster(t, "remote").ProxyKubeconfig()
	p := newLiqoPair(t, liqoFull, func(*pair) string { return full }, "reference-immediate")
	p.home.Claim("data", "liqo", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitEvent("data", p.home.Name+" is not offloaded to the cluster "+p.cluster)
	p.wantPending("data")
	p.offload()
	p.home.WaitReady("user")
	p.remote.WaitReady("user")
	found := p.waitVolume("data")
	if *found.Twin.Spec.StorageClassName != "reference-immediate" {
		t.Errorf("the twin is of class %s, not of Liqo's default one", *found.Twin.Spec.StorageClassName)
	}
	p.wantMarks(found)
	p.wantAffinity(found.Virtual)
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
	p.remote.Exec("user", "echo precious > /data/file")

	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, kubeconfigWith(t, refusedKubeconfigs["exec: commands are never run"]), 0o600); err != nil {
		t.Fatal(err)
	}
	p.rotateKubeconfig(broken)
	p.home.Claim("later", "liqo-reference", "64Mi")
	p.home.Pod("later", "later", p.pinned)
	p.home.WaitEvent("later", "cluster "+p.cluster, "cannot be used", "exec")
	p.rotateKubeconfig(full)
	p.startPod("last", "last", "liqo-reference")
	if got := p.remote.Exec("user", "cat /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}
}

// The rights of Liqo's virtual kubelet suffice for classes with a realStorageClass. What does not work without more
// rights is reported.
func TestLiqosMinimalRole(t *testing.T) {
	p := newLiqoPair(t, liqoMinimal, func(p *pair) string {
		home := p.homeID()
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		t.Cleanup(func() { runFabricObjects(t, "remote", "liqo", "remote-remove", "--home-id", home) })
		runFabricObjects(t, "remote", "liqo", "remote-role", "--home-id", home, "--namespace", p.remote.Name)
		runFabricObjects(t, "remote", "liqo", "identity", "--home-id", home, "--slice", p.node,
			"--server", serverOf(t, p.remote.Cluster), "--out", kubeconfig)
		return kubeconfig
	})
	p.offload()
	p.startPod("user", "data", "liqo-reference")
	p.remote.Exec("user", "echo precious > /data/file")
	found := p.waitVolume("data")
	p.wantMarks(found)
	p.wantAffinity(found.Virtual)
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
	p.home.DeletePod("user")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	if got := p.remote.Exec("user", "cat /data/file"); got != "precious" {
		user.Violated(t, "the next pod reads %q", got)
	}

	p.home.Claim("kept", "liqo-retain", "64Mi")
	p.home.Pod("kept", "kept", p.onVirtualNode)
	p.home.WaitEvent("kept", "RetainNotApplied", p.cluster, "may not change PersistentVolumes")
	p.home.WaitReady("kept")
	kept := p.waitVolume("kept")
	t.Cleanup(func() { p.discard(kept) })
	p.home.DeletePod("kept")
	p.deleteClaim("kept")

	// The class has no realStorageClass, and the driver may not read which class is the default. Capacity is
	// published anyway, because an annotation may name a class.
	unnamed := p.createVirtualClass("unnamed", nil)
	p.waitCapacity(unnamed, func(bytes int64) bool { return bytes > 0 })
	p.home.Claim("unnamed", unnamed, "64Mi")
	p.home.Pod("unnamed", "unnamed", p.onVirtualNode)
	p.home.WaitEvent("unnamed", "ProvisioningFailed", "may not read the classes of the cluster "+p.cluster, "has to be named")

	// The refusal must not affect claims that name a class.
	p.home.Claim("stuck", unnamed, "1Mi")
	p.home.Pod("stuck", "stuck", p.onVirtualNode)
	p.home.WaitEvent("stuck", "ProvisioningFailed", "has to be named", liqoClass)
	p.remote.Class(classWithoutCapacity(namedClass))
	p.home.Claim("named", unnamed, "64Mi", withLiqoAnnotations(namedClass, ""))
	p.home.Pod("named", "named", p.onVirtualNode)
	p.home.WaitReady("named")
	p.waitCapacity(unnamed, func(bytes int64) bool { return bytes > 1<<30 })

	p.home.DeletePod("user")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

// A peer has rights in its tenant namespace. It must not redirect volumes of another cluster to another remote
// namespace.
func TestLiqoPeerCannotRedirectVolumesOfAnotherCluster(t *testing.T) {
	full := user.Cluster(t, "remote").ProxyKubeconfig()
	p := newLiqoPair(t, liqoHonest, func(*pair) string { return full }, "reference-immediate")
	t.Cleanup(func() { runFabricObjects(t, "home", "liqo", "unpeer", "--cluster-id", liqoPeer) })
	runFabricObjects(t, "home", "liqo", "peer", "--cluster-id", liqoPeer, "--node", "peer-"+p.remote.Name, "--remote-kubeconfig", full)

	const redirected = "kube-public"
	group := schema.GroupVersion{Group: "offloading.liqo.io", Version: "v1beta1"}
	tenant := "liqo-tenant-" + liqoPeer
	labels := map[string]any{"liqo.io/remoteID": liqoHonest, "liqo.io/replication": "true"}
	p.createLiqoObject(group.WithResource("virtualnodes"), "VirtualNode", tenant, labels, map[string]any{
		"spec": map[string]any{"clusterID": liqoHonest, "kubeconfigSecretRef": map[string]any{"name": "none"}},
	})
	p.createLiqoObject(group.WithResource("namespacemaps"), "NamespaceMap", tenant, labels, map[string]any{
		"spec": map[string]any{"desiredMapping": map[string]any{p.home.Name: redirected}},
		"status": map[string]any{"currentMapping": map[string]any{
			p.home.Name: map[string]any{"remoteNamespace": redirected, "phase": "Accepted"},
		}},
	})
	p.home.Claim("early", "liqo", "64Mi")
	p.home.Pod("early", "early", p.onVirtualNode)
	p.home.WaitEvent("early", p.home.Name+" is not offloaded to the cluster "+p.cluster)
	p.offload()
	p.home.WaitReady("early")
	p.wantMarks(p.waitVolume("early"))
}

// createLiqoObject creates an object of Liqo, which is deleted with its namespace.
func (p *pair) createLiqoObject(resource schema.GroupVersionResource, kind, namespace string, labels, content map[string]any) {
	p.t.Helper()
	config, err := user.Cluster(p.t, "home").Config()
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	objects := client.Resource(resource).Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": "foreign", "labels": labels},
	}}
	maps.Copy(object.Object, content)
	created, err := objects.Create(p.t.Context(), object, metav1.CreateOptions{})
	if err == nil && content["status"] != nil {
		created.Object["status"] = content["status"]
		_, err = objects.UpdateStatus(p.t.Context(), created, metav1.UpdateOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
