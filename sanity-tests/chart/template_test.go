package chart

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// byName returns the documents of rendered text by "kind namespace/name", without those of `helm
// test`.
func byName(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	for _, part := range strings.Split("\n"+string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(part), &object); err != nil {
			t.Fatal(err)
		}
		if object == nil {
			continue
		}
		of := object["metadata"].(map[string]any)
		if marks, _ := of["annotations"].(map[string]any); marks[testHook] == "test" {
			continue
		}
		namespace, _ := of["namespace"].(string)
		name := object["kind"].(string) + " " + namespace + "/" + of["name"].(string)
		if found[name] != nil {
			t.Errorf("%s is rendered twice", name)
		}
		found[name] = object
	}
	return found
}

// helm template, as in docs/gitops.md, renders what helm install creates in a cluster with all API
// versions.
func TestTemplateRendersAllThatHelmInstalls(t *testing.T) {
	page, err := os.ReadFile("../../docs/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(page), "\nhelm ")
	command, _, ends := strings.Cut(command, " > ")
	if !found || !ends {
		t.Fatal("docs/gitops.md has no line helm template … > file")
	}
	h := helm(t)
	template, err := h.run(t.Context(), nil, strings.Fields(strings.Replace(command, "deploy/chart/liqo-csi", h.chart, 1))...)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(template), testHook) {
		t.Error("kubectl would apply hooks")
	}
	got := byName(t, template)

	text, err := cluster(t, map[string]any{}).RenderAt(t.Context(), Release, Namespace, Values{
		"fabric": Values{"enabled": true}, "controller": Values{"snapshotter": Values{"enabled": false}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := byName(t, text)
	delete(want, "Namespace /"+StorageNamespace) // the page creates it
	definitions, err := os.ReadFile(h.chart + "/crds/definitions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, object := range byName(t, definitions) {
		want[name] = object
	}
	for name, object := range want {
		a, _ := yaml.Marshal(object)
		b, _ := yaml.Marshal(got[name])
		if string(a) != string(b) {
			t.Errorf("%s: helm template renders\n%s\nand helm install\n%s", name, b, a)
		}
	}
	for name, object := range got {
		if want[name] == nil {
			t.Errorf("helm install does not create %s", name)
		}
		// Namespaces that the page or Kubernetes creates.
		namespace := strings.Fields(name)[1]
		namespace = namespace[:strings.IndexByte(namespace, '/')]
		there := slices.Contains([]string{"", "kube-system", "kube-node-lease"}, namespace) ||
			strings.Contains(string(page), "kubectl create namespace "+namespace+"\n")
		if !there {
			t.Errorf("%s: its namespace is not created", name)
		}
		// kubectl apply stores the whole object in an annotation.
		if text, _ := yaml.Marshal(object); len(text) > 200_000 {
			t.Errorf("%s has %d bytes, too many for an annotation", name, len(text))
		}
	}
}
