package offload

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/pki"
)

// projectLabel is what Rancher adds to new namespaces.
const projectLabel = "field.cattle.io/projectId"

// The remote cluster adds a label to new namespaces, as those of Rancher or Capsule do. The namespace is refused until the
// remote chart lists that label. An administrator's label does not hold it when it leaves. A sidecar with a capability, as
// a service mesh injects it, is refused by Pod Security, and the pod at home says so.
func TestWebhooksChangeObjectsOfTheFabric(t *testing.T) {
	n := newExclusiveTenant(t)
	there := user.Cluster(t, "remote")
	startWebhook(t, there, n.Name)
	t.Cleanup(func() {
		if err := shared.access.Apply(user.CleanupContext(t)); err != nil {
			t.Error(err)
		}
	})
	offload := func() error {
		_, err := n.program("offload", "namespace", n.Name, "--namespace-mapping-strategy", "EnforceSameName", "--timeout", "10s")
		return err
	}
	if err := offload(); err == nil {
		t.Error("a label that the remote chart does not list is not refused")
	}
	n.waitCondition("Ready", "CreationLoopBackOff", "no labels but those of its fabric")
	if n.remote(n.Name) != nil {
		user.Violated(t, "the namespace exists there, with a label that an administrator has not allowed")
	}

	if err := shared.access.Upgrade(t.Context(), chart.Values{"namespaceLabels": []string{projectLabel}}); err != nil {
		t.Fatal(err)
	}
	// The API server there takes some time to apply the changed policy.
	n.Eventually("the listed label to be allowed", func(context.Context) (string, error) {
		if err := offload(); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	remote := user.ExistingNamespace(t, there, n.Name)
	if labels := n.remote(n.Name).Labels; labels[projectLabel] != "p-e2e" || labels[podSecurity] != "baseline" {
		t.Errorf("it has the labels %v", labels)
	}
	n.Pod("web", "", stateless)
	n.WaitReady("web")

	n.Pod("meshed", "", stateless, func(pod *corev1.Pod) { pod.Labels["inject"] = "true" })
	n.waitPod("the pod to say that its sidecar is refused", "meshed", func(pod *corev1.Pod) string {
		said := pod.Status.Reason + ": " + pod.Status.Message
		if pod.Status.Reason != "RemoteRefused" || !strings.Contains(said, "NET_ADMIN") && !strings.Contains(said, "capabilit") {
			return "it says " + said
		}
		t.Logf("it says %s", said)
		return ""
	})
	n.DeletePod("meshed")

	label := []byte(`{"metadata": {"labels": {"example.test/owner": "team-a", "` + projectLabel + `": "p-other"}}}`)
	if _, err := remote.Client.CoreV1().Namespaces().Patch(t.Context(), n.Name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Pod("later", "", stateless)
	n.WaitReady("later")
	n.unoffload()
	n.waitRemoteDeleted(n.Name)
}

// startWebhook adds the label to this namespace of a cluster when it is created, and an init container that needs a
// capability to its pods with the label inject, until the test ends.
func startWebhook(t *testing.T, cluster *clusters.Cluster, namespace string) {
	t.Helper()
	url, authority := serveWebhook(t, cluster)
	client, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	all, fail := client.AdmissionregistrationV1().MutatingWebhookConfigurations(), admissionregistrationv1.Fail
	none := admissionregistrationv1.SideEffectClassNone
	hook := func(name, resource, condition string) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{
			Name:         name + ".e2e.storage.test",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}},
			FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "of-this-test", Expression: condition}},
		}
	}
	object := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			hook("namespaces", "namespaces", fmt.Sprintf("object.metadata.name == %q", namespace)),
			hook("pods", "pods", fmt.Sprintf("request.namespace == %q && has(object.metadata.labels) && 'inject' in object.metadata.labels", namespace)),
		},
	}
	if _, err := all.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := all.Delete(user.CleanupContext(t), object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// It is known to the API server when it changes this namespace.
	dry := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	user.ExistingNamespace(t, cluster, namespace).Eventually("the webhook to be called", func(ctx context.Context) (string, error) {
		created, err := client.CoreV1().Namespaces().Create(ctx, dry, dryRunCreate)
		if err != nil || created.Labels[projectLabel] != "" {
			return "", err
		}
		return "it was not", nil
	})
}

// serveWebhook serves for a cluster's API server, and returns the address and the certificate of its authority.
func serveWebhook(t *testing.T, cluster *clusters.Cluster) (address string, authority []byte) {
	t.Helper()
	listener, err := cluster.ListenForAPIServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	certificates := pki.Dir(t.TempDir())
	ca, err := certificates.Authority("ca")
	if err == nil {
		err = ca.Issue(certificates, pki.Request{Name: "server", CommonName: "webhook", Hosts: []string{"127.0.0.1"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certificates.Cert("server"), certificates.Key("server"))
	if err != nil {
		t.Fatal(err)
	}
	if authority, err = os.ReadFile(certificates.Cert("ca")); err != nil {
		t.Fatal(err)
	}
	serving := &http.Server{
		Handler: http.HandlerFunc(mutate), TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = serving.ServeTLS(listener, "", "") }() // until it is closed
	t.Cleanup(func() { _ = serving.Close() })
	return "https://" + listener.Addr().String(), authority
}

func mutate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	// A merge patch would replace lists; labels may be absent.
	var object struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct{ InitContainers []any }
	}
	if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	if review.Request.Kind.Kind == "Namespace" {
		if object.Metadata.Labels == nil {
			patch = append(patch, operation{"add", "/metadata/labels", map[string]string{}})
		}
		patch = append(patch, operation{"add", "/metadata/labels/field.cattle.io~1projectId", "p-e2e"})
	} else {
		if object.Spec.InitContainers == nil {
			patch = append(patch, operation{"add", "/spec/initContainers", []any{}})
		}
		patch = append(patch, operation{"add", "/spec/initContainers/-", map[string]any{
			"name": "mesh-init", "image": "busybox", "securityContext": map[string]any{
				"capabilities": map[string]any{"add": []string{"NET_ADMIN"}},
			},
		}})
	}
	text, err := json.Marshal(patch)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	kind := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: text, PatchType: &kind}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}
