package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Policies enforce what RBAC cannot express: the owner of a node, and which fields of a pod may be
// written.
func TestFabricIsLimitedToItsNodesAndTheirPods(t *testing.T) {
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	for name, resources := range map[string][]string{
		"fabric-pods":      {"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"},
		"fabric-nodes":     {"nodes", "nodes/status"},
		"fabric-leases":    {"leases"},
		"fabric-specs":     {"remoteclusters", "namespaceoffloadings"},
		"fabric-evictions": {"pods/eviction"},
	} {
		name += ".storage.liqo.io"
		isBound(t, objects, name)
		spec := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, name).Spec
		var validated []string
		for _, rule := range spec.MatchConstraints.ResourceRules {
			validated = append(validated, rule.Resources...)
		}
		if !slices.Equal(validated, resources) {
			t.Errorf("%s matches %v", name, validated)
		}
		if by := spec.MatchConditions; len(by) != 1 || !strings.HasSuffix(by[0].Expression, `== "system:serviceaccount:liqo-csi:liqo-csi-fabric"`) {
			t.Errorf("%s matches %v", name, by)
		}
	}
	// Only the controller has the role that names the nodes.
	bound := named[*rbacv1.RoleBinding](t, objects, "liqo-csi-fabric-nodes")
	if bound.RoleRef.Kind != "Role" || bound.RoleRef.Name != "liqo-csi-fabric-nodes" || bound.Subjects[0].Name != "liqo-csi-fabric" {
		t.Errorf("the binding is %+v", bound)
	}
	const role = "roles.rbac.authorization.k8s.io/liqo-csi-fabric-nodes -n liqo-csi"
	controller, fabric := rights{"liqo-csi-controller", objects}, rights{"liqo-csi-fabric", objects}
	controller.check(t, true, "get,patch "+role, "create roles.rbac.authorization.k8s.io -n liqo-csi", "run fabricnodes.storage.liqo.io -n liqo-csi")
	controller.check(t, false, "patch roles.rbac.authorization.k8s.io/other -n liqo-csi", "create rolebindings.rbac.authorization.k8s.io -n liqo-csi")
	// The other leases of the namespace are those by which the controller and its sidecars choose leaders.
	fabric.check(t, true, "get,patch leases.coordination.k8s.io/storage-liqo-io-fabric -n liqo-csi")
	fabric.check(t, false, "get,patch leases.coordination.k8s.io/storage-liqo-io-reconcilers -n liqo-csi", "update,delete leases.coordination.k8s.io -n kube-node-lease")
	fabric.check(t, false, "get,patch,update,delete "+role, "create roles.rbac.authorization.k8s.io -n liqo-csi", "run fabricnodes.storage.liqo.io/any -n liqo-csi")
}

// Namespaces with kubeconfigs or twins, and Kubernetes' own, are never offloaded: a policy refuses
// it, and the fabric has a flag with them.
func TestSomeNamespacesAreNeverOffloaded(t *testing.T) {
	objects := render(t, Values{
		"fabric": Values{"enabled": true}, "storageNamespace": "twins", "liqo": Values{"tenantNamespaces": []string{"tenant-a"}},
	})
	isBound(t, objects, "never-offloaded.storage.liqo.io")
	args := named[*appsv1.Deployment](t, objects, "liqo-csi-fabric").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--never-offloaded=twins,tenant-a") {
		t.Errorf("the fabric has %v", args)
	}
}

// An identity that may patch PersistentVolumes could bind a volume to a claim of another namespace.
func TestRemoteVolumesStayInTheirNamespaces(t *testing.T) {
	for level, restricted := range map[string]bool{"minimal": false, "namespaced": true, "full": true, "fabric": true} {
		values := Values{"only": true, "level": level, "namespaces": []string{"shop"}, "homeClusterID": homeID}
		if level == "full" || level == "fabric" {
			delete(values, "namespaces")
		}
		objects := render(t, Values{"remoteAccess": values})
		const name = "liqo-csi-remote.liqo-csi-volumes"
		is := slices.ContainsFunc(objects, func(object runtime.Object) bool {
			policy, is := object.(*admissionv1.ValidatingAdmissionPolicy)
			return is && policy.Name == name
		})
		if may := (rights{"liqo-csi-remote", objects}).may("patch", "persistentvolumes", "", ""); may != restricted || is != restricted {
			t.Errorf("level %s: it may patch PersistentVolumes: %v, a policy is rendered: %v", level, may, is)
		}
		if restricted {
			isBound(t, objects, name)
		}
	}
}

// validations returns the validations of the policy of this name, as one text.
func validations(t *testing.T, values Values, policy string) string {
	t.Helper()
	objects := render(t, values)
	isBound(t, objects, policy)
	var all []string
	for _, one := range named[*admissionv1.ValidatingAdmissionPolicy](t, objects, policy).Spec.Validations {
		all = append(all, one.Expression+" # "+one.Message)
	}
	return strings.Join(all, "\n")
}

const podsPolicy = "liqo-csi-remote.liqo-csi-pods"

// homeID is the id of the home cluster.
const homeID = "rome"

func remoteFabric(changes Values) Values {
	access := Values{"only": true, "level": "fabric", "homeClusterID": homeID}
	maps.Copy(access, changes)
	return Values{"remoteAccess": access}
}

// All fields of the baseline of the Pod Security Standards are limited, as of Kubernetes 1.36,
// unless the cluster allows more.
func TestRemotePodsMustMeetTheBaseline(t *testing.T) {
	// Fields that the fabric never sets are always refused.
	always := []string{"hostNetwork", "hostPID", "hostIPC", "hostPath", "flexVolume", "gitRepo", "automountServiceAccountToken", "nodeName", "'system-'"}
	baseline := []string{
		"?privileged", "windowsOptions.?hostProcess", "capabilities.?add", "procMount", "'Unconfined'", "sysctls",
		"container.apparmor.security.beta.kubernetes.io/", "seLinuxOptions", "httpGet.?host", "tcpSocket.?host", "hostPort",
	}
	for level, has := range map[string]bool{"baseline": true, "restricted": true, "privileged": false} {
		text := validations(t, remoteFabric(Values{"podSecurity": level}), podsPolicy)
		for _, field := range always {
			if !strings.Contains(text, field) {
				t.Errorf("with %s, %s is not validated", level, field)
			}
		}
		for _, field := range baseline {
			if strings.Contains(text, field) != has {
				t.Errorf("with %s, %s is validated: %v", level, field, !has)
			}
		}
	}
	parts := named[*admissionv1.ValidatingAdmissionPolicy](t, render(t, remoteFabric(nil)), podsPolicy).Spec.Variables
	text := ""
	for _, part := range parts {
		text += part.Expression
	}
	for _, field := range []string{"initContainers", "ephemeralContainers", "seccompProfile", "appArmorProfile"} {
		if !strings.Contains(text, field) {
			t.Errorf("%s is not validated", field)
		}
	}
}

// The Pod Security label enforces the standard a second time, also for others with rights in the
// namespace.
func TestRemoteNamespacesHaveAPodSecurityLabel(t *testing.T) {
	for level, text := range map[string]string{
		"":           validations(t, remoteFabric(nil), "liqo-csi-remote.liqo-csi"),
		"privileged": validations(t, remoteFabric(Values{"podSecurity": "privileged"}), "liqo-csi-remote.liqo-csi"),
		"restricted": validations(t, remoteFabric(Values{"podSecurity": "restricted"}), "liqo-csi-remote.liqo-csi"),
	} {
		if level == "" {
			level = "baseline"
		}
		if want := "labels[?'pod-security.kubernetes.io/enforce'].orValue('') == '" + level + "'"; !strings.Contains(text, want) {
			t.Errorf("%s is not what is required: %s", want, text)
		}
	}
	if _, err := helm(t).Render(t.Context(), Release, Namespace, remoteFabric(Values{"podSecurity": "none"})); err == nil {
		t.Error("an invalid level is accepted")
	}
}

// The home cluster chooses the cluster-scoped objects that its pods refer to, except priority
// classes, unless values limit them.
func TestReferencesOfRemotePodsCanBeLimited(t *testing.T) {
	for value, expression := range map[string]string{
		"priorityClasses": "priorityClassName.orValue('') in ['a']", "runtimeClasses": "runtimeClassName.orValue('') in ['a']",
		"inlineDrivers": "v.csi.driver in ['a']", "taints": "t.?key.orValue('') in ['a']",
	} {
		if is := strings.Contains(validations(t, remoteFabric(nil), podsPolicy), "remoteAccess.pods."+value); is != (value == "priorityClasses") {
			t.Errorf("%s are limited by default: %v", value, is)
		}
		if text := validations(t, remoteFabric(Values{"pods": Values{value: []string{"a"}}}), podsPolicy); !strings.Contains(text, expression) {
			t.Errorf("%s are not limited: %s", value, text)
		}
		if text := validations(t, remoteFabric(Values{"pods": Values{value: []string{}}}), podsPolicy); !strings.Contains(text, strings.Replace(expression, "'a'", "", 1)) {
			t.Errorf("%s: an empty list allows any", value)
		}
		for _, wrong := range []any{"all", []string{"' || true || '"}} {
			if _, err := helm(t).Render(t.Context(), Release, Namespace, remoteFabric(Values{"pods": Values{value: wrong}})); err == nil {
				t.Errorf("%s: %v is accepted", value, wrong)
			}
		}
	}
}

// An identity that may create pods in a namespace can use everything in it, so the fields of movers
// are limited.
func TestRemoteMoversAreRestricted(t *testing.T) {
	const movers = "liqo-csi-remote.liqo-csi-movers"
	for _, level := range []string{"namespaced", "minimal"} {
		access := Values{"only": true, "level": level, "namespaces": []string{"shop"}, "subjects": []Values{{"kind": "Group", "name": "home"}}}
		for _, object := range render(t, Values{"remoteAccess": access}) {
			if policy, is := object.(*admissionv1.ValidatingAdmissionPolicy); is && strings.Contains(policy.Name, "mover") {
				t.Errorf("level %s: %s is rendered without moves", level, policy.Name)
			}
		}
		access["move"] = true
		// Values for pods of the fabric do not loosen this.
		access["podSecurity"] = "privileged"
		for name, one := range map[string]struct {
			values Values
			image  string
		}{
			"default":  {Values{}, "ghcr.io/liqo-csi/liqo-csi"},
			"mirror":   {Values{"imageRegistry": "mirror.test:5000"}, "mirror.test:5000/liqo-csi/liqo-csi"},
			"a digest": {Values{"mover": Values{"image": "r.test:5000/m:v1@sha256:00"}}, "r.test:5000/m"},
		} {
			values := Values{"remoteAccess": access}
			maps.Copy(values, one.values)
			text := validations(t, values, movers)
			for _, part := range []string{
				"c.image == '" + one.image + "'", "['/usr/local/bin/liqo-csi', 'mover']", "dyn(c).all(field, field in ['name',", "'^move-(source|target)-",
				"m.mountPath in ['/data',", "one claim", "no token of it", "privileged", "nodeName",
			} {
				if !strings.Contains(text, part) {
					t.Errorf("level %s, %s: %s is not validated", level, name, part)
				}
			}
			objects := render(t, values)
			isBound(t, objects, "liqo-csi-remote.liqo-csi-mover-secrets")
			// Other subjects, such as another tool's, may have pods in that namespace with rights
			// that this chart does not grant.
			if to := named[*rbacv1.RoleBinding](t, objects, "liqo-csi-remote.liqo-csi-movers").Subjects; len(to) != 1 || to[0].Name != "liqo-csi-remote" {
				t.Errorf("pods may be created by %v", to)
			}
			if role := named[*rbacv1.Role](t, objects, "liqo-csi-remote.liqo-csi"); slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
				return slices.Contains(rule.Resources, "pods") || slices.Contains(rule.Resources, "secrets")
			}) {
				t.Errorf("other subjects may %v", role.Rules)
			}
			who := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, movers).Spec.MatchConditions
			if len(who) != 1 || who[0].Expression != `request.userInfo.username == "system:serviceaccount:liqo-csi:liqo-csi-remote"` {
				t.Errorf("it matches %v", who)
			}
		}
	}
}

// The ports of the fabric for metrics and for streams are reachable only from where their values
// say.
func TestAccessToPortsOfTheFabricIsLimited(t *testing.T) {
	from := []Values{{"ipBlock": Values{"cidr": "10.0.0.0/24"}}}
	values := Values{"fabric": Values{"enabled": true, "streams": Values{"port": 9000, "ports": 3, "from": from}}}
	for _, limited := range []bool{true, false} {
		if !limited {
			delete(values["fabric"].(Values)["streams"].(Values), "from")
		}
		policy := named[*networkingv1.NetworkPolicy](t, render(t, values), "liqo-csi-fabric").Spec
		if policy.PodSelector.MatchLabels["app.kubernetes.io/component"] != "fabric" || len(policy.Ingress) != 2 {
			t.Fatalf("it is %+v", policy)
		}
		metrics, streams := policy.Ingress[0], policy.Ingress[1]
		if metrics.Ports[0].Port.IntValue() != 9828 || len(metrics.From) != 0 {
			t.Errorf("metrics: %+v", metrics)
		}
		if streams.Ports[0].Port.IntValue() != 9000 || *streams.Ports[0].EndPort != 9002 || (len(streams.From) == 1) != limited {
			t.Errorf("streams: %+v", streams)
		}
	}
	for _, name := range names(t, Values{"networkPolicy": Values{"enabled": false}, "fabric": Values{"enabled": true}}) {
		if strings.HasPrefix(name, "NetworkPolicy") {
			t.Errorf("%s is rendered", name)
		}
	}
}
