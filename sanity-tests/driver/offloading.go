package driver

import (
	"context"
	"fmt"
	"os/exec"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
)

const offloadingKind = "namespaceoffloadings.offloading.liqo.io"

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Fabric is the value of the chart by which the fabric of the driver runs. The API servers of the
// lab verify the certificates of those that serve logs.
func Fabric() chart.Values {
	return chart.Values{"enabled": true, "streams": chart.Values{"approveCertificates": true}}
}

// DefineOffloading defines the kind NamespaceOffloading without the chart, never over another
// definition: then no release has it, and Liqo's may take its place between two tests.
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
	all, err := definitionsIn(home)
	if err != nil {
		return err
	}
	_, err = all.Create(ctx, definition, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("define NamespaceOffloadings: %w", err)
	}
	return nil
}

// UndefineOffloading takes the definition away. Liqo brings its own.
func UndefineOffloading(ctx context.Context, home *clusters.Cluster) error {
	all, err := definitionsIn(home)
	if err != nil {
		return err
	}
	err = all.Delete(ctx, offloadingKind, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func definitionsIn(cluster *clusters.Cluster) (dynamic.ResourceInterface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	all, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return all.Resource(definitions), nil
}
