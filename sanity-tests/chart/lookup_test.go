package chart

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// clusterWide are kinds of the chart without a namespace.
var clusterWide = []string{
	"Namespace", "StorageClass", "CSIDriver", "RuntimeClass", "ClusterRole", "ClusterRoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition",
}

// kinds returns the kinds of the client, at their versions without alpha and beta, and
// CustomResourceDefinitions.
func kinds() map[string][]metav1.APIResource {
	found := map[string][]metav1.APIResource{}
	add := func(of schema.GroupVersionKind) {
		plural, _ := meta.UnsafeGuessKindToResource(of)
		version := of.GroupVersion().String()
		found[version] = append(found[version], metav1.APIResource{
			Name: plural.Resource, Kind: of.Kind, Namespaced: !slices.Contains(clusterWide, of.Kind), Verbs: []string{"get"},
		})
	}
	for of := range scheme.Scheme.AllKnownTypes() {
		if of.Version == "v1" {
			add(of)
		}
	}
	add(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return found
}

// cluster is an API server for Helm with these objects, by their paths. It is read-only.
func cluster(t *testing.T, objects map[string]any) *Helm {
	t.Helper()
	objects["/version"] = map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
	objects["/api"] = metav1.APIVersions{Versions: []string{"v1"}}
	system := object("v1", "Namespace", "kube-system", nil)
	system["metadata"].(map[string]any)["uid"] = "uid-of-kube-system"
	objects["/api/v1/namespaces/kube-system"] = system
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for version, resources := range kinds() {
		path := "/api/v1"
		if group, _, is := strings.Cut(version, "/"); is {
			path = "/apis/" + version
			one := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: "v1"}
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{one}, PreferredVersion: one})
		}
		objects[path] = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: resources,
		}
	}
	objects["/apis"] = groups
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		answer.Header().Set("Content-Type", "application/json")
		found, is := objects[request.URL.Path]
		if !is {
			answer.WriteHeader(http.StatusNotFound)
			found = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404}
		}
		_ = json.NewEncoder(answer).Encode(found)
	}))
	t.Cleanup(server.Close)
	of := helm(t)
	of.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, server.URL)
	if err := os.WriteFile(of.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return of
}

func object(version, kind, name string, annotations map[string]string) map[string]any {
	labels := map[string]string{}
	if annotations["meta.helm.sh/release-name"] != "" {
		labels["app.kubernetes.io/managed-by"] = "Helm"
	}
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name, "annotations": annotations, "labels": labels}}
}

const (
	definitionName = "namespaceoffloadings.offloading.liqo.io"
	definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + definitionName
	fabricPath     = "/apis/apps/v1/namespaces/" + Namespace + "/deployments/liqo-csi-fabric"
)

func definition(annotations map[string]string) map[string]any {
	return object("apiextensions.k8s.io/v1", "CustomResourceDefinition", definitionName, annotations)
}

func ofHelm(release string) map[string]string {
	return map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": Namespace}
}

// If the definition of another tool were replaced, all objects would be changed or lost.
func TestOffloadingCRDIsInstalledUnlessItExists(t *testing.T) {
	for name, one := range map[string]struct {
		there   any
		values  Values
		defined bool
	}{
		"it does not exist":       {nil, Values{}, true},
		"it is this release's":    {definition(ofHelm(Release)), Values{}, true},
		"it is Liqo's":            {definition(nil), Values{}, false},
		"it is another release's": {definition(ofHelm("liqo")), Values{}, false},
		"it is not wanted":        {nil, Values{"definition": false}, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := map[string]any{}
			if one.there != nil {
				objects[definitionPath] = one.there
			}
			text, err := cluster(t, objects).RenderAt(t.Context(), Release, Namespace, offloading(one.values))
			if err != nil {
				t.Fatal(err)
			}
			if defines(text) != one.defined {
				t.Errorf("it is defined: %t", defines(text))
			}
			// The annotation for the next upgrade has the same value.
			if marked := strings.Contains(string(text), "storage.liqo.io/defines-offloading"); marked != one.defined {
				t.Errorf("the annotation for the next upgrade exists: %t", marked)
			}
		})
	}
}

// Not even if a value requests it: Helm adopts no objects of others.
func TestOffloadingCRDOfLiqoIsNotOverwritten(t *testing.T) {
	of := cluster(t, map[string]any{definitionPath: definition(nil)})
	_, err := of.RenderAt(t.Context(), Release, Namespace, offloading(Values{"definition": true}))
	if err == nil || !strings.Contains(err.Error(), "cannot be imported into the current release") {
		t.Errorf("got %v", err)
	}
}

func defines(text []byte) bool {
	return strings.Contains(string(text), "kind: CustomResourceDefinition\nmetadata:\n  name: "+definitionName+"\n  annotations:\n    helm.sh/resource-policy: keep\n")
}

// Tools that render without a cluster, such as Argo CD, need a value.
func TestOffloadingCRDIsRenderedWithoutACluster(t *testing.T) {
	for name, one := range map[string]struct {
		values  Values
		defined bool
	}{
		"with the fabric": {offloading(Values{}), true},
		"where it is not": {offloading(Values{"definition": false}), false},
		"without it":      {nil, false},
		"remotely":        {remote("fabric"), false},
	} {
		text, err := helm(t).Render(t.Context(), Release, Namespace, one.values)
		if err != nil {
			t.Fatal(err)
		}
		if defines(text) != one.defined {
			t.Errorf("%s: it is defined: %t", name, defines(text))
		}
	}
}

// Helm reads the existing object, and deletes it unless an annotation of that object prevents it.
func TestOffloadingCRDThatReplacedOursIsNotDeleted(t *testing.T) {
	annotations := ofHelm(Release)
	annotations["storage.liqo.io/defines-offloading"] = "true"
	fabric := object("apps/v1", "Deployment", "liqo-csi-fabric", annotations)
	for _, values := range []Values{offloading(Values{}), nil} {
		_, err := cluster(t, map[string]any{definitionPath: definition(nil), fabricPath: fabric}).RenderAt(t.Context(), Release, Namespace, values)
		if err == nil || !strings.Contains(err.Error(), "kubectl annotate crd "+definitionName+" helm.sh/resource-policy=keep") {
			t.Errorf("got %v", err)
		}
		kept := definition(map[string]string{"helm.sh/resource-policy": "keep"})
		if _, err := cluster(t, map[string]any{definitionPath: kept, fabricPath: fabric}).RenderAt(t.Context(), Release, Namespace, values); err != nil {
			t.Error(err)
		}
	}
}

// Deleting the namespace deletes all data, so it is in no manifest of the release.
func TestNamespaceOfTheTwinsIsCreatedAndKept(t *testing.T) {
	for _, isThere := range []bool{false, true} {
		objects := map[string]any{}
		if isThere {
			objects["/api/v1/namespaces/"+StorageNamespace] = object("v1", "Namespace", StorageNamespace, ofHelm(Release))
		}
		text, err := cluster(t, objects).RenderAt(t.Context(), Release, Namespace, nil)
		if err != nil {
			t.Fatal(err)
		}
		if createsNamespace(text) == isThere {
			t.Errorf("created: %t, existed before: %t", !isThere, isThere)
		}
	}
	for side, values := range map[string]Values{"home": nil, "remote": remote("full")} {
		text, err := helm(t).Render(t.Context(), Release, Namespace, values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "kind: Namespace\n") {
			t.Errorf("%s: helm template renders a namespace", side)
		}
	}
}

// helm upgrade with --set alone resets all other values, and volumes of another id or namespace would not be found.
func TestIdAndNamespaceOfVolumesAreKeptByUpgrades(t *testing.T) {
	for name, one := range map[string]struct {
		args   []any
		values Values
		says   string
	}{
		"nothing set":       {[]any{"--storage-namespace=liqo-storage"}, Values{"logLevel": "debug"}, ""},
		"the same":          {[]any{"--storage-namespace=twins", "--cluster-id=rome"}, Values{"clusterID": "rome", "storageNamespace": "twins"}, ""},
		"its id, named":     {[]any{"--storage-namespace=liqo-storage"}, Values{"clusterID": "uid-of-kube-system"}, ""},
		"id is lost":        {[]any{"--storage-namespace=liqo-storage", "--cluster-id=rome"}, nil, "clusterID of this release is rome, and would be uid-of-kube-system"},
		"another id":        {[]any{"--storage-namespace=liqo-storage"}, Values{"clusterID": "rome"}, "clusterID of this release is uid-of-kube-system, and would be rome"},
		"namespace is lost": {[]any{"--storage-namespace=twins"}, nil, "storageNamespace of this release is twins, and would be liqo-storage"},
	} {
		deployment := object("apps/v1", "Deployment", "liqo-csi-controller", ofHelm(Release))
		deployment["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "driver", "args": append([]any{"controller"}, one.args...)}},
		}}}
		helm := cluster(t, map[string]any{"/apis/apps/v1/namespaces/" + Namespace + "/deployments/liqo-csi-controller": deployment})
		_, err := helm.RenderAt(t.Context(), Release, Namespace, one.values)
		if one.says == "" && err != nil || one.says != "" && (err == nil || !strings.Contains(err.Error(), one.says)) {
			t.Errorf("%s: want %q, got %v", name, one.says, err)
		}
	}
}

// Without that, the DaemonSet gets no pods, and --wait ends after minutes without the reason.
func TestNamespaceThatAdmitsNoPrivilegedPodsIsRefused(t *testing.T) {
	for level, refused := range map[string]bool{"": false, "privileged": false, "baseline": true, "restricted": true} {
		namespace := object("v1", "Namespace", Namespace, nil)
		if level != "" {
			namespace["metadata"].(map[string]any)["labels"] = map[string]string{"pod-security.kubernetes.io/enforce": level}
		}
		helm := cluster(t, map[string]any{"/api/v1/namespaces/" + Namespace: namespace})
		_, err := helm.RenderAt(t.Context(), Release, Namespace, nil)
		says := "kubectl label namespace " + Namespace + " pod-security.kubernetes.io/enforce=privileged --overwrite"
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), says) {
			t.Errorf("level %q: %v", level, err)
		}
		// The identity of a home cluster has no pods.
		if _, err := helm.RenderAt(t.Context(), Release, Namespace, remote("full")); err != nil {
			t.Errorf("level %q, remoteAccess.only: %v", level, err)
		}
	}
}

// Without a delete policy, Helm deletes the object of a hook before it creates it.
func createsNamespace(text []byte) bool {
	return strings.Contains(string(text), "kind: Namespace\nmetadata:\n  name: "+StorageNamespace+"\n  annotations:\n"+
		"    helm.sh/hook: pre-install,pre-upgrade\n    helm.sh/hook-delete-policy: hook-failed\n")
}

// The fabric of another cluster can read all Secrets of the namespaces that it has created.
func TestReleaseIsRefusedInNamespacesOfOtherClusters(t *testing.T) {
	for name, one := range map[string]struct {
		values    Values
		namespace string
		refused   bool
	}{
		"the driver":              {nil, Namespace, true},
		"its twins":               {nil, StorageNamespace, true},
		"the identity of another": {RemoteValues("full", homeID), Namespace, true},
		"no twins there":          {RemoteValues("full", homeID), StorageNamespace, false},
	} {
		t.Run(name, func(t *testing.T) {
			created := object("v1", "Namespace", one.namespace, nil)
			created["metadata"].(map[string]any)["labels"] = map[string]string{"fabric.storage.liqo.io/home": "milan"}
			_, err := cluster(t, map[string]any{"/api/v1/namespaces/" + one.namespace: created}).RenderAt(t.Context(), Release, Namespace, one.values)
			if (err != nil) != one.refused || err != nil && !strings.Contains(err.Error(), "was created by the fabric of the home cluster milan") {
				t.Errorf("%v", err)
			}
		})
	}
}
