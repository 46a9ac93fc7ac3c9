package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Specs with which a pod would get rights of its node, of others, or of the cluster, evaluated for each account that may create
// pods.
func TestPodsWithRightsOfOthersAreRefused(t *testing.T) {
	inContainer := map[string][]string{
		"privileged": {`"securityContext": {"privileged": true}`, `"securityContext": {"windowsOptions": {"hostProcess": true}}`},
		"capability": {
			`"securityContext": {"capabilities": {"add": ["ALL"]}}`, `"securityContext": {"capabilities": {"add": ["CHOWN", "CAP_SYS_ADMIN"]}}`,
			`"securityContext": {"capabilities": {"add": ["net_admin"]}}`, `"securityContext": {"capabilities": {"add": ["NET_RAW"]}}`,
		},
		"profile": {
			`"securityContext": {"procMount": "Unmasked"}`, `"securityContext": {"seccompProfile": {"type": "Unconfined"}}`,
			`"securityContext": {"appArmorProfile": {"type": "Unconfined"}}`, `"securityContext": {"seLinuxOptions": {"type": "spc_t"}}`,
			`"securityContext": {"seLinuxOptions": {"user": "system_u"}}`, `"securityContext": {"seLinuxOptions": {"role": "system_r"}}`,
		},
		"host": {
			`"ports": [{"containerPort": 80}, {"containerPort": 1, "hostPort": 80}]`,
			`"livenessProbe": {"httpGet": {"port": 80, "host": "169.254.169.254"}}`, `"readinessProbe": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}`,
			`"startupProbe": {"httpGet": {"port": 80, "host": "a"}}`, `"lifecycle": {"preStop": {"httpGet": {"port": 80, "host": "a"}}}`,
			`"lifecycle": {"postStart": {"tcpSocket": {"port": 80, "host": "a"}}}`,
		},
	}
	inSpec := []string{
		`"hostNetwork": true`, `"hostPID": true`, `"hostIPC": true`, `"nodeName": "control-plane"`, `"serviceAccountName": "admin"`,
		`"automountServiceAccountToken": true`, `"automountServiceAccountToken": null`, `"priorityClassName": "system-node-critical", "priority": 2000001000`,
		`"priority": 1`, `"securityContext": {"windowsOptions": {"hostProcess": true}}`, `"securityContext": {"seccompProfile": {"type": "Unconfined"}}`,
		`"securityContext": {"appArmorProfile": {"type": "Unconfined"}}`, `"securityContext": {"sysctls": [{"name": "kernel.core_pattern", "value": "a"}]}`,
		`"securityContext": {"seLinuxOptions": {"type": "spc_t"}}`,
		`"volumes": [{"name": "a", "emptyDir": {}}, {"name": "v", "hostPath": {"path": "/"}}]`,
		`"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "a"}}, {"serviceAccountToken": {"path": "t"}}]}}]`,
		`"volumes": [{"name": "v", "csi": {"driver": "d"}, "nfs": {"server": "a", "path": "/"}}]`,
	}
	const harmless = `{"name": "a", "image": "a", "securityContext": {"capabilities": {"add": ["CHOWN"]}, "seccompProfile": {"type": "RuntimeDefault"}}}`
	var specs, withContainers []string
	for _, change := range inSpec {
		specs = append(specs, fmt.Sprintf(`{"containers": [%s], "automountServiceAccountToken": false, %s}`, harmless, change))
	}
	for _, kind := range slices.Sorted(maps.Keys(inContainer)) {
		for _, change := range inContainer[kind] {
			for _, list := range []string{`"containers": [%s, %s]`, `"containers": [%s], "initContainers": [%s]`, `"containers": [%s], "ephemeralContainers": [%s]`} {
				spec := fmt.Sprintf(`{`+list+`, "automountServiceAccountToken": false}`, harmless, `{"name": "b", "image": "b", `+change+`}`)
				withContainers = append(withContainers, spec)
			}
		}
	}
	pod := func(spec string) string { return `{"metadata": {"name": "p"}, "spec": ` + spec + `}` }
	fine := pod(`{"automountServiceAccountToken": false, "containers": [` + harmless + `]}`)
	annotated := strings.Replace(fine, `"name": "p"`, `"name": "p", "annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}`, 1)
	there := newRemoteNamespace("shop-rome")
	for user, policy := range map[string]string{remoteUser: "-pods", "system:serviceaccount:shop-rome:default": "-accounts"} {
		var all []checkedRequest
		add := func(what, resource, old, object, refusedBy string) {
			r := written(resource, there, old, object)
			r.User = user
			all = append(all, checkedRequest{what + " by " + user, r, refusedBy})
		}
		add("a harmless pod", "pods", "", fine, "")
		add("an annotation of AppArmor", "pods", "", annotated, fence+policy)
		for _, spec := range slices.Concat(specs, withContainers) {
			add(spec, "pods", "", pod(spec), fence+policy)
		}
		// What a creation refuses, no later write may add. Kubernetes does not allow changes of the other fields.
		for _, spec := range withContainers {
			add("a later "+spec, "pods", fine, pod(spec), fence+policy)
			add("a debug container "+spec, "pods/ephemeralcontainers", fine, pod(spec), fence+policy)
			add("a resized "+spec, "pods/resize", fine, pod(spec), fence+policy)
		}
		checkRequests(t, remoteFabric(nil), all)
	}
}

// A request of the identity in a namespace that is not its own: of another home cluster, of users, or of Kubernetes itself.
func TestIdentityWritesOnlyInNamespacesOfItsHomeCluster(t *testing.T) {
	ofMilan, stripped, system, defaults := newRemoteNamespace("shop-milan"), newRemoteNamespace("shop-rome"), newRemoteNamespace("kube-rome"), newRemoteNamespace("default")
	ofMilan.Labels["fabric.storage.liqo.io/home"] = "milan"
	delete(stripped.Labels, "fabric.storage.liqo.io/home")
	objects := map[string]string{
		"pods":                     `{"metadata": {"name": "a"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "a", "image": "a"}]}}`,
		"pods/ephemeralcontainers": `{"metadata": {"name": "a"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "a", "image": "a"}]}}`,
		"configmaps":               `{"metadata": {"name": "a"}}`, "secrets": `{"metadata": {"name": "a"}, "type": "Opaque"}`, "services": `{"metadata": {"name": "a"}, "spec": {}}`,
		"endpointslices.discovery.k8s.io": `{"metadata": {"name": "a", "labels": {"endpointslice.kubernetes.io/managed-by": "fabric.storage.liqo.io"}}, "addressType": "IPv4"}`,
		"rolebindings.rbac.authorization.k8s.io": `{"metadata": {"name": "a"}, "roleRef": {"kind": "ClusterRole", "name": "liqo-csi-remote.liqo-csi-workloads"},
			"subjects": [{"kind": "ServiceAccount", "namespace": "liqo-csi", "name": "liqo-csi-remote"}]}`,
	}
	own := newRemoteNamespace("shop-rome")
	var all []checkedRequest
	for resource, object := range objects {
		for _, namespace := range []*corev1.Namespace{own, ofMilan, stripped, system, defaults, plainNamespace("shop")} {
			refusedBy := fence
			if namespace == own {
				refusedBy = ""
			}
			what := resource + " in " + namespace.Name + " of " + namespace.Labels["fabric.storage.liqo.io/home"]
			if !strings.Contains(resource, "/") {
				all = append(all, checkedRequest{"create " + what, written(resource, namespace, "", object), refusedBy})
			}
			all = append(all, checkedRequest{"update " + what, written(resource, namespace, object, object), refusedBy})
			if !strings.HasPrefix(resource, "pods") {
				all = append(all, checkedRequest{"delete " + what, written(resource, namespace, object, ""), refusedBy})
			}
		}
	}
	bind := func(role, subject string) request {
		return written("rolebindings.rbac.authorization.k8s.io", own, "", `{"metadata": {"name": "a"}, "roleRef": `+role+`, "subjects": [`+subject+`]}`)
	}
	const workloads, itself = `{"kind": "ClusterRole", "name": "liqo-csi-remote.liqo-csi-workloads"}`, `{"kind": "ServiceAccount", "namespace": "liqo-csi", "name": "liqo-csi-remote"}`
	const bindings = fence + "-rolebindings"
	for _, role := range []string{`{"kind": "ClusterRole", "name": "cluster-admin"}`, `{"kind": "Role", "name": "liqo-csi-remote.liqo-csi-workloads"}`, `{"kind": "ClusterRole", "name": "liqo-csi-remote.liqo-csi"}`} {
		all = append(all, checkedRequest{"bind " + role, bind(role, itself), bindings})
	}
	for _, subject := range []string{
		`{"kind": "ServiceAccount", "namespace": "shop-rome", "name": "default"}`, `{"kind": "ServiceAccount", "name": "liqo-csi-remote"}`,
		`{"kind": "Group", "name": "system:authenticated"}`, `{"kind": "Group", "name": "system:serviceaccounts:liqo-csi"}`, `{"kind": "User", "name": "liqo-csi-remote"}`,
		`{"kind": "Group", "name": "` + remoteUser + `"}`, itself + `, {"kind": "Group", "name": "system:unauthenticated"}`,
	} {
		all = append(all, checkedRequest{"bind to " + subject, bind(workloads, subject), bindings})
	}
	checkRequests(t, remoteFabric(nil), all)
}

// A token that is not bound to the Secret of the session stays valid after that is deleted.
func TestTokensOfTheIdentityEndWithTheSession(t *testing.T) {
	token := func(spec string) request {
		return written("serviceaccounts/token", plainNamespace(Namespace), "", `{"spec": `+spec+`}`)
	}
	const policy = fence + "-tokens"
	elsewhere := token(`{"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "liqo-csi-session"}, "expirationSeconds": 600}`)
	elsewhere.Namespace = plainNamespace("other")
	checkRequests(t, RemoteValues("full", homeID), []checkedRequest{
		{"bound to the Secret", token(`{"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "liqo-csi-session"}, "expirationSeconds": 2592000}`), ""},
		{"without an end", token(`{"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "liqo-csi-session"}, "expirationSeconds": 2592001}`), policy},
		{"bound to nothing", token(`{"expirationSeconds": 600}`), policy},
		{"bound to null", token(`{"boundObjectRef": null}`), policy},
		{"bound to another Secret", token(`{"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "a"}}`), policy},
		{"bound to a pod of that name", token(`{"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "liqo-csi-session"}}`), policy},
		{"bound to another kind Secret", token(`{"boundObjectRef": {"kind": "Secret", "apiVersion": "a.test/v1", "name": "liqo-csi-session"}}`), policy},
		{"of another namespace", elsewhere, policy},
	})
}

// Each write that RBAC allows an account is limited by a policy for this account, or listed here, because nothing can or has to
// limit it.
func TestWritesWithoutAPolicyAreListed(t *testing.T) {
	const exec = "CONNECT pods/attach, CONNECT pods/exec, CONNECT pods/portforward"
	reports := "CREATE events, CREATE events.events.k8s.io, UPDATE events, UPDATE events.events.k8s.io"
	for name, one := range map[string]struct {
		values  Values
		account string
		free    []string
	}{
		// In namespaces where the identity may bind its role. Other accounts may run pods there, too.
		"fabric there": {remoteFabric(Values{"freeCapacity": true, "labels": Values{"region": "europe"}}), "liqo-csi-remote", []string{exec, "DELETE pods", "BIND clusterroles.rbac.authorization.k8s.io"}},
		"full there":   {RemoteValues("full", homeID), "liqo-csi-remote", nil},
		"namespaced there": {Values{"remoteAccess": Values{"only": true, "level": "namespaced", "namespaces": []string{"shop"}, "homeClusterID": homeID, "move": true}},
			"liqo-csi-remote", nil},
		"minimal there": {Values{"remoteAccess": Values{"only": true, "level": "minimal", "namespaces": []string{"shop"}, "homeClusterID": homeID, "move": true, "snapshots": true}},
			"liqo-csi-remote", nil},
		"the fabric": {offloading(Values{"policies": true}), "liqo-csi-fabric", []string{
			reports, "UPDATE namespaceoffloadings.offloading.liqo.io/status", "UPDATE remoteclusters.storage.liqo.io/status",
			"CREATE tokenreviews.authentication.k8s.io", "CREATE subjectaccessreviews.authorization.k8s.io",
			"CREATE certificatesigningrequests.certificates.k8s.io", "BIND clusterroles.rbac.authorization.k8s.io",
		}},
		"the controller": {Values{"fabric": Values{"enabled": true, "policies": true, "streams": Values{"approveCertificates": true}}, "controller": Values{"snapshotter": Values{"enabled": true}}}, "liqo-csi-controller", []string{
			reports, "UPDATE persistentvolumeclaims", "UPDATE persistentvolumeclaims/status", "DELETE persistentvolumeclaims",
			"UPDATE persistentvolumes", "DELETE persistentvolumes", "CREATE pods/eviction",
			"CREATE volumeattachments.storage.k8s.io, UPDATE volumeattachments.storage.k8s.io, DELETE volumeattachments.storage.k8s.io",
			"UPDATE volumeattachments.storage.k8s.io/status",
			"CREATE volumesnapshots.snapshot.storage.k8s.io, UPDATE volumesnapshots.snapshot.storage.k8s.io, DELETE volumesnapshots.snapshot.storage.k8s.io",
			"UPDATE volumesnapshotcontents.snapshot.storage.k8s.io, UPDATE volumesnapshotcontents.snapshot.storage.k8s.io/status",
			"UPDATE volumemoves.storage.liqo.io, UPDATE volumemoves.storage.liqo.io/status",
			"CREATE remoteclusters.storage.liqo.io, UPDATE remoteclusters.storage.liqo.io, DELETE remoteclusters.storage.liqo.io, UPDATE remoteclusters.storage.liqo.io/status",
			"APPROVE signers.certificates.k8s.io", "UPDATE secrets",
			"CREATE configmaps, UPDATE configmaps", "CREATE roles.rbac.authorization.k8s.io, UPDATE roles.rbac.authorization.k8s.io", "RUN fabricnodes.storage.liqo.io",
			"CREATE leases.coordination.k8s.io, UPDATE leases.coordination.k8s.io, DELETE leases.coordination.k8s.io",
			"CREATE csistoragecapacities.storage.k8s.io, UPDATE csistoragecapacities.storage.k8s.io, DELETE csistoragecapacities.storage.k8s.io",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			free := map[string]bool{}
			for _, write := range strings.FieldsFunc(strings.Join(one.free, ","), func(r rune) bool { return r == ',' }) {
				free[strings.TrimSpace(write)] = true
			}
			objects := render(t, one.values)
			var found []string
			for _, object := range objects {
				switch role := object.(type) {
				case *rbacv1.Role:
					found = append(found, writesOf(role.ObjectMeta, role.Rules, one.account)...)
				case *rbacv1.ClusterRole:
					found = append(found, writesOf(role.ObjectMeta, role.Rules, one.account)...)
				}
			}
			for _, object := range objects {
				policy, is := object.(*admissionv1.ValidatingAdmissionPolicy)
				if !is || !slices.ContainsFunc(policy.Spec.MatchConditions, func(it admissionv1.MatchCondition) bool {
					return strings.Contains(it.Expression, ":"+one.account) && !strings.Contains(it.Expression, "!=")
				}) {
					continue
				}
				for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
					found = slices.DeleteFunc(found, func(write string) bool {
						operation, resource, _ := strings.Cut(write, " ")
						plural, subresource, _ := strings.Cut(resource, "/")
						plural, group, _ := strings.Cut(plural, ".")
						resource = strings.TrimSuffix(plural+"/"+subresource, "/")
						return slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) &&
							slices.Contains(rule.Operations, admissionv1.OperationType(operation))
					})
				}
			}
			slices.Sort(found)
			found = slices.Compact(found)
			for _, write := range found {
				if !free[write] {
					t.Errorf("no policy limits %s", write)
				}
			}
			for write := range free {
				if !slices.Contains(found, write) {
					t.Errorf("%s is listed, and limited or not allowed", write)
				}
			}
		})
	}
}

// writesOf returns the writes that a role of this account allows, as operations of admission. The roles of an account begin with
// its name, except those of the containers of the controller.
func writesOf(role metav1.ObjectMeta, rules []rbacv1.PolicyRule, account string) (found []string) {
	parts := []string{account}
	switch account {
	case "liqo-csi-controller":
		parts = append(parts, "liqo-csi-provisioner", "liqo-csi-attacher", "liqo-csi-resizer", "liqo-csi-snapshotter", "liqo-csi-twins")
	case "liqo-csi-remote":
		parts = append(parts, "liqo-csi-session", "liqo-csi-labels")
	}
	if !slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(role.Name, part) }) {
		return nil
	}
	operations := map[string]string{"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE", "get": "", "list": "", "watch": ""}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				plural, subresource, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					operation, is := operations[verb]
					if !is {
						operation = strings.ToUpper(verb)
					}
					if slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, subresource) {
						operation = "CONNECT"
					}
					if operation != "" {
						of := strings.TrimSuffix(plural+"."+group, ".")
						found = append(found, operation+" "+strings.TrimSuffix(of+"/"+subresource, "/"))
					}
				}
			}
		}
	}
	return found
}
