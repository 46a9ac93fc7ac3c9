package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Requests with a stolen token: each one is an attack, or a request that the driver sends.

const (
	fence      = "liqo-csi-remote.liqo-csi"
	ofNoFabric = "shop"
)

// written returns a write by the identity of the home cluster: a creation if there is no old object, a deletion if there is no
// new one.
func written(resource string, namespace *corev1.Namespace, old, object string) request {
	r := request{User: remoteUser, Operation: "UPDATE", Resource: resource, Namespace: namespace, OldObject: json.RawMessage(old), Object: json.RawMessage(object)}
	switch {
	case old == "":
		r.Operation, r.OldObject = "CREATE", nil
	case object == "":
		r.Operation, r.Object = "DELETE", nil
	}
	return r
}

// plainNamespace returns a namespace that no fabric has created.
func plainNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// mover returns the pod that crates/moves/src/movers/pod.rs makes, as API servers complete it, with these changes of its
// spec and of its labels.
func mover(t *testing.T, changes, labels map[string]any) string {
	t.Helper()
	spec := map[string]any{}
	if err := json.Unmarshal([]byte(`{
		"automountServiceAccountToken": false, "serviceAccountName": "default", "restartPolicy": "Never", "enableServiceLinks": false,
		"nodeSelector": {"kubernetes.io/os": "linux"}, "terminationGracePeriodSeconds": 1, "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "schedulerName": "default-scheduler",
		"securityContext": {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": false, "seccompProfile": {"type": "RuntimeDefault"}},
		"tolerations": [
			{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
			{"key": "dedicated", "operator": "Equal", "value": "db", "effect": "NoSchedule"},
			{"operator": "Exists", "effect": "NoSchedule"},
			{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
		"containers": [{"name": "mover", "image": "ghcr.io/liqo-csi/liqo-csi:v1", "imagePullPolicy": "IfNotPresent",
			"command": ["/usr/local/bin/liqo-csi", "mover"], "args": ["source"], "resources": {"limits": {"memory": "256Mi"}},
			"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}},
			"volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "secrets", "mountPath": "/secrets"}]}],
		"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
			{"name": "secrets", "secret": {"secretName": "move-source-0123456789abcdef-01234567", "defaultMode": 256}}]}`), &spec); err != nil {
		t.Fatal(err)
	}
	maps.Copy(spec, changes)
	all := map[string]any{
		"app.kubernetes.io/managed-by": "storage.liqo.io", "app.kubernetes.io/component": "mover", "storage.liqo.io/move": "m",
		"storage.liqo.io/volume": "pvc-1", "storage.liqo.io/move-side": "source",
	}
	maps.Copy(all, labels)
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"name": "move-source-0123456789abcdef", "labels": all, "annotations": map[string]any{"storage.liqo.io/made-as": "d"},
	}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// With remoteAccess.move, RBAC allows to create and delete all pods of the listed namespaces and to forward their ports.
// Policies leave of this what movers need.
func TestMoversAreAllThatAnIdentityMayRun(t *testing.T) {
	listed := plainNamespace(ofNoFabric)
	create := func(changes, labels map[string]any) request {
		return written("pods", listed, "", mover(t, changes, labels))
	}
	deletion := func(name string) request {
		r := written("pods", listed, fmt.Sprintf(`{"metadata": {"name": %q, "namespace": "shop"}}`, name), "")
		r.Name = name
		return r
	}
	forward := func(name string) request {
		r := written("pods/portforward", listed, "", `{"kind": "PodPortForwardOptions", "apiVersion": "v1"}`)
		r.Operation, r.Name = "CONNECT", name
		return r
	}
	secret := func(name string) request {
		return written("secrets", listed, "", fmt.Sprintf(`{"metadata": {"name": %q}, "type": "Opaque"}`, name))
	}
	pre := map[string]any{"priorityClassName": "high", "priority": 1000}
	tolerates := func(toleration map[string]any) map[string]any {
		return map[string]any{"tolerations": []any{toleration}}
	}
	volumes := func(volumes string) map[string]any {
		var all []any
		if err := json.Unmarshal([]byte(`[`+volumes+`]`), &all); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"volumes": all}
	}
	all := []checkedRequest{
		{"a mover", create(nil, nil), ""},
		{"a mover of a low priority", create(map[string]any{"priorityClassName": "low", "priority": -5}, nil), ""},
		{"a mover with labels of its node", create(nil, map[string]any{"topology.kubernetes.io/zone": "a"}), ""},
		{"a priority", create(pre, nil), fence + "-movers"},
		{"a RuntimeClass", create(map[string]any{"runtimeClassName": "kata"}, nil), fence + "-movers"},
		{"a device", create(map[string]any{"resourceClaims": []any{map[string]any{"name": "a", "resourceClaimName": "gpu"}}}, nil), fence + "-movers"},
		{"every toleration", create(tolerates(map[string]any{"operator": "Exists"}), nil), fence + "-movers"},
		{"a toleration of NoExecute", create(tolerates(map[string]any{"key": "a", "operator": "Exists", "effect": "NoExecute"}), nil), fence + "-movers"},
		{"the label of a Service's pods", create(nil, map[string]any{"app": "db"}), fence + "-movers"},
		{"a claim and another", create(volumes(`{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "b"}}`), nil), fence + "-movers"},
		{"a Secret of others", create(volumes(`{"name": "a", "secret": {"secretName": "move-source-0123456789abcde"}}`), nil), fence + "-movers"},
		{"a Secret of others among its own", create(volumes(`{"name": "a", "projected": {"sources": [{"secret": {"name": "db"}}]}}`), nil), fence + "-movers"},
		{"a claim of its own class", create(volumes(`{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}`), nil), fence + "-movers"},
		{"an image with programs", create(volumes(`{"name": "a", "image": {"reference": "a"}}`), nil), fence + "-movers"},
		{"another container", create(map[string]any{"initContainers": []any{map[string]any{"name": "b", "image": "b"}}}, nil), fence + "-movers"},
		{"a node", create(map[string]any{"nodeName": "worker"}, nil), fence + "-movers"},
		{"the component of others", create(nil, map[string]any{"app.kubernetes.io/component": "db"}), fence + "-movers"},

		{"deletion of a mover", deletion("move-source-0123456789abcdef"), ""},
		{"deletion of a mover of the target", deletion("move-target-0123456789abcdef"), ""},
		{"deletion of a pod of a user", deletion("postgres-0"), fence + "-mover-pods"},
		{"deletion of a pod with a similar name", deletion("move-source-0123456789abcdef-0"), fence + "-mover-pods"},
		{"the ports of a mover", forward("move-target-0123456789abcdef"), ""},
		{"the ports of a pod of a user", forward("postgres-0"), fence + "-mover-pods"},
		{"the ports of a pod without a name", forward(""), fence + "-mover-pods"},

		{"the Secret of a mover", secret("move-target-0123456789abcdef-01234567"), ""},
		{"the Secret in a dry run", secret("move-target-0123456789abcdef"), ""},
		{"a Secret that a user's pod waits for", secret("move-tls"), fence + "-mover-secrets"},
	}
	byUser := deletion("postgres-0")
	byUser.User = "user"
	all = append(all, checkedRequest{"a user deletes a pod", byUser, ""})
	for _, level := range []string{"namespaced", "minimal"} {
		access := Values{"only": true, "level": level, "namespaces": []string{ofNoFabric}, "homeClusterID": homeID, "move": true}
		t.Run(level, func(t *testing.T) {
			checkRequests(t, Values{"remoteAccess": access}, all)
			refused := refusals(t, Values{"remoteAccess": access}, []request{create(pre, nil)})[0]
			if !strings.Contains(refused, "remoteAccess.pods.priorityClasses") {
				t.Errorf("the refusal of a priority does not name the value to set: %s", refused)
			}
			access["pods"] = Values{"priorityClasses": []string{"high"}}
			checkRequests(t, Values{"remoteAccess": access}, []checkedRequest{{"a listed priority", create(pre, nil), ""}})
		})
	}
}

// With a volume of an in-tree type, a pod mounts any disk, share or target that the nodes reach. Only listed types are allowed.
func TestRemotePodsMountOnlyListedTypes(t *testing.T) {
	namespace := newRemoteNamespace("shop-rome")
	pod := func(volume string) request {
		return written("pods", namespace, "", `{"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false,
			"containers": [{"name": "a", "image": "a"}], "volumes": [{"name": "v", `+volume+`}]}}`)
	}
	harmless := []string{
		`"configMap": {"name": "a"}`, `"secret": {"secretName": "a"}`, `"downwardAPI": {"items": []}`, `"emptyDir": {}`, `"image": {"reference": "a"}`,
		`"persistentVolumeClaim": {"claimName": "a"}`, `"ephemeral": {"volumeClaimTemplate": {}}`, `"csi": {"driver": "inline.test"}`,
		`"projected": {"sources": [{"configMap": {"name": "a"}}, {"clusterTrustBundle": {"name": "a", "path": "a"}}]}`,
	}
	direct := []string{
		`"awsElasticBlockStore": {"volumeID": "a"}`, `"azureDisk": {"diskName": "a", "diskURI": "a"}`, `"azureFile": {"shareName": "a", "secretName": "a"}`,
		`"cephfs": {"monitors": ["a"]}`, `"cinder": {"volumeID": "a"}`, `"fc": {"targetWWNs": ["a"], "lun": 1}`, `"flocker": {"datasetName": "a"}`,
		`"gcePersistentDisk": {"pdName": "a"}`, `"glusterfs": {"endpoints": "a", "path": "a"}`, `"iscsi": {"targetPortal": "a", "iqn": "a", "lun": 0}`,
		`"nfs": {"server": "a", "path": "/"}`, `"photonPersistentDisk": {"pdID": "a"}`, `"portworxVolume": {"volumeID": "a"}`,
		`"quobyte": {"registry": "a", "volume": "a"}`, `"rbd": {"monitors": ["a"], "image": "a"}`,
		`"scaleIO": {"gateway": "a", "system": "a", "secretRef": {"name": "a"}}`, `"storageos": {"volumeName": "a"}`, `"vsphereVolume": {"volumePath": "a"}`,
		`"typeOfTomorrow": {}`,
	}
	never := []string{`"hostPath": {"path": "/"}`, `"flexVolume": {"driver": "a/b"}`, `"gitRepo": {"repository": "a"}`}
	check := func(t *testing.T, values Values, volumes []string, words string) {
		t.Helper()
		var requests []request
		for _, volume := range volumes {
			requests = append(requests, pod(volume))
		}
		for at, refusal := range refusals(t, remoteFabric(values), requests) {
			if (words == "") != (refusal == "") || !strings.Contains(refusal, words) {
				t.Errorf("with %v, %s: %q instead of %q", values, volumes[at], refusal, words)
			}
		}
	}
	const value = "remoteAccess.pods.volumeTypes"
	check(t, nil, harmless, "")
	check(t, nil, direct, value)
	nfs := Values{"pods": Values{"volumeTypes": []string{"nfs"}}}
	check(t, nfs, direct[10:11], "")
	check(t, nfs, direct[:10], value)
	everyType := Values{"pods": Values{"volumeTypes": "any"}}
	check(t, everyType, direct, "")
	check(t, everyType, never, "may not have hostPath")
	check(t, Values{"pods": Values{"inlineDrivers": []string{}}}, harmless[7:8], "remoteAccess.pods.inlineDrivers")
	for _, wrong := range []any{"all", []string{"hostPath"}, []string{"NFS"}} {
		if _, err := helm(t).Render(t.Context(), Release, Namespace, remoteFabric(Values{"pods": Values{"volumeTypes": wrong}})); err == nil {
			t.Errorf("the types %v are accepted", wrong)
		}
	}
	// Pods from before an upgrade stay, and their resources and labels change.
	existing := pod(direct[10])
	existing.Operation, existing.OldObject = "UPDATE", existing.Object
	checkRequests(t, remoteFabric(nil), []checkedRequest{{"a change of an existing pod", existing, ""}})
	// At home, the same list keeps pods there that would be refused.
	for _, types := range []any{[]string{"nfs"}, "any"} {
		values := offloading(Values{"policies": true})
		values["remoteAccess"] = Values{"pods": Values{"volumeTypes": types}}
		variables := named[*admissionv1.MutatingAdmissionPolicy](t, render(t, values), "offloaded-pods.storage.liqo.io").Spec.Variables
		at := slices.IndexFunc(variables, func(one admissionv1.Variable) bool { return one.Name == "whyRefused" })
		if is := strings.Contains(variables[at].Expression, "'secret', 'nfs']"); is != (types != "any") {
			t.Errorf("with the types %v at home: %s", types, variables[at].Expression)
		}
	}
}

// A certificate is an identity of the cluster that issues it, as a token is.
func TestRemotePodsGetNoIdentityOfTheCluster(t *testing.T) {
	namespace := newRemoteNamespace("shop-rome")
	pod := func(source string) request {
		return written("pods", namespace, "", `{"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false,
			"containers": [{"name": "a", "image": "a"}], "volumes": [{"name": "v", "projected": {"sources": [`+source+`]}}]}}`)
	}
	checkRequests(t, remoteFabric(Values{"podSecurity": "privileged"}), []checkedRequest{
		{"a certificate", pod(`{"podCertificate": {"signerName": "kubernetes.io/kube-apiserver-client-pod", "keyType": "ED25519"}}`), podsPolicy},
		{"a token", pod(`{"serviceAccountToken": {"path": "t"}}`), podsPolicy},
		{"the certificates of authorities", pod(`{"clusterTrustBundle": {"name": "x", "path": "p"}}`), ""},
	})
}

// The policies of the identity also limit the service accounts of the fabric's namespaces, and no others.
func TestAccountsOfRemoteNamespacesAreLimitedLikeTheIdentity(t *testing.T) {
	const endpointSlices, bindings = "endpointslices.discovery.k8s.io", "rolebindings.rbac.authorization.k8s.io"
	of := func(user, namespace string) func(resource, object string) request {
		return func(resource, object string) request {
			there := newRemoteNamespace(namespace)
			if namespace == ofNoFabric {
				there = plainNamespace(namespace)
			}
			r := written(resource, there, "", object)
			r.User = user
			return r
		}
	}
	const account = "system:serviceaccount:shop-rome:default"
	in := of(account, "shop-rome")
	external := `{"metadata": {"name": "a"}, "spec": {"externalIPs": ["192.0.2.1"]}}`
	balanced := `{"metadata": {"name": "a"}, "spec": {"type": "LoadBalancer"}}`
	token := `{"metadata": {"name": "a"}, "type": "kubernetes.io/service-account-token"}`
	slice := func(manager, address string) string {
		return fmt.Sprintf(`{"metadata": {"name": "a", "labels": {"endpointslice.kubernetes.io/managed-by": %q}}, "addressType": "IPv4",
			"endpoints": [{"addresses": [%q]}]}`, manager, address)
	}
	endpoints := `{"metadata": {"name": "a", "labels": {"endpointslice.kubernetes.io/managed-by": "fabric.storage.liqo.io"}}, "subsets": [{"addresses": [{"ip": "192.0.2.1"}]}]}`
	binding := `{"metadata": {"name": "a"}, "roleRef": {"kind": "ClusterRole", "name": "edit"}, "subjects": [{"kind": "User", "name": "x"}]}`
	deleted := written("secrets", newRemoteNamespace("shop-rome"), token, "")
	deleted.User = account
	all := []checkedRequest{
		{"a Service", in("services", `{"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}`), ""},
		{"a Secret", in("secrets", `{"metadata": {"name": "a"}, "type": "Opaque"}`), ""},
		{"a ConfigMap", in("configmaps", `{"metadata": {"name": "a"}}`), ""},
		{"an allowed EndpointSlice", in(endpointSlices, slice("fabric.storage.liqo.io", "10.0.0.1")), ""},
		{"external addresses", in("services", external), fence + "-accounts-configuration"},
		{"a load balancer", in("services", balanced), fence + "-accounts-configuration"},
		{"a token", in("secrets", token), fence + "-accounts-configuration"},
		{"deletion of a token", deleted, fence + "-accounts-configuration"},
		{"an EndpointSlice", in(endpointSlices, slice("mine", "10.0.0.1")), fence + "-accounts-endpointslices"},
		{"another address", in(endpointSlices, slice("fabric.storage.liqo.io", "192.0.2.1")), fence + "-accounts-endpointslices"},
		{"Endpoints, which become EndpointSlices", in("endpoints", endpoints), fence + "-accounts-endpointslices"},
		{"a RoleBinding", in(bindings, binding), fence + "-accounts-rolebindings"},
	}
	for _, other := range []func(resource, object string) request{
		of("system:serviceaccount:shop:default", ofNoFabric), of("system:serviceaccount:kube-system:endpointslice-controller", "shop-rome"), of("admin", "shop-rome"),
	} {
		all = append(all, checkedRequest{"a Service of others", other("services", external), ""}, checkedRequest{"a token of others", other("secrets", token), ""},
			checkedRequest{"an EndpointSlice of others", other(endpointSlices, slice("mine", "192.0.2.1")), ""}, checkedRequest{"a RoleBinding of others", other(bindings, binding), ""})
	}
	identity := of(remoteUser, "shop-rome")
	all = append(all, checkedRequest{"Endpoints of the identity", identity("endpoints", endpoints), fence + "-endpointslices"},
		checkedRequest{"a Service of the identity", identity("services", external), fence + "-configuration"})
	values := remoteFabric(Values{"endpointCIDRs": []string{"10.0.0.0/16"}})
	checkRequests(t, values, all)
	objects := render(t, values)
	for _, policy := range []string{"-accounts-endpointslices", "-accounts-configuration", "-accounts-rolebindings"} {
		isBound(t, objects, fence+policy)
	}
}

// An administrator who removes a label of a remote namespace does not prevent its deletion when it is no longer offloaded.
func TestRemoteNamespacesAreDeletedByTheLabelOfTheirHomeCluster(t *testing.T) {
	without := func(label string) (namespace *corev1.Namespace, object string) {
		namespace = newRemoteNamespace("shop-rome")
		delete(namespace.Labels, "fabric.storage.liqo.io/"+label)
		text, err := json.Marshal(namespace)
		if err != nil {
			t.Fatal(err)
		}
		return namespace, string(text)
	}
	noHome, ofOthers := without("home")
	noNamespace, stripped := without("home-namespace")
	checkRequests(t, remoteFabric(nil), []checkedRequest{
		{"delete without the home namespace", written("namespaces", noNamespace, stripped, ""), ""},
		{"delete without the home cluster", written("namespaces", noHome, ofOthers, ""), fence},
		{"create without the home namespace", written("namespaces", noNamespace, "", stripped), fence},
	})
}

// A finalizer would keep a volume or a snapshot of others for ever. The driver writes none there.
func TestRemoteVolumesGetNoFinalizers(t *testing.T) {
	add := func(finalizers string) string { return `{"metadata": {"finalizers": ` + finalizers + `}}` }
	content := `{"metadata": {"name": "c", "finalizers": ["a.test/held"]}, "spec": {"deletionPolicy": "Delete", "volumeSnapshotRef": {"name": "snapshot-1"}}}`
	const words = "no finalizers"
	checkHistories(t, remoteFabric(nil), map[string]history{
		"a volume": {"persistentvolumes", volume("Delete"), nil, []write{
			{"an invented one", add(`["kubernetes.io/pv-protection", "storage.liqo.io/x"]`), words},
			{"that of moves at home", add(`["kubernetes.io/pv-protection", "storage.liqo.io/move"]`), words},
			{"none", add(`null`), words},
			{"an annotation of the driver", `{"metadata": {"annotations": {"storage.liqo.io/data-of": "home/pvc-1"}}}`, ""},
		}},
		"a snapshot": {contents, content, nil, []write{
			{"an invented one", add(`["a.test/held", "storage.liqo.io/x"]`), words}, {"none", add(`null`), words},
			{"an annotation of the driver", `{"metadata": {"annotations": {"storage.liqo.io/data-of": "s"}}}`, ""},
		}},
	})
}

// A claim with a finalizer keeps its namespace from being deleted, and the identity may create claims in all namespaces.
func TestRemoteClaimsGetNoInventedFinalizers(t *testing.T) {
	claim := func(finalizers string) string {
		return `{"metadata": {"name": "a", "finalizers": [` + finalizers + `],
			"labels": {"app.kubernetes.io/managed-by": "storage.liqo.io", "storage.liqo.io/home-cluster": "rome"}}}`
	}
	of := func(resource, old, object string) request {
		return written(resource, plainNamespace(ofNoFabric), old, object)
	}
	const claims, twins, others = "persistentvolumeclaims", `"kubernetes.io/pvc-protection", "storage.liqo.io/twin"`, `"a.test/held"`
	checkRequests(t, remoteFabric(nil), []checkedRequest{
		{"a twin", of(claims, "", claim(twins)), ""},
		{"an invented one", of(claims, "", claim(others)), fence + "-claims"},
		{"an invented one of a snapshot", of(snapshots, "", claim(others)), fence + "-claims"},
		{"an invented one, later", of(claims, claim(twins), claim(twins+`, `+others)), fence + "-claims"},
		{"a change while others have set one", of(claims, claim(others), claim(others+`, "storage.liqo.io/twin"`)), ""},
		{"deletion", of(claims, claim(others), ""), ""},
	})
}

// A fabric that is installed again in another namespace has another account: it replaces the bindings of the earlier one.
func TestFabricReplacesOnlyBindingsOfItsRole(t *testing.T) {
	const role, others = "liqo-csi-fabric-reflected", "db"
	binding := func(name, role, namespace string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q}, "roleRef": {"kind": "ClusterRole", "name": %q},
			"subjects": [{"kind": "ServiceAccount", "name": "liqo-csi-fabric", "namespace": %q}]}`, name, role, namespace)
	}
	by := func(old, object string) request {
		r := written("rolebindings.rbac.authorization.k8s.io", plainNamespace("shop"), old, object)
		r.User = "system:serviceaccount:liqo-csi:liqo-csi-fabric"
		return r
	}
	own, earlier := binding(role, role, "liqo-csi"), binding(role, role, "earlier")
	const bindings = "fabric-bindings"
	checkRequests(t, Values{"fabric": Values{"enabled": true}}, []checkedRequest{
		{"deletion of its own", by(own, ""), ""},
		{"deletion of an earlier one", by(earlier, ""), ""},
		{"deletion of one without an account", by(strings.Replace(own, "subjects", "none", 1), ""), ""},
		{"deletion of one of another role", by(binding(role, others, "liqo-csi"), ""), bindings},
		{"deletion of one of another name", by(binding(others, role, "liqo-csi"), ""), bindings},
		{"one for the earlier account", by("", earlier), bindings},
		{"its own becomes that of the earlier account", by(own, earlier), bindings},
	})
}

// A node of no RemoteCluster, or without the taint of virtual nodes, would attract the pods of this cluster.
func TestFabricMakesOnlyDeclaredNodes(t *testing.T) {
	const fabricUser = "system:serviceaccount:liqo-csi:liqo-csi-fabric"
	const taint, note = `{"key": "virtual-node.liqo.io/not-allowed", "value": "true", "effect": "NoExecute"}`, `{"key": "note", "effect": "PreferNoSchedule"}`
	node := func(name string, taints ...string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"fabric.storage.liqo.io/cluster": "rome"}}, "spec": {"taints": [%s]}}`, name, strings.Join(taints, ", "))
	}
	lease := func(name string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"fabric.storage.liqo.io/cluster": "rome"}}}`, name)
	}
	// with returns the node rome with these changes.
	with := func(changes string) string {
		text, err := jsonpatch.MergePatch([]byte(node("rome", taint)), []byte(changes))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	by := func(resource, old, object string) request {
		var in *corev1.Namespace
		if strings.HasPrefix(resource, "leases") {
			in = plainNamespace("kube-node-lease")
		}
		r := written(resource, in, old, object)
		r.User, r.Rights = fabricUser, []string{"run fabricnodes.storage.liqo.io liqo-csi rome"}
		return r
	}
	const nodes, leases = "fabric-nodes", "fabric-leases"
	const kindOfLeases = "leases.coordination.k8s.io"
	checkRequests(t, Values{"fabric": Values{"enabled": true}}, []checkedRequest{
		{"a declared node", by("nodes", "", node("rome", taint, note)), ""},
		{"a node that nobody declared", by("nodes", "", node("any", taint)), nodes},
		{"a declared node without the taint", by("nodes", "", node("rome", note)), nodes},
		{"a declared node with a weaker taint", by("nodes", "", node("rome", strings.Replace(taint, "NoExecute", "PreferNoSchedule", 1))), nodes},
		{"another taint", by("nodes", node("rome", taint), node("rome", taint, note)), ""},
		{"without the taint", by("nodes", node("rome", taint), node("rome")), nodes},
		{"the taint, that others removed", by("nodes", node("rome"), node("rome", taint)), ""},
		{"a status while others have removed the taint", by("nodes/status", node("rome"), node("rome")), ""},
		// The Role does not name the node of a RemoteCluster that is gone.
		{"deletion of a node", by("nodes", node("gone", taint), ""), ""},
		{"a status", by("nodes/status", node("gone", taint), node("gone", taint)), ""},
		{"addresses of the pods of others", by("nodes", "", with(`{"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}}`)), nodes},
		{"addresses of the pods of others, later", by("nodes", node("rome", taint), with(`{"spec": {"podCIDR": "10.0.1.0/24"}}`)), nodes},
		{"the addresses that Kubernetes assigned", by("nodes", with(`{"spec": {"podCIDR": "10.0.1.0/24"}}`), with(`{"spec": {"podCIDR": "10.0.1.0/24", "unschedulable": true}}`)), ""},
		{"without the addresses that Kubernetes assigned", by("nodes", with(`{"spec": {"podCIDR": "10.0.1.0/24"}}`), node("rome", taint)), nodes},
		{"the machine of another node", by("nodes", "", with(`{"spec": {"providerID": "aws:///a/i-1"}}`)), nodes},
		{"its own annotation", by("nodes", with(`{"metadata": {"annotations": {"a": ""}}}`), with(`{"metadata": {"annotations": {"a": "", "fabric.storage.liqo.io/ours": "{}"}}}`)), ""},
		{"the address of another node for a network plugin", by("nodes", "", with(`{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}}`)), nodes},
		{"an empty annotation of others", by("nodes", node("rome", taint), with(`{"metadata": {"annotations": {"a": ""}}}`)), nodes},
		{"the same through the status", by("nodes/status", node("rome", taint), with(`{"metadata": {"annotations": {"projectcalico.org/IPv4Address": "192.0.2.1"}}}`)), nodes},
		{"without an annotation of others", by("nodes", with(`{"metadata": {"annotations": {"a": "b"}}}`), node("rome", taint)), nodes},
		{"a finalizer", by("nodes", "", with(`{"metadata": {"finalizers": ["storage.liqo.io/x"]}}`)), nodes},
		{"the lease of a declared node", by(kindOfLeases, "", lease("rome")), ""},
		{"the lease of a node that nobody declared", by(kindOfLeases, "", lease("worker")), leases},
		{"the lease is renewed", by(kindOfLeases, lease("gone"), lease("gone")), ""},
		{"the lease of a real node", by(kindOfLeases, `{"metadata": {"name": "worker"}}`, `{"metadata": {"name": "worker"}}`), leases},
		{"the lease of a real node becomes its own", by(kindOfLeases, `{"metadata": {"name": "worker"}}`, lease("worker")), leases},
	})
}

// Without a NamespaceOffloading, no pods can be created in a namespace with the label. And a finalizer of the controller keeps a
// RemoteCluster while it has volumes.
func TestFabricStopsNoPodsOfTheSystem(t *testing.T) {
	const fabricUser, labels, specs = "system:serviceaccount:liqo-csi:liqo-csi-fabric", "fabric-labels-namespaces", "fabric-specs"
	of := func(resource, old, object string) request {
		r := written(resource, nil, old, object)
		r.User = fabricUser
		return r
	}
	labelled := func(name, before, after string) request {
		object := func(value string) string {
			return fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"kubernetes.io/metadata.name": %q%s}}}`, name, name, value)
		}
		return of("namespaces", object(before), object(after))
	}
	const on, other = `, "liqo.io/scheduling-enabled": "true"`, `, "liqo.io/scheduling-enabled": "false"`
	kept := func(finalizers string) string {
		return `{"metadata": {"name": "a", "finalizers": ` + finalizers + `}, "spec": {"namespaceMappingStrategy": "EnforceSameName"}}`
	}
	evicted := func(namespace string) request {
		r := written("pods/eviction", plainNamespace(namespace), "", `{"metadata": {"name": "a"}}`)
		r.User = fabricUser
		return r
	}
	const clusters, offloadings, evictions = "remoteclusters.storage.liqo.io", "namespaceoffloadings.offloading.liqo.io", "fabric-evictions"
	checkRequests(t, Values{"fabric": Values{"enabled": true}, "storageNamespace": "twins", "liqo": Values{"tenantNamespaces": []string{"tenant-a"}}}, []checkedRequest{
		{"a namespace of users", labelled("shop", "", on), ""},
		{"one of Kubernetes", labelled("kube-system", "", on), labels},
		{"one of Kubernetes, with another value", labelled("kube-system", other, on), labels},
		{"that of the driver", labelled("liqo-csi", "", on), labels},
		{"that of the twins", labelled("twins", "", on), labels},
		{"a tenant's of Liqo", labelled("tenant-a", "", on), labels},
		{"a label that others have set", labelled("kube-system", on, on), ""},
		{"remove it", labelled("kube-system", on, ""), ""},
		{"the eviction of a pod of users", evicted("shop"), ""},
		{"the eviction of a pod of Kubernetes", evicted("kube-system"), evictions},
		{"the eviction of a pod of the driver", evicted("liqo-csi"), evictions},
		{"another strategy", of(offloadings, kept(`[]`), strings.Replace(kept(`[]`), "EnforceSameName", "DefaultName", 1)), specs},
		{"its finalizer", of(clusters, kept(`["storage.liqo.io/volumes"]`), kept(`["storage.liqo.io/volumes", "fabric.storage.liqo.io/virtual-node"]`)), ""},
		{"without its finalizer", of(clusters, kept(`["fabric.storage.liqo.io/virtual-node", "storage.liqo.io/volumes"]`), kept(`["storage.liqo.io/volumes"]`)), ""},
		{"without the finalizer of the controller", of(clusters, kept(`["storage.liqo.io/volumes"]`), kept(`[]`)), specs},
		{"an invented finalizer", of(offloadings, kept(`[]`), kept(`["a.test/held"]`)), specs},
		{"the finalizer of an offloading", of(offloadings, kept(`[]`), kept(`["fabric.storage.liqo.io/remote-namespaces"]`)), ""},
	})
}
