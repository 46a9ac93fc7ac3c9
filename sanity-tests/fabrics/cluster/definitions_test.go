package cluster

import (
	"strings"
	"testing"
)

func TestDefinitionRejectsUnknownFields(t *testing.T) {
	for name, manifest := range map[string]string{
		"another kind":     "apiVersion: v1\nkind: ConfigMap\n",
		"an unknown field": "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec: {scpoe: Cluster}\n",
	} {
		if _, err := Definition([]byte(manifest)); err == nil || !strings.Contains(err.Error(), "CustomResourceDefinition") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
