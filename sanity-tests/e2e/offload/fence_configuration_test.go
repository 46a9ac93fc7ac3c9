package offload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const onlyInFabric = "ConfigMaps, Secrets and Services only in the namespaces of its fabric"

func servicesAreRestricted(t *testing.T, client kubernetes.Interface, own, other string) {
	service := func(edit func(*corev1.ServiceSpec)) *corev1.Service {
		created := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "restricted"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}
		edit(&created.Spec)
		return created
	}
	plain := func(*corev1.ServiceSpec) {}
	for what, one := range map[string]struct {
		namespace string
		edit      func(*corev1.ServiceSpec)
		words     string
	}{
		"a plain one":    {own, plain, ""},
		"a headless one": {own, func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone }, ""},
		"a name": {own, func(spec *corev1.ServiceSpec) {
			spec.Type, spec.ExternalName = corev1.ServiceTypeExternalName, "a.test"
		}, "may not be of type ExternalName"},
		"addresses":         {own, func(spec *corev1.ServiceSpec) { spec.ExternalIPs = []string{"192.0.2.1"} }, "externalIPs"},
		"a node's port":     {own, func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }, "may not be of type NodePort"},
		"a load balancer":   {own, func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeLoadBalancer }, "NodePort or LoadBalancer"},
		"another namespace": {other, plain, onlyInFabric},
		"kube-system":       {"kube-system", plain, onlyInFabric},
	} {
		_, err := client.CoreV1().Services(one.namespace).Create(t.Context(), service(one.edit), dryRunCreate)
		checkOutcome(t, what, err, one.words)
	}
	services := client.CoreV1().Services(own)
	if _, err := services.Create(t.Context(), service(plain), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := services.Patch(t.Context(), "restricted", types.MergePatchType, []byte(`{"spec": {"type": "NodePort"}}`), metav1.PatchOptions{})
	checkOutcome(t, "a change", err, "may not be of type NodePort")
	checkOutcome(t, "the API server's", client.CoreV1().Services("default").Delete(t.Context(), "kubernetes", dryRunDelete), onlyInFabric)
}

func secretsAreRestricted(t *testing.T, client, admin kubernetes.Interface, own, other string) {
	secret := func(of corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "restricted", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
			Type:       of,
		}
	}
	const refusal = "may have no Secrets of the types"
	for what, one := range map[string]struct {
		namespace string
		of        corev1.SecretType
		words     string
	}{
		"a plain one":       {own, corev1.SecretTypeOpaque, ""},
		"without a type":    {own, "", ""},
		"a token":           {own, corev1.SecretTypeServiceAccountToken, refusal},
		"for nodes to join": {own, "bootstrap.kubernetes.io/token", refusal},
		"another namespace": {other, corev1.SecretTypeOpaque, onlyInFabric},
		"kube-system":       {"kube-system", corev1.SecretTypeOpaque, onlyInFabric},
	} {
		_, err := client.CoreV1().Secrets(one.namespace).Create(t.Context(), secret(one.of), dryRunCreate)
		checkOutcome(t, what, err, one.words)
	}
	// The fabric must not delete Secrets of administrators.
	if _, err := admin.CoreV1().Secrets(own).Create(t.Context(), secret(corev1.SecretTypeServiceAccountToken), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	checkOutcome(t, "delete a token", client.CoreV1().Secrets(own).Delete(t.Context(), "restricted", metav1.DeleteOptions{}), refusal)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "restricted"}}
	for namespace, words := range map[string]string{own: "", other: onlyInFabric, "kube-system": onlyInFabric} {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), config, dryRunCreate)
		checkOutcome(t, "a ConfigMap in "+namespace, err, words)
	}
}
