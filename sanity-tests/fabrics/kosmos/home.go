// Package kosmos creates in a home cluster (Kosmos: host) the objects of `kosmosctl join`: Clusters
// with a kubeconfig. Kosmos cannot be imported as a Go module (it builds only with the thirty
// replacements of its go.mod), so that this package repeats its types, and names their files. It
// runs no controllers: there are no Nodes and no copies of pods.
package kosmos

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"storage.liqo.io/fabrics/cluster"
)

//go:embed clusters.yaml
var definition []byte

// clusterKind is the Cluster of Kosmos: pkg/apis/kosmos/v1alpha1/zz_generated.register.go.
var clusterKind = schema.GroupVersionKind{Group: "kosmos.io", Version: "v1alpha1", Kind: "Cluster"}

// Home is a cluster that others join.
type Home struct{ cluster.Cluster }

// OpenHome returns a client of a home cluster.
func OpenHome(kubeconfig string) (Home, error) {
	c, err := cluster.Open(kubeconfig)
	return Home{c}, err
}

// Definitions returns Kosmos' CustomResourceDefinition of Cluster.
func Definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := cluster.Definition(definition)
	if err != nil {
		return nil, err
	}
	return []*apiextensionsv1.CustomResourceDefinition{crd}, nil
}

// Install creates the definitions: a Kosmos without clusters.
func (h Home) Install(ctx context.Context) error {
	definitions, err := Definitions()
	if err != nil {
		return err
	}
	return h.Define(ctx, definitions)
}

// Join creates or updates the Cluster of a remote cluster. The kubeconfig is used unchanged and not
// validated, because tests need invalid ones.
func (h Home) Join(ctx context.Context, name string, kubeconfig []byte) error {
	if name == "" {
		return errors.New("a cluster that joins needs a name")
	}
	if err := h.Install(ctx); err != nil {
		return err
	}
	joined := named(name)
	return h.Enforce(ctx, joined, func() error { return describe(joined, kubeconfig) })
}

// describe sets the fields like pkg/kosmosctl/join/join.go with --enable-tree only, which enables
// pods.
func describe(joined *unstructured.Unstructured, kubeconfig []byte) error {
	if err := setKubeconfig(joined, kubeconfig); err != nil {
		return err
	}
	// One by one, to keep other fields.
	for _, field := range []struct {
		value any
		path  []string
	}{
		{"kosmos-system", []string{"spec", "namespace"}},
		{"ghcr.io/kosmos-io", []string{"spec", "imageRepository"}},
		{false, []string{"spec", "clusterLinkOptions", "enable"}},
		{"gateway", []string{"spec", "clusterLinkOptions", "networkType"}},
		{"ipv4", []string{"spec", "clusterLinkOptions", "ipFamily"}},
		{true, []string{"spec", "clusterTreeOptions", "enable"}},
	} {
		if err := unstructured.SetNestedField(joined.Object, field.value, field.path...); err != nil {
			return fmt.Errorf("set %v of Cluster %s: %w", field.path, joined.GetName(), err)
		}
	}
	return nil
}

// Rotate changes the kubeconfig of a Cluster.
func (h Home) Rotate(ctx context.Context, name string, kubeconfig []byte) error {
	joined := named(name)
	if err := h.Get(ctx, client.ObjectKeyFromObject(joined), joined); err != nil {
		return fmt.Errorf("cluster %s has not joined: %w", name, err)
	}
	return h.Enforce(ctx, joined, func() error { return setKubeconfig(joined, kubeconfig) })
}

// Leave deletes a Cluster.
func (h Home) Leave(ctx context.Context, name string) error {
	return h.DeleteAndWait(ctx, named(name))
}

// Remove deletes all Clusters and their definition.
func (h Home) Remove(ctx context.Context) error {
	definitions, err := Definitions()
	if err != nil {
		return err
	}
	return h.Undefine(ctx, definitions)
}

func named(name string) *unstructured.Unstructured {
	joined := &unstructured.Unstructured{}
	joined.SetGroupVersionKind(clusterKind)
	joined.SetName(name)
	return joined
}

// setKubeconfig removes the field for an empty kubeconfig, like Kosmos: an API server rejects an
// empty string in a field of bytes.
func setKubeconfig(joined *unstructured.Unstructured, kubeconfig []byte) error {
	if len(kubeconfig) == 0 {
		unstructured.RemoveNestedField(joined.Object, "spec", "kubeconfig")
		return nil
	}
	text := base64.StdEncoding.EncodeToString(kubeconfig)
	if err := unstructured.SetNestedField(joined.Object, text, "spec", "kubeconfig"); err != nil {
		return fmt.Errorf("set the kubeconfig of Cluster %s: %w", joined.GetName(), err)
	}
	return nil
}
