package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// A cluster that Liqo declares is a RemoteCluster like any other: it is listed, and what
// its administrator says there of classes and policy counts.
func TestClusterOfLiqoIsARemoteCluster(t *testing.T) {
	full := user.Cluster(t, "remote").ProxyKubeconfig()
	p := newLiqoPair(t, liqoListed, func(*pair) string { return full }, "reference-immediate")
	p.offload()
	p.waitStatus("it says that it answers, and who declares it", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionTrue, "Usable") && strings.HasPrefix(s.DeclaredBy, "VirtualNode liqo-tenant-"+p.cluster+"/")
	})
	listed, err := p.home.Kubectl("get", "remoteclusters", p.cluster)
	if err != nil || !strings.Contains(listed, "Liqo") {
		t.Errorf("it is listed as %s: %v", listed, err)
	}

	virtual := p.createVirtualClass("virtual", nil)
	p.patchRemoteCluster(`{"storageClasses":{"mapping":{"` + virtual + `":"reference"}},"protectTwins":false}`)
	p.home.Claim("data", virtual, "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	found := p.waitVolume("data")
	if class := *found.Twin.Spec.StorageClassName; class != "reference" {
		t.Errorf("the twin is of class %s, not of the one that the RemoteCluster names", class)
	}
	p.waitStatus("it counts its volumes", func(s status) bool { return s.Volumes == 1 })

	all, err := remoteClusters(p.home.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	for what, spec := range map[string]string{
		"kubeconfigSecretRef, nodeSelector and namespaces": `{"nodeSelector":{"matchLabels":{"a":"b"}}}`,
		"cannot become a discovered one":                   `{"discoveredFrom":null,"nodeSelector":{"matchLabels":{"a":"b"}},"kubeconfigSecretRef":{"name":"x"}}`,
	} {
		_, err := all.Patch(t.Context(), p.cluster, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s is answered %v", spec, err)
		}
	}

	p.home.DeletePod("user")
	p.deleteClaim("data")
	p.wantGone(found)

	// What was said there is kept until somebody takes it back.
	runFabricObjects(t, "home", "liqo", "unpeer", "--cluster-id", p.cluster)
	p.waitStatus("nobody declares it", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionFalse, "Undeclared") && s.Volumes == 0
	})
	p.patchRemoteCluster(`{"storageClasses":{"mapping":null},"protectTwins":true}`)
	p.home.Eventually("the RemoteCluster goes", func(ctx context.Context) (string, error) {
		object, err := all.Get(ctx, p.cluster, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("it is %v", object.Object["status"]), err
	})
}

// patchRemoteCluster changes the RemoteCluster.
func (p *pair) patchRemoteCluster(spec string) {
	p.t.Helper()
	all, err := remoteClusters(p.home.Cluster)
	if err == nil {
		_, err = all.Patch(p.t.Context(), p.cluster, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
