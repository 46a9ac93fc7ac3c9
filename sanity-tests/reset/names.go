package reset

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ofTest matches the random name of a test's namespace (package e2e/user), and names that tests and
// the driver derive from it: of classes, nodes, remote clusters and namespaces, and rights.
var ofTest = regexp.MustCompile(`(^|[-.])e2e-[a-z2-7]{8}($|[-.])`)

// Names that tests use as they are, because documents of others have them or the driver is told of
// them before the tests run.
var (
	namespaces = []string{
		"test-new", // Kosmos' document
		"liqo-tenant-e2e-full", "liqo-tenant-e2e-minimal", "liqo-tenant-e2e-annotated",
		"liqo-tenant-e2e-honest", "liqo-tenant-e2e-listed", "liqo-tenant-e2e-peer",
	}
	classes        = []string{"openebs-hostpath"}
	remoteClusters = []string{"offloaded", "offloaded-home"}
	// fabricNodes are those of the tests' own fabric; the driver's own removes its nodes itself.
	fabricNodes = []string{"virtual-remote", "kosmos-cluster38"}
	// foreignObjects are cluster-scoped objects of Liqo's and Kosmos' kinds.
	foreignObjects = []string{"cluster38", "e2e-full", "e2e-minimal", "e2e-annotated", "e2e-honest", "e2e-listed", "e2e-peer"}
)

// clusterLabel is how RemoteClusters of e2e/remote select their nodes. One of them is called
// "remote", as that of the demo is.
const clusterLabel = "e2e.storage.test/cluster"

// isTests says whether a name is one that tests use: one of the given, or one made of the random
// name of a test's namespace.
func isTests(name string, fixed []string) bool {
	return ofTest.MatchString(name) || slices.Contains(fixed, name)
}

func isTestsRemoteCluster(object *unstructured.Unstructured) bool {
	selected, _, _ := unstructured.NestedStringMap(object.Object, "spec", "nodeSelector", "matchLabels")
	_, labelled := selected[clusterLabel]
	return labelled || isTests(object.GetName(), remoteClusters)
}
