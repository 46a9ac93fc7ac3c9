package chart

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestFabricIsOffByDefault(t *testing.T) {
	for _, name := range names(t, nil) {
		if strings.Contains(name, "fabric") {
			t.Errorf("%s is rendered", name)
		}
	}
}

func TestFabricRunsUnprivilegedUnderItsOwnAccount(t *testing.T) {
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	var found bool
	for _, object := range objects {
		deployment, is := object.(*appsv1.Deployment)
		if !is || deployment.Name != "liqo-csi-fabric" {
			continue
		}
		found = true
		pod := deployment.Spec.Template.Spec
		may := pod.Containers[0].SecurityContext
		if *may.AllowPrivilegeEscalation || !*may.ReadOnlyRootFilesystem || !*pod.SecurityContext.RunAsNonRoot {
			t.Error("it keeps privileges that it does not need")
		}
		if pod.ServiceAccountName != "liqo-csi-fabric" || pod.Containers[0].Args[0] != "fabric" {
			t.Errorf("%s runs %v", pod.ServiceAccountName, pod.Containers[0].Args)
		}
	}
	if !found {
		t.Error("it is not rendered")
	}
	for _, object := range objects {
		role, is := object.(*rbacv1.ClusterRole)
		if !is || role.Name != "liqo-csi-fabric" {
			continue
		}
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") || slices.Contains(rule.Verbs, "*") {
				t.Errorf("in the whole cluster it may %v %v", rule.Verbs, rule.Resources)
			}
		}
	}
}

// A drain leaves one of its replicas, and is not blocked by pods that are never ready.
func TestDrainLeavesOneReplica(t *testing.T) {
	found := map[string]bool{}
	for _, object := range render(t, Values{"fabric": Values{"enabled": true}}) {
		budget, is := object.(*policyv1.PodDisruptionBudget)
		if !is {
			continue
		}
		of := budget.Spec.Selector.MatchLabels["app.kubernetes.io/component"]
		found[of] = true
		if budget.Name != "liqo-csi-"+of {
			t.Errorf("%s is of %q", budget.Name, of)
		}
		if budget.Spec.MaxUnavailable.IntValue() != 1 || *budget.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
			t.Errorf("%s is %+v", budget.Name, budget.Spec)
		}
	}
	if !found["controller"] || !found["fabric"] {
		t.Errorf("there are PodDisruptionBudgets of %v only", found)
	}
}

// The right to approve covers the serving certificates of all kubelets. The fabric, which parses
// responses of remote clusters, never has it.
func TestControllerApprovesCertificatesOnlyIfEnabled(t *testing.T) {
	for _, one := range []struct{ fabric, approves, may bool }{{true, false, false}, {true, true, true}, {false, true, false}} {
		values := Values{"enabled": one.fabric, "streams": Values{"approveCertificates": one.approves}}
		var may, told bool
		for _, object := range render(t, Values{"fabric": values}) {
			switch object := object.(type) {
			case *rbacv1.ClusterRole:
				for _, rule := range object.Rules {
					if slices.Contains(rule.Verbs, "approve") {
						may = true
						if object.Name != "liqo-csi-controller" || !slices.Equal(rule.ResourceNames, []string{"kubernetes.io/kubelet-serving"}) {
							t.Errorf("%s may approve for %v", object.Name, rule.ResourceNames)
						}
					}
				}
			case *appsv1.Deployment:
				if slices.Contains(object.Spec.Template.Spec.Containers[0].Args, "--approve-serving-certificates") {
					told = object.Name == "liqo-csi-controller"
				}
			}
		}
		if may != one.may || told != one.may {
			t.Errorf("with %+v it may: %v, and is told to: %v", one, may, told)
		}
	}
}

// RBAC grants rights on all namespaces, pods and bindings: policies restrict the identity to its
// own.
func TestRemoteFabricIsLimitedToItsNamespaces(t *testing.T) {
	const role = "liqo-csi-remote.liqo-csi"
	values := remote("fabric")
	values["remoteAccess"].(Values)["subjects"] = []Values{
		{"kind": "Group", "name": "home"}, {"kind": "User", "name": "milan"}, {"kind": "ServiceAccount", "name": "other", "namespace": "elsewhere"},
	}
	objects := render(t, values)
	for _, policy := range []string{role, role + "-pods", role + "-rolebindings", role + "-endpointslices", role + "-configuration"} {
		found := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, policy)
		who := found.Spec.MatchConditions[0].Expression
		const name = "request.userInfo.username == "
		for _, subject := range []string{
			name + `"system:serviceaccount:liqo-csi:liqo-csi-remote"`, `"home" in request.userInfo.groups`,
			name + `"milan"`, name + `"system:serviceaccount:elsewhere:other"`,
		} {
			if !slices.Contains(strings.Split(who, " || "), subject) {
				t.Errorf("%s: %s is not restricted: %s", policy, subject, who)
			}
		}
		isBound(t, objects, policy)
	}
	bindings := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, role+"-rolebindings")
	if !strings.Contains(bindings.Spec.Validations[1].Expression, "'"+role+"-workloads'") {
		t.Errorf("the role that may be bound: %s", bindings.Spec.Validations[1].Expression)
	}
	if subjects := bindings.Spec.Validations[2].Expression; !strings.Contains(subjects,
		"['ServiceAccount/liqo-csi/liqo-csi-remote', \"Group//home\", \"User//milan\", \"ServiceAccount/elsewhere/other\"]") {
		t.Errorf("who it may bind the role to: %s", subjects)
	}
	// The policy for service accounts of its namespaces allows the same pods.
	pods := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, role+"-pods")
	accounts := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, role+"-accounts")
	isBound(t, objects, role+"-accounts")
	if !reflect.DeepEqual(accounts.Spec.Validations, pods.Spec.Validations[1:]) || !reflect.DeepEqual(accounts.Spec.Variables, pods.Spec.Variables) {
		t.Errorf("the policy for service accounts matches %v", accounts.Spec.Validations)
	}
	// All resources by which it can change a pod have the same policy.
	validated := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, role+"-pods").Spec.MatchConstraints.ResourceRules[0]
	if !slices.Contains(validated.Operations, admissionv1.Update) {
		t.Errorf("the policy for pods matches only %v", validated.Operations)
	}
	for _, rule := range named[*rbacv1.ClusterRole](t, objects, role+"-workloads").Rules {
		isWritten := slices.Contains(rule.Verbs, "patch") && slices.Contains(rule.APIGroups, "")
		for _, resource := range rule.Resources {
			if isWritten && strings.HasPrefix(resource, "pods") && !slices.Contains(validated.Resources, resource) {
				t.Errorf("%s may be changed, and no policy restricts that", resource)
			}
		}
	}
	account := rights{"liqo-csi-remote", objects}
	account.check(t, true, "create rolebindings.rbac.authorization.k8s.io -n anywhere",
		"bind clusterroles.rbac.authorization.k8s.io/"+role+"-workloads")
	// It has its rights on pods only where it has bound that role.
	account.check(t, false, "bind clusterroles.rbac.authorization.k8s.io/cluster-admin", "create,delete pods -n anywhere",
		"get,list,create secrets -n anywhere", "create pods:exec -n anywhere",
		"get,list,create endpointslices.discovery.k8s.io -n anywhere", "patch,update namespaces")
	if verbs := namespaceVerbs(t, remote("full")); verbs != "get" {
		t.Errorf("level full may %s namespaces", verbs)
	}
	full := rights{"liqo-csi-remote", render(t, remote("full"))}
	full.check(t, true, "get namespaces/kube-system")
	full.check(t, false, "get namespaces/shop")
	if verbs := namespaceVerbs(t, remote("fabric")); verbs != "get list create delete" {
		t.Errorf("level fabric may %s namespaces", verbs)
	}
}

// Two home clusters that share a remote cluster are distinguished by the id in the values of the
// remote chart.
func TestRemoteFabricIsLimitedToItsHomeCluster(t *testing.T) {
	const role = "liqo-csi-remote.liqo-csi"
	values := remote("fabric")
	values["remoteAccess"].(Values)["homeClusterID"] = "milan-1"
	objects := render(t, values)
	for _, policy := range []string{"", "-pods", "-rolebindings", "-endpointslices", "-configuration"} {
		of := "namespaceObject"
		if policy == "" {
			of = "variables.subject"
		}
		first := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, role+policy).Spec.Validations[0].Expression
		if !strings.HasPrefix(first, of+".metadata.?labels.orValue({})[?'fabric.storage.liqo.io/home'].orValue('') == 'milan-1'") {
			t.Errorf("%s%s requires %s", role, policy, first)
		}
	}
	for wrong, words := range map[string]string{"' || true || '": "pattern", "": "kubectl get namespace kube-system"} {
		values["remoteAccess"].(Values)["homeClusterID"] = wrong
		if _, err := helm(t).Render(t.Context(), Release, Namespace, values); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("the id %q: %v", wrong, err)
		}
	}
}

// The labels that a remote cluster suggests for its node are in one object, which the home cluster
// may read.
func TestRemoteClusterSuggestsLabels(t *testing.T) {
	values := remote("fabric")
	values["remoteAccess"].(Values)["labels"] = Values{"region": "europe", "staging": ""}
	objects := render(t, values)
	labels := named[*corev1.ConfigMap](t, objects, "liqo-csi-labels")
	if !maps.Equal(labels.Data, map[string]string{"region": "europe", "staging": ""}) {
		t.Errorf("the labels are %v", labels.Data)
	}
	account := rights{"liqo-csi-remote", objects}
	account.check(t, true, "get configmaps/liqo-csi-labels -n liqo-csi")
	account.check(t, false, "list configmaps -n liqo-csi", "get configmaps/other -n liqo-csi", "patch configmaps/liqo-csi-labels -n liqo-csi")
	for _, object := range render(t, remote("fabric")) {
		if object, is := object.(*corev1.ConfigMap); is {
			t.Errorf("without suggested labels %s is rendered", object.Name)
		}
	}
}

// An identity that writes EndpointSlices can lead the users of a Service to any address, unless a
// value limits the addresses.
func TestRemoteFabricWritesOnlyAllowedAddresses(t *testing.T) {
	const policy = "liqo-csi-remote.liqo-csi-endpointslices"
	mentions := func(values Values, text string) bool {
		found := named[*admissionv1.ValidatingAdmissionPolicy](t, render(t, values), policy)
		return slices.ContainsFunc(found.Spec.Validations, func(one admissionv1.Validation) bool {
			return strings.Contains(one.Expression, text)
		})
	}
	if mentions(remote("fabric"), "cidr(") {
		t.Error("Kubernetes before 1.31 does not know cidr()")
	}
	limited := remote("fabric")
	limited["remoteAccess"].(Values)["endpointCIDRs"] = []string{"10.0.0.0/16", "fd00::/48"}
	if !mentions(limited, "['10.0.0.0/16','fd00::/48'].exists(c, cidr(c).containsIP(a))") {
		t.Error("the addresses are not limited")
	}
	for _, wrong := range []string{"10.0.0.0", "10.0.0.0/33", "a.test/8", "') || true || cidr('/8"} {
		values := remote("fabric")
		values["remoteAccess"].(Values)["endpointCIDRs"] = []string{wrong}
		if _, err := helm(t).Render(t.Context(), Release, Namespace, values); err == nil {
			t.Errorf("%q is accepted as a CIDR", wrong)
		}
	}
	bound := &rbacv1.RoleBinding{
		RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "liqo-csi-remote.liqo-csi-workloads"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "liqo-csi-remote", Namespace: Namespace}},
	}
	bound.Namespace = "shop-home"
	account := rights{"liqo-csi-remote", append(render(t, remote("fabric")), bound)}
	account.check(t, true, "get,list,watch,create,patch,delete endpointslices.discovery.k8s.io -n shop-home")
	account.check(t, false, "deletecollection,update endpointslices.discovery.k8s.io -n shop-home", "get endpointslices.discovery.k8s.io -n other")
}

// An identity that lists all pods can read the specs of all of them.
func TestAllPodsAreListedOnlyIfEnabled(t *testing.T) {
	for _, asked := range []bool{true, false} {
		values := remote("fabric")
		values["remoteAccess"].(Values)["freeCapacity"] = asked
		account := rights{"liqo-csi-remote", render(t, values)}
		account.check(t, asked, "list pods")
		account.check(t, false, "get,watch,create,delete pods")
	}
}

func namespaceVerbs(t *testing.T, values Values) string {
	t.Helper()
	for _, rule := range named[*rbacv1.ClusterRole](t, render(t, values), "liqo-csi-remote.liqo-csi").Rules {
		if slices.Contains(rule.Resources, "namespaces") {
			return strings.Join(rule.Verbs, " ")
		}
	}
	return ""
}

// isBound: a policy without a binding that denies, and fails closed, does nothing.
func isBound(t *testing.T, objects []runtime.Object, policy string) {
	t.Helper()
	found := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, policy)
	if found.Spec.FailurePolicy == nil || *found.Spec.FailurePolicy != admissionv1.Fail {
		t.Errorf("%s does not fail closed", policy)
	}
	binding := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects, policy)
	if binding.Spec.PolicyName != policy || !slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny) {
		t.Errorf("%s is bound to %s, with %v", binding.Name, binding.Spec.PolicyName, binding.Spec.ValidationActions)
	}
}

// named returns the object of this type and name.
func named[T interface {
	runtime.Object
	metav1.Object
}](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, object := range objects {
		if one, is := object.(T); is && one.GetName() == name {
			return one
		}
	}
	t.Fatalf("there is no %T %s", *new(T), name)
	panic("unreachable")
}

// Secrets of users are read only where a namespace is offloaded: the fabric creates a binding of
// one role to itself in that namespace.
func TestFabricReadsSecretsOnlyWhereItBindsItsRole(t *testing.T) {
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	account := rights{"liqo-csi-fabric", objects}
	account.check(t, true,
		"create rolebindings.rbac.authorization.k8s.io -n anywhere",
		"get,list,delete rolebindings.rbac.authorization.k8s.io/liqo-csi-fabric-reflected -n anywhere",
		"bind clusterroles.rbac.authorization.k8s.io/liqo-csi-fabric-reflected",
		"list,watch networkpolicies.networking.k8s.io -n shop",
		"list,watch poddisruptionbudgets.policy -n shop",
	)
	reads := []string{"get,list,watch endpointslices.discovery.k8s.io -n shop", "get,list,watch secrets -n shop", "get,list,watch configmaps -n shop", "get,list,watch services -n shop", "create,patch events -n shop"}
	account.check(t, false, reads...)
	account.check(t, false, "create,patch,update,delete networkpolicies.networking.k8s.io -n shop", "create,patch,update,delete poddisruptionbudgets.policy -n shop")
	account.check(t, false,
		"patch,update rolebindings.rbac.authorization.k8s.io -n anywhere",
		"get,list,delete rolebindings.rbac.authorization.k8s.io/other -n anywhere",
		"bind clusterroles.rbac.authorization.k8s.io/cluster-admin",
		"escalate clusterroles.rbac.authorization.k8s.io",
	)
	bound := &rbacv1.RoleBinding{
		RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "liqo-csi-fabric-reflected"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "liqo-csi-fabric", Namespace: Namespace}},
	}
	bound.Namespace = "shop"
	account = rights{"liqo-csi-fabric", append(objects, bound)}
	account.check(t, true, reads...)
	account.check(t, false, "get,list,watch secrets -n other", "create,patch,update,delete secrets -n shop")
}

// If its parameter is missing, a policy refuses all requests that it matches, so it only matches
// those of the fabric for bindings.
func TestPolicyWithAParameterMatchesOnlyTheFabric(t *testing.T) {
	var found bool
	for _, object := range render(t, Values{"fabric": Values{"enabled": true}}) {
		policy, is := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !is || policy.Spec.ParamKind == nil {
			continue
		}
		found = true
		for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
			if !slices.Equal(rule.ResourceNames, []string{"liqo-csi-fabric-reflected"}) {
				t.Errorf("%s matches %v of %v", policy.Name, rule.Resources, rule.ResourceNames)
			}
		}
	}
	if !found {
		t.Error("no policy limits the fabric to offloaded namespaces")
	}
}
