// Command policies evaluates ValidatingAdmissionPolicies for requests, with the API server's code
// but without an API server: it reads a Question from standard input, and writes for each request
// the messages of the policies that refuse it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
)

type Question struct {
	Policies []v1.ValidatingAdmissionPolicy
	Requests []Request
}

// Request is a request of a user. For a Namespace object, Namespace is that object.
type Request struct {
	User      string
	Groups    []string
	Operation admission.Operation
	// Resource is a plural name with its group, such as volumesnapshots.snapshot.storage.k8s.io. A
	// subresource follows after a slash.
	Resource string
	// Name is that of the object. Only requests without an object need it, such as CONNECT.
	Name              string
	Object, OldObject map[string]any
	Namespace         *corev1.Namespace
	// Rights are what the user may do, as "create pods shop", or with a name: "get pods shop a".
	Rights []string
}

func main() {
	var question Question
	if err := json.NewDecoder(os.Stdin).Decode(&question); err != nil {
		fail(err)
	}
	answers := make([]string, len(question.Requests))
	for at, request := range question.Requests {
		var refusals []string
		for _, policy := range question.Policies {
			if request.concerns(policy.Spec.MatchConstraints) {
				refusals = append(refusals, request.evaluate(policy)...)
			}
		}
		answers[at] = strings.Join(refusals, "; ")
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (r Request) resource() (of schema.GroupResource, subresource string) {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	return schema.ParseGroupResource(resource), subresource
}

// concerns reports whether the constraints match the request. It supports no wildcards for
// resources, which our policies do not use.
func (r Request) concerns(constraints *v1.MatchResources) bool {
	of, subresource := r.resource()
	name := strings.TrimSuffix(of.Resource+"/"+subresource, "/")
	if r.Namespace != nil {
		selector, err := metav1.LabelSelectorAsSelector(constraints.NamespaceSelector)
		if err != nil {
			fail(err)
		}
		if constraints.NamespaceSelector != nil && !selector.Matches(labels.Set(r.Namespace.Labels)) {
			return false
		}
	}
	return slices.ContainsFunc(constraints.ResourceRules, func(rule v1.NamedRuleWithOperations) bool {
		return slices.Contains(rule.APIGroups, of.Group) && slices.Contains(rule.Resources, name) &&
			slices.Contains(rule.Operations, v1.OperationType(r.Operation))
	})
}

// evaluate compiles and evaluates a policy as the API server does (plugin/policy/validating, compilePolicy).
func (r Request) evaluate(policy v1.ValidatingAdmissionPolicy) []string {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		fail(err)
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, one := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: one.Name, Expression: one.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.StoredExpressions)
	var conditions, validations, none []cel.ExpressionAccessor
	for _, one := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&one))
	}
	for _, one := range policy.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: one.Expression, Message: one.Message, Reason: one.Reason})
		none = append(none, nil)
	}
	compile := func(all []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(all, options, environment.StoredExpressions)
	}
	var matcher matchconditions.Matcher
	if len(conditions) > 0 {
		matcher = matchconditions.NewMatcher(compile(conditions), policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	}
	validator := validating.NewValidator(compile(validations), matcher, compile(nil), compile(none), policy.Spec.FailurePolicy, nil)
	of, attributes := r.attributes()
	result := validator.Validate(context.Background(), of, attributes, nil, r.Namespace, celconfig.RuntimeCELCostBudget, r)
	var refusals []string
	for _, decision := range result.Decisions {
		if decision.Action == validating.ActionDeny {
			refusals = append(refusals, policy.Name+": "+decision.Message)
		}
	}
	return refusals
}

func (r Request) attributes() (schema.GroupVersionResource, *admission.VersionedAttributes) {
	object := func(content map[string]any) runtime.Object {
		if content == nil {
			return nil
		}
		return &unstructured.Unstructured{Object: content}
	}
	resource, subresource := r.resource()
	of := resource.WithVersion("v1")
	var namespace string
	if r.Namespace != nil && resource.Resource != "namespaces" {
		namespace = r.Namespace.Name
	}
	current, old := object(r.Object), object(r.OldObject)
	record := admission.NewAttributesRecord(current, old, schema.GroupVersionKind{}, namespace, r.Name, of, subresource, r.Operation,
		nil, false, &user.DefaultInfo{Name: r.User, Groups: r.Groups})
	return of, &admission.VersionedAttributes{Attributes: record, VersionedObject: current, VersionedOldObject: old}
}

// Authorize implements `authorizer` in a policy.
func (r Request) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	asked := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	right := fmt.Sprintf("%s %s %s", a.GetVerb(), asked, a.GetNamespace())
	if slices.Contains(r.Rights, right) || slices.Contains(r.Rights, right+" "+a.GetName()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}
