package driver

import (
	"context"
	"fmt"
	"os/exec"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
)

const offloadingKind = "namespaceoffloadings.offloading.liqo.io"

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Fabric returns the chart's value that enables the fabric. The lab's API servers verify the serving
// certificates of kubelets.
func Fabric() chart.Values {
	return chart.Values{"enabled": true, "streams": chart.Values{"approveCertificates": true}}
}

// DefineOffloading creates the CustomResourceDefinition of NamespaceOffloading if there is none.
// Not by the chart, so that no release owns it and Liqo's can replace it between tests.
func DefineOffloading(ctx context.Context, home *clusters.Cluster) error {
	program, err := Compile(ctx)
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, program, "crds", "--offloading").Output()
	if err != nil {
		return fmt.Errorf("liqo-csi crds --offloading: %w", err)
	}
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &definition.Object); err != nil {
		return err
	}
	all, err := resourceIn(home, definitions)
	if err != nil {
		return err
	}
	_, err = all.Create(ctx, definition, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("define NamespaceOffloadings: %w", err)
	}
	return nil
}

// UndefineOffloading deletes the definition, because Liqo brings its own.
func UndefineOffloading(ctx context.Context, home *clusters.Cluster) error {
	all, err := resourceIn(home, definitions)
	if err != nil {
		return err
	}
	err = all.Delete(ctx, offloadingKind, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
