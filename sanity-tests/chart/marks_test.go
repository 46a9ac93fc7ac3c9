package chart

import (
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
