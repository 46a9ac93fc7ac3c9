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

// The chart installs the CRD, and does not delete it with the fabric.
func TestFabricIsEnabledByOneValue(t *testing.T) {
	n := homeSerial(t)
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
		// Otherwise a later installation of Liqo would find it.
		if err := driver.UndefineOffloading(ctx, n.Cluster); err != nil {
			t.Error(err)
		}
	})
	if err := driver.UndefineOffloading(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}

	// The installation waits for all pods: the fabric is ready without the CRD.
	fabric := driver.Fabric()
	fabric["definition"] = false
	if err := installWith(t.Context(), n.Cluster, chart.Values{"fabric": fabric}); err != nil {
		t.Fatal(err)
	}
	if defined() {
		t.Error("the chart installed the CRD although definition is false")
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
		t.Error("the chart did not install the CRD")
	}
	if err := install(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	if !defined() {
		t.Error("the CRD was deleted with the fabric")
	}
}
