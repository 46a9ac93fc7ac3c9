// Package clustertest validates CustomResourceDefinitions and objects like an API server.
package clustertest

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Admit fails the test unless the definition is structural and an API server would store the object
// unchanged. It returns the object with defaults.
func Admit(t *testing.T, definition *apiextensionsv1.CustomResourceDefinition, object any) map[string]any {
	t.Helper()
	props := internalSchema(t, definition)
	structural, err := schema.NewStructural(props)
	if err != nil {
		t.Fatalf("%s is not structural: %v", definition.Name, err)
	}
	if errs := schema.ValidateStructural(nil, structural); len(errs) > 0 {
		t.Fatalf("%s is not structural: %v", definition.Name, errs.ToAggregate())
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatalf("convert %T: %v", object, err)
	}
	unknown := pruning.PruneWithOptions(content, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(unknown) > 0 {
		t.Errorf("%s does not have the fields %v", definition.Name, unknown)
	}
	defaulting.Default(content, structural)
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatalf("validator of %s: %v", definition.Name, err)
	}
	if errs := validation.ValidateCustomResource(nil, content, validator); len(errs) > 0 {
		t.Errorf("%s rejects the object: %v", definition.Name, errs.ToAggregate())
	}
	return content
}

func internalSchema(t *testing.T, definition *apiextensionsv1.CustomResourceDefinition) *apiextensions.JSONSchemaProps {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(apiextensions.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	internal := &apiextensions.JSONSchemaProps{}
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		definition.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil)
	if err != nil {
		t.Fatalf("read the schema of %s: %v", definition.Name, err)
	}
	return internal
}
