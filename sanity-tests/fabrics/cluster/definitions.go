package cluster

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Definition parses a CustomResourceDefinition in YAML. An unknown field is an error, because a typo
// in a schema would be ignored otherwise.
func Definition(manifest []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, definition); err != nil {
		return nil, fmt.Errorf("parse a CustomResourceDefinition: %w", err)
	}
	if definition.Kind != "CustomResourceDefinition" {
		return nil, fmt.Errorf("%q is a %q, not a CustomResourceDefinition", definition.Name, definition.Kind)
	}
	return definition, nil
}

// Define applies definitions and waits until their kinds are served.
func (c Cluster) Define(ctx context.Context, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	for _, wanted := range definitions {
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: wanted.Name}}
		err := c.Enforce(ctx, definition, func() error {
			conversion := definition.Spec.Conversion // defaulted by the API server
			wanted.Spec.DeepCopyInto(&definition.Spec)
			if definition.Spec.Conversion == nil {
				definition.Spec.Conversion = conversion
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, definition := range definitions {
		if err := c.waitServed(ctx, definition); err != nil {
			return err
		}
	}
	return nil
}

// waitServed waits for Established and for a successful list: in between, the API server may return
// that there is no such resource.
func (c Cluster) waitServed(ctx context.Context, wanted *apiextensionsv1.CustomResourceDefinition) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(listKind(wanted))
	latest := fmt.Errorf("not Established")
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(wanted), definition); err != nil {
			return false, err
		}
		if !established(definition) {
			return false, nil
		}
		if err := c.List(ctx, list, client.Limit(1)); err != nil {
			latest = err
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s serves %s: %w (last: %w)", c.Config.Host, wanted.Name, err, latest)
	}
	return nil
}

// Undefine deletes definitions, with all objects of their kinds, and waits until they are deleted.
func (c Cluster) Undefine(ctx context.Context, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	for _, definition := range definitions {
		object := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: definition.Name}}
		if err := c.DeleteAndWait(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

func established(definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range definition.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

func listKind(definition *apiextensionsv1.CustomResourceDefinition) schema.GroupVersionKind {
	spec := definition.Spec
	return schema.GroupVersionKind{Group: spec.Group, Version: spec.Versions[0].Name, Kind: spec.Names.Kind + "List"}
}
