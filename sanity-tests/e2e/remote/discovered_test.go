package remote

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// The driver creates a RemoteCluster for a cluster of Liqo, and its spec applies like that of any other.
func TestRemoteClusterIsCreatedForAClusterOfLiqo(t *testing.T) {
	full := user.Cluster(t, "remote").ProxyKubeconfig()
	p := newLiqoPair(t, liqoListed, func(*pair) string { return full }, "reference-immediate")
	p.offload()
	p.waitStatus("it is ready, and declaredBy is the VirtualNode", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionTrue, "Usable") && strings.HasPrefix(s.DeclaredBy, "VirtualNode liqo-tenant-"+p.cluster+"/")
	})
	listed, err := p.home.Kubectl("get", "remoteclusters", p.cluster)
	if err != nil || !strings.Contains(listed, "Liqo") {
		t.Errorf("kubectl lists %s: %v", listed, err)
	}

	virtual := p.createVirtualClass("virtual", nil)
	generation := p.patchRemoteCluster(`{"storageClasses":{"mapping":{"` + virtual + `":"reference"}},"protectTwins":false}`)
	p.waitStatus("its spec is observed", func(s status) bool {
		return slices.ContainsFunc(s.Conditions, func(one metav1.Condition) bool { return fmt.Sprint(one.ObservedGeneration) == generation })
	})
	p.startPod("user", "data", virtual)
	found := p.waitVolume("data")
	if class := *found.Twin.Spec.StorageClassName; class != "reference" {
		t.Errorf("the twin is of class %s, not of the mapped one", class)
	}
	p.waitStatus("the status counts the volume", func(s status) bool { return s.Volumes == 1 })

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
			t.Errorf("for %s the API server returns %v", spec, err)
		}
	}

	p.home.DeletePod("user")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)

	// A RemoteCluster with settings of an administrator is kept until they are removed.
	runFabricObjects(t, "home", "liqo", "unpeer", "--cluster-id", p.cluster)
	p.waitStatus("the cluster is not declared", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionFalse, "Undeclared") && s.Volumes == 0
	})
	p.patchRemoteCluster(`{"storageClasses":{"mapping":null},"protectTwins":true}`)
	p.home.WaitDeleted("remotecluster", p.cluster)
}

// patchRemoteCluster patches the spec.
func (p *pair) patchRemoteCluster(spec string) (generation string) {
	p.t.Helper()
	out, err := p.home.Kubectl("patch", "remotecluster", p.cluster, "--type=merge", "-p", `{"spec":`+spec+`}`, "-o", "jsonpath={.metadata.generation}")
	if err != nil {
		p.t.Fatal(err, out)
	}
	return out
}
