package driver

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Nothing is defined by hand before, and what the chart defines stays when it goes.
func TestFabricIsSwitchedOnByOneValue(t *testing.T) {
	n := homeAlone(t)
	config, err := n.Cluster.Config()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	defined := func() bool {
		found, err := objects.Resource(definitions).Get(t.Context(), "namespaceoffloadings.offloading.liqo.io", metav1.GetOptions{})
		return err == nil && found.GetAnnotations()["helm.sh/resource-policy"] == "keep"
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := install(ctx, n.Cluster); err != nil {
			t.Error(err)
		}
		// No release has it any more, so no upgrade can mistake Liqo's for ours.
		if err := driver.UndefineOffloading(ctx, n.Cluster); err != nil {
			t.Error(err)
		}
	})
	if err := driver.UndefineOffloading(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}

	// Installing waits for all pods: also without the kind the fabric is ready, and says so.
	fabric := driver.Fabric()
	fabric["definition"] = false
	if err := installWith(t.Context(), n.Cluster, chart.Values{"fabric": fabric}); err != nil {
		t.Fatal(err)
	}
	if defined() {
		t.Error("the kind was defined against what the values say")
	}
	found, err := n.Client.AppsV1().Deployments(chart.Namespace).Get(t.Context(), "liqo-csi-fabric", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if found.Status.ReadyReplicas != *found.Spec.Replicas {
		t.Errorf("%d of %d pods of the fabric are ready", found.Status.ReadyReplicas, *found.Spec.Replicas)
	}

	if err := installWith(t.Context(), n.Cluster, chart.Values{"fabric": driver.Fabric()}); err != nil {
		t.Fatal(err)
	}
	if !defined() {
		t.Error("the kind is not defined")
	}
	if err := install(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	if !defined() {
		t.Error("the kind went with the fabric, and all objects with it")
	}
}
