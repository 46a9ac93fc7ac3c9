package reset

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ofTest matches the random names of test namespaces (package e2e/user), and names derived from them:
// of classes, nodes, remote clusters and namespaces, and RBAC.
var ofTest = regexp.MustCompile(`(^|[-.])e2e-[a-z2-7]{8}($|[-.])`)

// Fixed names of tests.
var (
	namespaces = []string{
		"test-new", // in Kosmos' documentation
		"liqo-tenant-e2e-full", "liqo-tenant-e2e-minimal", "liqo-tenant-e2e-annotated",
		"liqo-tenant-e2e-honest", "liqo-tenant-e2e-listed", "liqo-tenant-e2e-peer",
	}
	classes        = []string{"openebs-hostpath"}
	remoteClusters = []string{"offloaded", "offloaded-home"}
	// fabricNodes are those of the tests' fabric; the driver's fabric deletes its nodes itself.
	fabricNodes = []string{"virtual-remote", "kosmos-cluster38"}
	// foreignObjects are cluster-scoped objects of Liqo's and Kosmos' kinds.
	foreignObjects = []string{"cluster38", "e2e-full", "e2e-minimal", "e2e-annotated", "e2e-honest", "e2e-listed", "e2e-peer"}
)

// clusterLabel is the label by which RemoteClusters of e2e/remote select their nodes. One of them has
// the name "remote", like that of the demo.
const clusterLabel = "e2e.storage.test/cluster"

// isTests reports whether a name is fixed or derived from the random name of a test namespace.
func isTests(name string, fixed []string) bool {
	return ofTest.MatchString(name) || slices.Contains(fixed, name)
}

func isTestsRemoteCluster(object *unstructured.Unstructured) bool {
	selected, _, _ := unstructured.NestedStringMap(object.Object, "spec", "nodeSelector", "matchLabels")
	_, labelled := selected[clusterLabel]
	return labelled || isTests(object.GetName(), remoteClusters)
}
