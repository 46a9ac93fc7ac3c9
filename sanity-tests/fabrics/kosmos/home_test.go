package kosmos

import (
	"encoding/base64"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"storage.liqo.io/fabrics/cluster/clustertest"
)

func TestClusterIsValidForTheDefinition(t *testing.T) {
	joined := named("member")
	if err := describe(joined, []byte("any bytes")); err != nil {
		t.Fatal(err)
	}
	definitions, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	admitted := clustertest.Admit(t, definitions[0], joined)
	text, _, err := unstructured.NestedString(admitted, "spec", "kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	if kubeconfig, err := base64.StdEncoding.DecodeString(text); err != nil || string(kubeconfig) != "any bytes" {
		t.Errorf("kubeconfig %q, %v", kubeconfig, err)
	}
}

// The API server must keep fields that only Kosmos writes.
func TestDefinitionKeepsLeafModelsAndSetsDefaults(t *testing.T) {
	full := named("member")
	full.Object["spec"] = map[string]any{
		"clusterLinkOptions": map[string]any{
			"localCIDRs": map[string]any{"ip": "210.0.0.0/8", "ip6": "9480::/16"},
		},
		"clusterTreeOptions": map[string]any{
			"leafModels": []any{map[string]any{
				"leafNodeName": "one",
				"labels":       map[string]any{"zone": "a"},
				"taints":       []any{map[string]any{"key": "k", "effect": "NoSchedule"}},
				"nodeSelector": map[string]any{"labelSelector": map[string]any{"matchLabels": map[string]any{"zone": "a"}}},
			}},
		},
	}
	full.Object["status"] = map[string]any{
		"clusterTreeStatus": map[string]any{"leafNodeItems": []any{map[string]any{"leafNodeName": "one"}}},
	}
	definitions, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	admitted := clustertest.Admit(t, definitions[0], full)
	if namespace, _, _ := unstructured.NestedString(admitted, "spec", "namespace"); namespace != "kosmos-system" {
		t.Errorf("the default namespace is %q", namespace)
	}
}
