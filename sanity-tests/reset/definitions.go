package reset

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// liqoNamespace is the namespace of an installed Liqo.
const liqoNamespace = "liqo"

// removeDefinitions deletes the CustomResourceDefinitions of Liqo, Kosmos and metrics-server that
// tests create, if all objects of the kind are those of tests. Liqo's definition of
// NamespaceOffloadings differs from the driver's, which never replaces it.
func (r *reset) removeDefinitions(ctx context.Context) error {
	reported := map[string]bool{}
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, t := range r.targets {
			installed, err := t.hasNamespace(ctx, liqoNamespace)
			if err != nil {
				return nil, err
			}
			if installed {
				continue
			}
			all := t.dynamic.Resource(definitions)
			found, err := all.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list the definitions of cluster %s: %w", t.Name(), err)
			}
			for _, definition := range found.Items {
				kind, foreign := foreignKind(&definition)
				if !foreign {
					continue
				}
				used, err := t.isUsed(ctx, kind)
				if err != nil {
					return nil, err
				}
				if used {
					continue
				}
				if err := remove(ctx, all, definition.GetName()); err != nil {
					return nil, fmt.Errorf("delete the definition %s of cluster %s: %w", definition.GetName(), t.Name(), err)
				}
				if key := t.Name() + definition.GetName(); !reported[key] {
					reported[key] = true
					r.report("%s: deleted the definition %s of a test", t.Name(), definition.GetName())
				}
				left = append(left, fmt.Sprintf("the definition %s of cluster %s", definition.GetName(), t.Name()))
			}
		}
		return left, nil
	})
}

// isUsed reports whether objects of a kind exist that are not those of tests.
func (t target) isUsed(ctx context.Context, kind schema.GroupVersionResource) (bool, error) {
	objects, err := t.dynamic.Resource(kind).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // its definition is being deleted
	}
	if err != nil {
		return false, fmt.Errorf("list %s of cluster %s: %w", kind.Resource, t.Name(), err)
	}
	return slices.ContainsFunc(objects.Items, func(object unstructured.Unstructured) bool {
		return !isTests(object.GetName(), foreignObjects) && !isTests(object.GetNamespace(), namespaces)
	}), nil
}

// foreignKind returns the resource of a definition, and whether tests create the definition.
func foreignKind(definition *unstructured.Unstructured) (kind schema.GroupVersionResource, foreign bool) {
	spec := definition.Object
	kind.Group, _, _ = unstructured.NestedString(spec, "spec", "group")
	kind.Resource, _, _ = unstructured.NestedString(spec, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(spec, "spec", "versions")
	for _, version := range versions {
		if version, ok := version.(map[string]any); ok && version["served"] == true {
			kind.Version, _ = version["name"].(string)
		}
	}
	switch {
	case kind.Group == "storage.liqo.io": // the driver's own
		return kind, false
	case kind.Group == "metrics.k8s.io":
		return kind, strings.Contains(definition.GetAnnotations()["api-approved.kubernetes.io"], "for tests")
	default:
		return kind, strings.HasSuffix(kind.Group, ".liqo.io") || kind.Group == "kosmos.io"
	}
}
