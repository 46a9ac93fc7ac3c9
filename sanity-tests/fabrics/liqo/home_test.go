package liqo

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	offloadingv1beta1 "github.com/liqotech/liqo/apis/offloading/v1beta1"
	"github.com/liqotech/liqo/pkg/utils/kubeconfig"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"storage.liqo.io/fabrics/cluster"
	"storage.liqo.io/fabrics/cluster/clustertest"
)

// fakeHome returns an in-memory home cluster with Liqo's kinds.
func fakeHome(t *testing.T) Home {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, offloadingv1beta1.AddToScheme, authv1beta1.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	c := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&offloadingv1beta1.VirtualNode{}, &offloadingv1beta1.NamespaceMap{}, &authv1beta1.Identity{}).Build()
	return Home{cluster.Cluster{Client: c, Config: &rest.Config{Host: "memory"}}}
}

func remoteKubeconfig(t *testing.T, server string) []byte {
	t.Helper()
	content, err := kubeconfig.GenerateKubeconfig("user", "remote", server, []byte("ca"), []byte("certificate"), []byte("key"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func peer(t *testing.T, h Home, p Peering) {
	t.Helper()
	if err := h.enforce(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func get[T client.Object](t *testing.T, h Home, namespace, name string, object T) T {
	t.Helper()
	if err := h.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// The driver follows the references from the Node to the VirtualNode and its Secret.
func TestPeerReferencesKubeconfigFromNode(t *testing.T) {
	h := fakeHome(t)
	content := remoteKubeconfig(t, "https://remote")
	peer(t, h, Peering{ClusterID: "torino", Node: "torino-1", Kubeconfig: content, StorageClasses: []string{"fast", "slow"}})

	node := get(t, h, "liqo-tenant-torino", "torino-1", &offloadingv1beta1.VirtualNode{})
	secret := get(t, h, node.Namespace, node.Spec.KubeconfigSecretRef.Name, &corev1.Secret{})
	if !bytes.Equal(secret.Data["kubeconfig"], content) {
		t.Error("the Secret has another kubeconfig")
	}
	if secret.Labels["liqo.io/remote-cluster-id"] != "torino" || secret.Labels["liqo.io/identity-type"] != "ResourceSlice" {
		t.Errorf("labels of the Secret: %v", secret.Labels)
	}
	if classes := node.Spec.StorageClasses; len(classes) != 2 || !classes[0].Default || classes[1].Default {
		t.Errorf("storage classes: %+v", classes)
	}
	identity := get(t, h, node.Namespace, "resourceslice-torino-1", &authv1beta1.Identity{})
	if identity.Status.KubeconfigSecretRef == nil || identity.Status.KubeconfigSecretRef.Name != secret.Name {
		t.Errorf("the Identity refers to %v, not to %s", identity.Status.KubeconfigSecretRef, secret.Name)
	}
	if identity.Spec.AuthParams.APIServer != "https://remote" {
		t.Errorf("the Identity has the API server %q", identity.Spec.AuthParams.APIServer)
	}
	tenant := get(t, h, "", node.Namespace, &corev1.Namespace{})
	if tenant.Labels["liqo.io/tenant-namespace"] != "true" || tenant.Labels["liqo.io/remote-cluster-id"] != "torino" {
		t.Errorf("labels of the tenant namespace: %v", tenant.Labels)
	}
}

func TestObjectsAreValidForLiqosDefinitions(t *testing.T) {
	h := fakeHome(t)
	peer(t, h, Peering{ClusterID: "torino", Node: "torino", Kubeconfig: remoteKubeconfig(t, "https://remote"), StorageClasses: []string{"fast"}, ProxyURL: "http://proxy"})
	if err := h.Map(t.Context(), "torino", Mapping{"shop", "shop-home", offloadingv1beta1.MappingAccepted}); err != nil {
		t.Fatal(err)
	}
	definitions, err := Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]any{
		"VirtualNode":  get(t, h, "liqo-tenant-torino", "torino", &offloadingv1beta1.VirtualNode{}),
		"NamespaceMap": get(t, h, "liqo-tenant-torino", "torino", &offloadingv1beta1.NamespaceMap{}),
		"Identity":     get(t, h, "liqo-tenant-torino", "resourceslice-torino", &authv1beta1.Identity{}),
	}
	for _, definition := range definitions {
		object, made := objects[definition.Spec.Names.Kind]
		if made {
			clustertest.Admit(t, definition, object)
			delete(objects, definition.Spec.Names.Kind)
		}
	}
	if len(objects) > 0 {
		t.Errorf("without definition: %v", objects)
	}
}

func TestInvalidKubeconfigIsKept(t *testing.T) {
	h := fakeHome(t)
	peer(t, h, Peering{ClusterID: "torino", Node: "torino", Kubeconfig: []byte("{{{")})
	secret := get(t, h, "liqo-tenant-torino", "kubeconfig-resourceslice-torino", &corev1.Secret{})
	if string(secret.Data["kubeconfig"]) != "{{{" {
		t.Errorf("got %q", secret.Data["kubeconfig"])
	}
}

func TestProxyIsWrittenToTheKubeconfig(t *testing.T) {
	h := fakeHome(t)
	peer(t, h, Peering{ClusterID: "torino", Node: "torino", Kubeconfig: remoteKubeconfig(t, "https://remote"), ProxyURL: "http://10.0.0.1:3128"})
	secret := get(t, h, "liqo-tenant-torino", "kubeconfig-resourceslice-torino", &corev1.Secret{})
	if !strings.Contains(string(secret.Data["kubeconfig"]), "proxy-url: http://10.0.0.1:3128") {
		t.Errorf("no proxy in:\n%s", secret.Data["kubeconfig"])
	}
}

func TestRotateUpdatesTheSecretOfEveryNode(t *testing.T) {
	h := fakeHome(t)
	for _, node := range []string{"torino-1", "torino-2"} {
		peer(t, h, Peering{ClusterID: "torino", Node: node, Kubeconfig: remoteKubeconfig(t, "https://old"), TenantNamespace: "peers"})
	}
	peer(t, h, Peering{ClusterID: "milano", Node: "milano", Kubeconfig: remoteKubeconfig(t, "https://milano")})
	renewed := remoteKubeconfig(t, "https://new")
	if err := h.Rotate(t.Context(), "torino", renewed); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"torino-1", "torino-2"} {
		if secret := get(t, h, "peers", "kubeconfig-resourceslice-"+node, &corev1.Secret{}); !bytes.Equal(secret.Data["kubeconfig"], renewed) {
			t.Errorf("node %s has the old kubeconfig", node)
		}
	}
	other := get(t, h, "liqo-tenant-milano", "kubeconfig-resourceslice-milano", &corev1.Secret{})
	if bytes.Equal(other.Data["kubeconfig"], renewed) {
		t.Error("another cluster was rotated too")
	}
	if err := h.Rotate(t.Context(), "roma", renewed); err == nil || !strings.Contains(err.Error(), "roma is not peered with") {
		t.Errorf("rotating a cluster without peering: %v", err)
	}
}

func TestMappingsArePerNamespace(t *testing.T) {
	h := fakeHome(t)
	peer(t, h, Peering{ClusterID: "torino", Node: "torino"})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(h.Map(t.Context(), "torino", Mapping{"a", "a-home", offloadingv1beta1.MappingAccepted}, Mapping{"b", "b-home", Requested}))
	must(h.Map(t.Context(), "torino", Mapping{"c", "c-home", offloadingv1beta1.MappingTerminating}))
	must(h.Unmap(t.Context(), "torino", "a"))
	peer(t, h, Peering{ClusterID: "torino", Node: "torino"}) // keeps mappings

	got := get(t, h, "liqo-tenant-torino", "torino", &offloadingv1beta1.NamespaceMap{})
	if want := map[string]string{"b": "b-home", "c": "c-home"}; !maps.Equal(got.Spec.DesiredMapping, want) {
		t.Errorf("desired: %v, want %v", got.Spec.DesiredMapping, want)
	}
	want := map[string]offloadingv1beta1.RemoteNamespaceStatus{"c": {RemoteNamespace: "c-home", Phase: offloadingv1beta1.MappingTerminating}}
	if !maps.Equal(got.Status.CurrentMapping, want) {
		t.Errorf("current: %v, want %v", got.Status.CurrentMapping, want)
	}
}

func TestUnpeerKeepsOtherClusters(t *testing.T) {
	h := fakeHome(t)
	peer(t, h, Peering{ClusterID: "torino", Node: "torino"})
	peer(t, h, Peering{ClusterID: "milano", Node: "milano"})
	if err := h.Unpeer(t.Context(), "torino"); err != nil {
		t.Fatal(err)
	}
	get(t, h, "liqo-tenant-milano", "milano", &offloadingv1beta1.VirtualNode{})
	key := client.ObjectKey{Namespace: "liqo-tenant-torino", Name: "torino"}
	if err := h.Get(t.Context(), key, &offloadingv1beta1.VirtualNode{}); !apierrors.IsNotFound(err) {
		t.Errorf("the VirtualNode of the cluster: %v", err)
	}
	if err := h.Get(t.Context(), client.ObjectKey{Name: "liqo-tenant-torino"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("its tenant namespace: %v", err)
	}
}

func TestParseMapping(t *testing.T) {
	for text, want := range map[string]Mapping{
		"a=b":             {"a", "b", offloadingv1beta1.MappingAccepted},
		"a=b:Terminating": {"a", "b", offloadingv1beta1.MappingTerminating},
		"a=b:Requested":   {"a", "b", Requested},
		"a":               {},
		"=b":              {},
		"a=b:Lost":        {},
		"a=b:":            {},
	} {
		if got, err := ParseMapping(text); got != want || (err != nil) != (want == Mapping{}) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}
