package remote

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestNamespaceIsMappedLater(t *testing.T) {
	p := newDedicatedPair(t, mappedNamespaces(map[string]any{"another": "another"}))
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitEvent("data", p.home.Name+" is not offloaded to the cluster "+p.cluster, "offload it there, or schedule the pod elsewhere")
	p.wantPending("data")
	p.declare(mappedNamespaces(map[string]any{p.home.Name: p.remote.Name}))
	p.home.WaitReady("user")
}

// The second claim is refused, because its twin would have the name of the first.
func TestSameClaimInTwoNamespacesMappedToOne(t *testing.T) {
	t.Parallel()
	ensureShared(t)
	p := newRemoteNamespace(t)
	remote := p.remote
	p.declare(mappedNamespaces(map[string]any{remote.Name + "-1": remote.Name, remote.Name + "-2": remote.Name}))
	t.Cleanup(p.undeclare)
	options := virtualNode(p.node, p.cluster)
	options.Namespace = func(string) (string, bool) { return remote.Name, true }
	startFabric(t, options)
	p.waitMarked()
	first := user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name+"-1")
	second := user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name+"-2")

	first.Claim("data", "liqo-reference", "64Mi")
	first.Pod("first", "data", p.onVirtualNode)
	first.WaitReady("first")
	remote.Exec("first", "echo of the first > /data/file")
	before := remote.GetClaim("data")

	second.Claim("data", "liqo-reference", "64Mi")
	second.Pod("second", "data", p.onVirtualNode)
	second.WaitEvent("data", remote.Name+"/data", "not ours")
	wantUnchanged(t, before, remote.GetClaim("data"))
	if err := second.Client.CoreV1().PersistentVolumeClaims(second.Name).Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second.DeletePod("second")
	wantUnchanged(t, before, remote.GetClaim("data"))
	if got := remote.Exec("first", "cat /data/file"); got != "of the first" {
		user.Violated(t, "the first pod reads %q", got)
	}
}
