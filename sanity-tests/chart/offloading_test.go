package chart

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const mutating = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"

func offloading(settings Values) Values {
	settings["enabled"] = true
	return Values{"fabric": settings}
}

// Where no policy can change pods, one that only validates them would refuse every pod.
func TestPodsAreMutatedWhereKubernetesSupportsIt(t *testing.T) {
	for name, one := range map[string]struct {
		values      Values
		apiVersions string
		changed     bool
	}{
		"by default":             {offloading(Values{}), mutating, true},
		"not with Kubernetes 35": {offloading(Values{}), "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy", false},
		"enabled":                {offloading(Values{"policies": true}), "v1", true},
		"disabled":               {offloading(Values{"policies": false}), mutating, false},
		"without the fabric":     {nil, mutating, false},
		"in a remote cluster":    {remote("fabric"), mutating, false},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := helm(t).RenderFor(t.Context(), Release, Namespace, one.apiVersions, one.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"Mutating", "Validating"} {
				rendered := bytes.Contains(text, []byte("kind: "+kind+"AdmissionPolicy\nmetadata:\n  name: offloaded-pods.storage.liqo.io"))
				if rendered != one.changed {
					t.Errorf("a %sAdmissionPolicy is rendered: %t", kind, rendered)
				}
			}
		})
	}
}

// Kubernetes counts the nodes of a DaemonSet by its template.
func TestDaemonSetsAreKeptOffVirtualNodesIfEnabled(t *testing.T) {
	const name = "daemonsets.storage.liqo.io"
	asked := offloading(Values{"policies": true, "keepDaemonSetsOff": true})
	policy := named[*admissionv1.MutatingAdmissionPolicy](t, render(t, asked), name)
	if *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Error("an error of the policy refuses DaemonSets")
	}
	expression := policy.Spec.Mutations[0].JSONPatch.Expression
	if !strings.Contains(expression, "'/spec/template/spec/affinity'") || strings.Contains(expression, "'/spec/affinity") ||
		strings.Contains(expression, "object.spec.affinity") {
		t.Errorf("the policy does not change the pod template: %s", expression)
	}
	if binding := named[*admissionv1.MutatingAdmissionPolicyBinding](t, render(t, asked), name); binding.Spec.PolicyName != name {
		t.Error("the policy has no binding")
	}
	for what, values := range map[string]Values{"by default": {"policies": true}, "impossible": {"policies": false, "keepDaemonSetsOff": true}} {
		text, err := helm(t).RenderFor(t.Context(), Release, Namespace, "v1", offloading(values))
		if (err != nil) != (what == "impossible") || bytes.Contains(text, []byte(name)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFailurePolicyOfPodPolicies(t *testing.T) {
	objects := render(t, offloading(Values{"policies": true}))
	for _, name := range []string{"offloaded-pods.storage.liqo.io", "avoided-clusters.storage.liqo.io", "other-pods.storage.liqo.io", "copied-marks-of-pods.storage.liqo.io"} {
		policy := named[*admissionv1.MutatingAdmissionPolicy](t, objects, name)
		if *policy.Spec.FailurePolicy != admissionv1.Ignore || policy.Spec.ReinvocationPolicy != admissionv1.IfNeededReinvocationPolicy {
			t.Errorf("%s: %s, %s", name, *policy.Spec.FailurePolicy, policy.Spec.ReinvocationPolicy)
		}
		if binding := named[*admissionv1.MutatingAdmissionPolicyBinding](t, objects, name); binding.Spec.PolicyName != name {
			t.Errorf("%s has no binding", name)
		}
	}
	// Before the fabric deletes a pod that cannot run, it checks that the next one avoids the
	// cluster.
	rights{"liqo-csi-fabric", objects}.check(t, true, "get mutatingadmissionpolicybindings.admissionregistration.k8s.io/avoided-clusters.storage.liqo.io",
		"patch namespaceoffloadings.offloading.liqo.io:status")
	avoids := named[*admissionv1.MutatingAdmissionPolicyBinding](t, objects, "avoided-clusters.storage.liqo.io").Spec.ParamRef
	if avoids.Name != "offloading" || *avoids.ParameterNotFoundAction != admissionv1.AllowAction {
		t.Errorf("the avoided clusters are read from %v", avoids)
	}
	// The controller removes scheduling gates, and a policy restricts it to that.
	for what, values := range map[string]Values{"with gates": offloading(Values{"policies": true}), "without": offloading(Values{"policies": false})} {
		var verbs []string
		objects := render(t, values)
		for _, rule := range named[*rbacv1.ClusterRole](t, objects, "liqo-csi-controller").Rules {
			if slices.Contains(rule.Resources, "pods") {
				verbs = append(verbs, rule.Verbs...)
			}
		}
		if slices.Contains(verbs, "patch") != (what == "with gates") {
			t.Errorf("%s the controller may %v pods", what, verbs)
		}
		if what == "with gates" {
			isBound(t, objects, "controller-pods.storage.liqo.io")
		}
	}
	// These policies do not apply to pods of namespaces that are not offloaded.
	for name, missing := range map[string]admissionv1.ParameterNotFoundActionType{
		"offloaded-pods.storage.liqo.io":                              admissionv1.AllowAction,
		"namespace-waits-for-its-namespaceoffloading.storage.liqo.io": admissionv1.DenyAction,
	} {
		isBound(t, objects, name)
		policy := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name)
		if policy.Spec.MatchConstraints.NamespaceSelector.MatchLabels["liqo.io/scheduling-enabled"] != "true" {
			t.Errorf("%s is for all namespaces", name)
		}
		ref := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects, name).Spec.ParamRef
		if ref.Name != "offloading" || ref.Namespace != "" || *ref.ParameterNotFoundAction != missing {
			t.Errorf("%s: %v", name, ref)
		}
	}
	// Each labelled namespace that is not offloaded is selected by one of two policies.
	isBound(t, objects, "namespace-is-not-offloaded.storage.liqo.io")
	for name, operator := range map[string]metav1.LabelSelectorOperator{
		"namespace-waits-for-its-namespaceoffloading.storage.liqo.io": metav1.LabelSelectorOpDoesNotExist,
		"namespace-is-not-offloaded.storage.liqo.io":                  metav1.LabelSelectorOpExists,
	} {
		selector := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec.MatchConstraints.NamespaceSelector
		wanted := []metav1.LabelSelectorRequirement{{Key: "fabric.storage.liqo.io/not-offloaded", Operator: operator}}
		if selector.MatchLabels["liqo.io/scheduling-enabled"] != "true" || !reflect.DeepEqual(selector.MatchExpressions, wanted) {
			t.Errorf("%s is for namespaces with %v", name, selector)
		}
	}
	warns := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects, "offloaded-pods-stay.storage.liqo.io").Spec.ValidationActions
	if !slices.Equal(warns, []admissionv1.ValidationAction{admissionv1.Warn}) {
		t.Errorf("a narrower strategy: %v", warns)
	}
}

// Controllers ignore warnings, so the policy checks their templates and the pods that users create.
func TestRequiredPodAffinityCausesAWarning(t *testing.T) {
	const name = "pod-affinity.storage.liqo.io"
	objects := render(t, offloading(Values{"policies": true}))
	policy := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec
	var validated []string
	for _, rule := range policy.MatchConstraints.ResourceRules {
		validated = append(validated, rule.Resources...)
	}
	if !slices.Equal(validated, []string{"pods", "deployments", "replicasets", "statefulsets", "jobs", "cronjobs"}) {
		t.Errorf("it matches %v", validated)
	}
	if *policy.FailurePolicy != admissionv1.Ignore || policy.MatchConstraints.NamespaceSelector.MatchLabels["liqo.io/scheduling-enabled"] != "true" {
		t.Errorf("%s in %v", *policy.FailurePolicy, policy.MatchConstraints.NamespaceSelector)
	}
	binding := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects, name).Spec
	if binding.PolicyName != name || *binding.ParamRef.ParameterNotFoundAction != admissionv1.AllowAction ||
		!slices.Equal(binding.ValidationActions, []admissionv1.ValidationAction{admissionv1.Warn}) {
		t.Errorf("it is bound as %v", binding)
	}
}

// A pod that every remote cluster refuses would be Pending forever, and its volumes would be in the
// wrong cluster.
func TestPodsThatRemoteClustersRefuseAreNotOffloaded(t *testing.T) {
	remotePolicy := named[*admissionv1.ValidatingAdmissionPolicy](t, render(t, remote("fabric")), "liqo-csi-remote.liqo-csi-pods")
	objects := render(t, offloading(Values{"policies": true}))
	const name = "offloaded-pods.storage.liqo.io"
	for kind, variables := range map[string][]admissionv1.Variable{
		"mutating":   named[*admissionv1.MutatingAdmissionPolicy](t, objects, name).Spec.Variables,
		"validating": named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec.Variables,
	} {
		expressions := map[string]string{}
		for _, one := range variables {
			if expressions[one.Name] != "" {
				t.Errorf("%s: two variables are named %s", kind, one.Name)
			}
			expressions[one.Name] = one.Expression
		}
		var others []string
		for _, one := range remotePolicy.Spec.Validations {
			if !strings.Contains(expressions["whyRefused"], "!("+one.Expression+") ?") {
				others = append(others, one.Message)
			}
		}
		for _, about := range []string{"only in the namespaces", "hostNetwork", "hostPath", "service account", "nodeName", "priority"} {
			others = slices.DeleteFunc(others, func(message string) bool { return strings.Contains(message, about) })
		}
		// Remote pods have another service account, no node and another priority. Pods that use
		// namespaces of their node stay at home anyway.
		if len(others) > 0 || !strings.Contains(expressions["sent"], "variables.whyRefused == ''") {
			t.Errorf("%s: pods are offloaded that remote clusters refuse: %s", kind, others)
		}
	}
}

func TestRuntimeClassOfLiqo(t *testing.T) {
	class := named[*nodev1.RuntimeClass](t, render(t, offloading(Values{})), "liqo")
	if class.Handler != "liqo" || class.Scheduling.NodeSelector["liqo.io/type"] != "virtual-node" ||
		class.Scheduling.Tolerations[0].Key != "virtual-node.liqo.io/not-allowed" {
		t.Errorf("%s %v", class.Handler, class.Scheduling)
	}
	for name, values := range map[string]Values{"disabled": offloading(Values{"runtimeClass": false}), "without the fabric": nil} {
		for _, object := range render(t, values) {
			if _, is := object.(*nodev1.RuntimeClass); is {
				t.Errorf("%s: it is rendered", name)
			}
		}
	}
}

// An identity that may patch namespaces could remove their Pod Security label.
func TestFabricMayOnlyLabelNamespaces(t *testing.T) {
	objects := render(t, offloading(Values{"policies": false}))
	fabric := rights{"liqo-csi-fabric", objects}
	fabric.check(t, true, "get,patch namespaces")
	fabric.check(t, false, "create,delete,update namespaces")
	isBound(t, objects, "fabric-labels-namespaces.storage.liqo.io")
}

// The peer of a mover may be in another cluster.
func TestMoversAcceptConnectionsFromOtherClusters(t *testing.T) {
	rule := named[*networkingv1.NetworkPolicy](t, render(t, nil), "liqo-csi-movers").Spec.Ingress
	if len(rule) != 1 || len(rule[0].From) != 0 || len(rule[0].Ports) != 1 || rule[0].Ports[0].Port.IntValue() != 7401 {
		t.Errorf("%v", rule)
	}
}

// Reserved words of CEL cannot be names of variables: the API server refuses the policy.
func TestVariablesAreNoReservedWordsOfCEL(t *testing.T) {
	reserved := strings.Fields("as break const continue else false for function if import in let loop namespace null package return true var void while")
	for _, values := range []Values{offloading(Values{"policies": true}), remote("fabric")} {
		for _, object := range render(t, values) {
			var names []string
			switch policy := object.(type) {
			case *admissionv1.ValidatingAdmissionPolicy:
				for _, variable := range policy.Spec.Variables {
					names = append(names, variable.Name)
				}
			case *admissionv1.MutatingAdmissionPolicy:
				for _, variable := range policy.Spec.Variables {
					names = append(names, variable.Name)
				}
			}
			for _, name := range names {
				if slices.Contains(reserved, name) {
					t.Errorf("a variable is named %s", name)
				}
			}
		}
	}
}
