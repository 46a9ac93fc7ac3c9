package reset

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestNamesOfTests(t *testing.T) {
	for name, want := range map[string]bool{
		"e2e-abcdefg2": true, "e2e-abcdefg2-1": true, "virtual-e2e-abcdefg2": true, "to-e2e-abcdefg2": true,
		"liqo-csi-remote.e2e-abcdefg2": true, "liqo-csi-remote.e2e-abcdefg2-workloads": true, "test-new": true,
		"default": false, "kube-system": false, "liqo-csi": false, "liqo-storage": false, "e2e": false, "e2e-mine": false,
		"my-e2e-tests": false, "e2e-abcdefg23": false, "e2e-ABCDEFG2": false, "e2e-abcdefg1": false, "test-newer": false,
	} {
		if got := isTests(name, namespaces); got != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// The demo's RemoteCluster has the same name as that of most tests in e2e/remote.
func TestRemoteClusterOfTheDemoIsKept(t *testing.T) {
	named := func(name, label string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name},
			"spec":     map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{label: name}}},
		}}
	}
	if isTestsRemoteCluster(named("remote", "kubernetes.io/hostname")) {
		t.Error("the RemoteCluster of the demo is not kept")
	}
	if !isTestsRemoteCluster(named("remote", clusterLabel)) {
		t.Error("the RemoteCluster of e2e/remote is not deleted")
	}
}

func TestForeignKinds(t *testing.T) {
	definition := func(group, approval string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"api-approved.kubernetes.io": approval}},
			"spec": map[string]any{
				"group": group, "names": map[string]any{"plural": "things"},
				"versions": []any{map[string]any{"name": "v1", "served": true}, map[string]any{"name": "v0", "served": false}},
			},
		}}
	}
	for _, one := range []struct {
		group, approval string
		want            bool
	}{
		{"offloading.liqo.io", "", true},
		{"kosmos.io", "", true},
		{"metrics.k8s.io", "unapproved, for tests", true},
		{"metrics.k8s.io", "https://github.com/kubernetes/", false},
		{"storage.liqo.io", "", false},
		{"snapshot.storage.k8s.io", "", false},
	} {
		kind, foreign := foreignKind(definition(one.group, one.approval))
		if foreign != one.want || kind.Version != "v1" || kind.Resource != "things" {
			t.Errorf("%s: %v, %v", one.group, foreign, kind)
		}
	}
}
