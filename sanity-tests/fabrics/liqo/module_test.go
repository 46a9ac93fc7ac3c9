package liqo

import (
	"slices"
	"testing"
)

func TestDefinitionsAreFromLiqosModule(t *testing.T) {
	definitions, err := Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, definition := range definitions {
		kinds = append(kinds, definition.Spec.Group+"/"+definition.Spec.Versions[0].Name+"/"+definition.Spec.Names.Kind)
	}
	want := []string{
		"authentication.liqo.io/v1beta1/Identity",
		"offloading.liqo.io/v1beta1/NamespaceMap",
		"offloading.liqo.io/v1beta1/NamespaceOffloading",
		"offloading.liqo.io/v1beta1/VirtualNode",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
}

func TestRemoteRulesAllowClaimsButNoClusterScopedObjects(t *testing.T) {
	rules, err := remoteRules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string][]string{}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			verbs[resource] = append(verbs[resource], rule.Verbs...)
		}
	}
	for _, verb := range []string{"create", "delete", "get", "list", "patch", "update", "watch"} {
		if !slices.Contains(verbs["persistentvolumeclaims"], verb) {
			t.Errorf("claims do not have the verb %s", verb)
		}
	}
	for _, resource := range []string{"persistentvolumes", "storageclasses", "nodes", "resourcequotas"} {
		if len(verbs[resource]) > 0 {
			t.Errorf("%s: %v", resource, verbs[resource])
		}
	}
}
