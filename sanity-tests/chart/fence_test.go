package chart

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What rights cannot tell apart policies do: whose a node is, and what of a pod is written.
func TestFabricIsHeldToItsNodesAndTheirPods(t *testing.T) {
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	for name, resources := range map[string][]string{
		"fabric-pods":      {"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"},
		"fabric-nodes":     {"nodes", "nodes/status"},
		"fabric-wishes":    {"remoteclusters", "namespaceoffloadings"},
		"fabric-evictions": {"pods/eviction"},
	} {
		name += ".storage.liqo.io"
		isBound(t, objects, name)
		spec := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec
		var judged []string
		for _, rule := range spec.MatchConstraints.ResourceRules {
			judged = append(judged, rule.Resources...)
		}
		if !slices.Equal(judged, resources) {
			t.Errorf("%s is about %v", name, judged)
		}
		if by := spec.MatchConditions; len(by) != 1 || !strings.HasSuffix(by[0].Expression, `== "system:serviceaccount:liqo-csi:liqo-csi-fabric"`) {
			t.Errorf("%s is about %v", name, by)
		}
	}
	// The role that names the nodes is the controller's alone.
	bound := named[*rbacv1.RoleBinding](t, objects, "liqo-csi-fabric-nodes")
	if bound.RoleRef.Kind != "Role" || bound.RoleRef.Name != "liqo-csi-fabric-nodes" || bound.Subjects[0].Name != "liqo-csi-fabric" {
		t.Errorf("the binding is %+v", bound)
	}
	const role = "roles.rbac.authorization.k8s.io/liqo-csi-fabric-nodes -n liqo-csi"
	controller, fabric := rights{"liqo-csi-controller", objects}, rights{"liqo-csi-fabric", objects}
	controller.check(t, true, "get,patch "+role, "create roles.rbac.authorization.k8s.io -n liqo-csi", "run fabricnodes.storage.liqo.io -n liqo-csi")
	controller.check(t, false, "patch roles.rbac.authorization.k8s.io/other -n liqo-csi", "create rolebindings.rbac.authorization.k8s.io -n liqo-csi")
	fabric.check(t, false, "get,patch,update,delete "+role, "create roles.rbac.authorization.k8s.io -n liqo-csi", "run fabricnodes.storage.liqo.io/any -n liqo-csi")
}

// What holds kubeconfigs and twins, and Kubernetes' own namespaces, stay here: a policy says it, and the
// fabric is told.
func TestSomeNamespacesAreNeverOffloaded(t *testing.T) {
	objects := render(t, Values{
		"fabric": Values{"enabled": true}, "storageNamespace": "twins", "liqo": Values{"tenantNamespaces": []string{"tenant-a"}},
	})
	const name = "never-offloaded.storage.liqo.io"
	isBound(t, objects, name)
	spec := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec
	const judged = "!(request.namespace.startsWith('kube-') || request.namespace in ['liqo-csi', 'twins', 'tenant-a'])"
	if got := spec.Validations[0].Expression; got != judged || len(spec.MatchConditions) > 0 {
		t.Errorf("%s judges %q, where %v", name, got, spec.MatchConditions)
	}
	args := named[*appsv1.Deployment](t, objects, "liqo-csi-fabric").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--never-offloaded=twins,tenant-a") {
		t.Errorf("the fabric has %v", args)
	}
}

// The names of namespaces there are chosen at home, unless something here says which they may be.
func TestNamesOfNamespacesCanBeLimited(t *testing.T) {
	for names, want := range map[string]bool{"": false, `[a-z\d-]+-rome`: true} {
		objects := render(t, Values{"remoteAccess": Values{"only": true, "level": "fabric", "namespaceNames": names}})
		policy := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, "liqo-csi-remote.liqo-csi")
		is := slices.ContainsFunc(policy.Spec.Validations, func(one admissionv1.Validation) bool {
			return strings.HasSuffix(one.Expression, `.matches("^(?:[a-z\\d-]+-rome)$")`)
		})
		if is != want {
			t.Errorf("with %q: %v", names, policy.Spec.Validations)
		}
	}
}

// Whoever may patch PersistentVolumes could give a volume to a claim of another namespace.
func TestVolumesOfARemoteClusterStayWithTheirNamespaces(t *testing.T) {
	for level, fenced := range map[string]bool{"minimal": false, "namespaced": true, "full": true, "fabric": true} {
		values := Values{"only": true, "level": level, "namespaces": []string{"shop"}}
		if level == "full" || level == "fabric" {
			delete(values, "namespaces")
		}
		objects := render(t, Values{"remoteAccess": values})
		const name = "liqo-csi-remote.liqo-csi-volumes"
		is := slices.ContainsFunc(objects, func(object runtime.Object) bool {
			policy, is := object.(*admissionv1.ValidatingAdmissionPolicy)
			return is && policy.Name == name
		})
		if may := (rights{"liqo-csi-remote", objects}).may("patch", "persistentvolumes", "", ""); may != fenced || is != fenced {
			t.Errorf("level %s: it may patch PersistentVolumes: %v, a policy is there: %v", level, may, is)
		}
		if fenced {
			isBound(t, objects, name)
		}
	}
}
