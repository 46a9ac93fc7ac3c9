package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// Every write of a pod's metadata or status is validated, except for pods without the marks.
func TestOnlyTheFabricWritesItsMarksOnPods(t *testing.T) {
	const name = "fabric-marks-of-pods.storage.liqo.io"
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	isBound(t, objects, name)
	spec := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec
	var validated []string
	for _, rule := range spec.MatchConstraints.ResourceRules {
		validated = append(validated, rule.Resources...)
	}
	for _, resource := range []string{"pods", "pods/status", "pods/binding", "bindings"} {
		if !slices.Contains(validated, resource) {
			t.Errorf("%s may be written by others", resource)
		}
	}
	conditions := spec.MatchConditions
	if len(conditions) != 2 || !strings.Contains(conditions[0].Expression, "system:serviceaccount:liqo-csi:liqo-csi-fabric") {
		t.Errorf("it is not skipped for the fabric and for other pods: %v", conditions)
	}
	if !strings.Contains(spec.Validations[0].Expression, "resource('fabricmarks')") {
		t.Error("administrators are not exempt")
	}
}

// A tenant may write everything of a pod of a virtual node but what keeps it from running twice.
func TestMarksOfPodsAreProtectedFromTenants(t *testing.T) {
	const policy, finalizer = "fabric-marks-of-pods", `"finalizers": ["fabric.storage.liqo.io/remote-pod"]`
	pod := func(metadata, conditions string) string {
		return fmt.Sprintf(`{"metadata": {"name": "web"%s}, "spec": {"containers": [{"name": "a", "image": "a"}]}, "status": {"conditions": [%s]}}`, metadata, conditions)
	}
	const started, ready = `{"type": "fabric.storage.liqo.io/RemotePodStarted", "status": "True"}`, `{"type": "Ready", "status": "True"}`
	claimed := pod(`, `+finalizer+`, "labels": {"liqo.io/shadowPod": "true"}, "annotations": {"fabric.storage.liqo.io/remote-cluster": "rome"}`, started)
	write := func(resource, old, object string) request {
		r := written(resource, plainNamespace("shop"), old, object)
		r.User = "tenant"
		return r
	}
	changed := func(was, is string) string { return strings.Replace(claimed, was, is, 1) }
	allowed := write("pods", claimed, changed(finalizer, `"finalizers": []`))
	allowed.Rights = []string{"write fabricmarks.storage.liqo.io shop"}
	elsewhere := allowed
	elsewhere.Rights = []string{"write fabricmarks.storage.liqo.io other"}
	const binding = `{"metadata": {"name": "web", %s}, "target": {"kind": "Node", "name": "rome"}}`
	checkRequests(t, Values{"fabric": Values{"enabled": true}}, []checkedRequest{
		{"an image", write("pods", claimed, changed(`"image": "a"`, `"image": "b"`)), ""},
		{"a label", write("pods", claimed, changed(`"labels": {`, `"labels": {"a": "b", `)), ""},
		{"a condition", write("pods/status", claimed, changed(started, ready+`, `+started)), ""},
		{"the keys of remote pods", write("pods", "", pod(`, "labels": {"fabric.storage.liqo.io/home": "milan"}, "annotations": {"fabric.storage.liqo.io/carried": "{}"}`, "")), ""},
		{"without the finalizer", write("pods", claimed, changed(finalizer, `"finalizers": []`)), policy},
		{"without any metadata", write("pods", claimed, pod("", started)), policy},
		{"without the finalizer, through the status", write("pods/status", claimed, changed(finalizer, `"finalizers": []`)), policy},
		{"without the finalizer, with the right", allowed, ""},
		{"without the finalizer, with the right elsewhere", elsewhere, policy},
		{"another cluster", write("pods", claimed, changed(`: "rome"`, `: "milan"`)), policy},
		{"another annotation", write("pods", claimed, changed(`"annotations": {`, `"annotations": {"fabric.storage.liqo.io/remote-namespace": "a", `)), policy},
		{"without the label", write("pods", claimed, changed(`"liqo.io/shadowPod": "true"`, "")), policy},
		{"without the condition", write("pods/status", claimed, changed(started, "")), policy},
		{"another status of the condition", write("pods/status", claimed, changed(`"status": "True"`, `"status": "False"`)), policy},
		{"a new pod with the finalizer", write("pods", "", pod(`, `+finalizer, "")), policy},
		{"a new pod with a condition", write("pods", "", pod("", started)), policy},
		{"marks of a pod that has none", write("pods", pod("", ready), claimed), policy},
		{"a binding", write("pods/binding", "", fmt.Sprintf(binding, `"annotations": {"a": "b"}`)), ""},
		{"a binding with an annotation", write("pods/binding", "", fmt.Sprintf(binding, `"annotations": {"fabric.storage.liqo.io/remote-cluster": "a"}`)), policy},
		{"a binding with a label", write("bindings", "", fmt.Sprintf(binding, `"labels": {"fabric.storage.liqo.io/remote-cluster": "a"}`)), policy},
	})
}
