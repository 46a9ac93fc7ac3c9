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

// liqoNamespace is where Liqo itself is, if it is installed.
const liqoNamespace = "liqo"

// removeDefinitions removes the kinds of Liqo, Kosmos and metrics-server that tests define, if all
// objects of a kind are the tests'. They would decide what the next suite finds: Liqo's definition
// of NamespaceOffloadings differs from the driver's, which is never put over another one.
func (r *reset) removeDefinitions(ctx context.Context) error {
	reported := map[string]bool{}
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, one := range r.targets {
			if real, err := one.hasNamespace(ctx, liqoNamespace); err != nil || real {
				if err != nil {
					return nil, err
				}
				continue
			}
			all := one.dynamic.Resource(definitions)
			found, err := all.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list the definitions of cluster %s: %w", one.Name(), err)
			}
			for _, definition := range found.Items {
				kind, foreign := foreignKind(&definition)
				if !foreign {
					continue
				}
				used, err := one.isUsed(ctx, kind)
				if err != nil {
					return nil, err
				}
				if used {
					continue
				}
				if err := remove(ctx, all, definition.GetName()); err != nil {
					return nil, fmt.Errorf("delete the definition %s of cluster %s: %w", definition.GetName(), one.Name(), err)
				}
				if key := one.Name() + definition.GetName(); !reported[key] {
					reported[key] = true
					r.report("%s: the definition %s was left: removed", one.Name(), definition.GetName())
				}
				left = append(left, fmt.Sprintf("the definition %s of cluster %s", definition.GetName(), one.Name()))
			}
		}
		return left, nil
	})
}

// isUsed says whether there are objects of a kind that are not the tests'.
func (t target) isUsed(ctx context.Context, kind schema.GroupVersionResource) (bool, error) {
	objects, err := t.dynamic.Resource(kind).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // its definition is on its way out
	}
	if err != nil {
		return false, fmt.Errorf("list %s of cluster %s: %w", kind.Resource, t.Name(), err)
	}
	return slices.ContainsFunc(objects.Items, func(object unstructured.Unstructured) bool {
		return !isTests(object.GetName(), foreignObjects) && !isTests(object.GetNamespace(), namespaces)
	}), nil
}

// foreignKind is the kind that a definition serves, if tests define it.
func foreignKind(definition *unstructured.Unstructured) (kind schema.GroupVersionResource, foreign bool) {
	spec := definition.Object
	kind.Group, _, _ = unstructured.NestedString(spec, "spec", "group")
	kind.Resource, _, _ = unstructured.NestedString(spec, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(spec, "spec", "versions")
	for _, version := range versions {
		if version, is := version.(map[string]any); is && version["served"] == true {
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
