package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

const controllerUser = "system:serviceaccount:liqo-csi:liqo-csi-controller"

// writtenBy returns a write by this account in the namespace of the release, or of a cluster-scoped object.
func writtenBy(user, resource, old, object string) request {
	r := written(resource, nil, old, object)
	switch kind, _, _ := strings.Cut(resource, "/"); kind {
	case "pods", "secrets", "persistentvolumeclaims":
		r.Namespace = plainNamespace(Namespace)
	}
	r.User = user
	return r
}

// The namespace of the release allows privileged pods, for the node plugin, and RBAC cannot limit which pods the controller
// creates there. Policies leave of this what moves need.
func TestControllerRunsOnlyMoversAndRelays(t *testing.T) {
	const name, movers, namespace = "move-source-0123456789abcdef", "controller-movers", "controller-namespace"
	claim := func(of string) map[string]any {
		return map[string]any{"name": "data", "persistentVolumeClaim": map[string]any{"claimName": of}}
	}
	secret := func(of string) map[string]any {
		return map[string]any{"name": "secrets", "secret": map[string]any{"secretName": of}}
	}
	pod := func(changes map[string]any) request {
		spec := map[string]any{"volumes": []any{claim(name), secret(name + "-01234567")}}
		maps.Copy(spec, changes)
		return writtenBy(controllerUser, "pods", "", mover(t, spec, nil))
	}
	// container returns a mover with these changes of its container.
	container := func(changes map[string]any) request {
		var whole struct{ Spec map[string]any }
		if err := json.Unmarshal([]byte(mover(t, nil, nil)), &whole); err != nil {
			t.Fatal(err)
		}
		all := whole.Spec["containers"].([]any)
		maps.Copy(all[0].(map[string]any), changes)
		return pod(map[string]any{"containers": all})
	}
	relay := func(changes map[string]any, volumes ...any) request {
		spec := map[string]any{"serviceAccountName": "liqo-csi-relay", "automountServiceAccountToken": true, "volumes": volumes}
		maps.Copy(spec, changes)
		r := pod(spec)
		text := strings.ReplaceAll(string(r.Object), name, "move-relay-0123456789abcdef")
		text = strings.Replace(text, `"args":["source"],"command":["/usr/local/bin/liqo-csi","mover"]`, `"args":["relay"],"command":["/usr/local/bin/liqo-csi"]`, 1)
		r.Object = json.RawMessage(text)
		return r
	}
	token := func(source string) map[string]any {
		var volume map[string]any
		if err := json.Unmarshal([]byte(`{"name": "kube-api-access-abcde", "projected": {"sources": [`+source+`]}}`), &volume); err != nil {
			t.Fatal(err)
		}
		return volume
	}
	own := token(`{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}`)
	deletion := func(resource, of string) request {
		return writtenBy(controllerUser, resource, fmt.Sprintf(`{"metadata": {"name": %q}}`, of), "")
	}
	forward := func(user, of string) request {
		r := writtenBy(user, "pods/portforward", "", `{"kind": "PodPortForwardOptions", "apiVersion": "v1"}`)
		r.Operation, r.Name = "CONNECT", of
		return r
	}
	made := func(of, kind string) request {
		return writtenBy(controllerUser, "secrets", "", fmt.Sprintf(`{"metadata": {"name": %q}, "type": %q}`, of, kind))
	}
	bound := func(of, to string) request {
		return writtenBy(controllerUser, "persistentvolumeclaims", "", fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"volumeName": %q}}`, of, to))
	}
	hostPath := map[string]any{"name": "data", "hostPath": map[string]any{"path": "/"}}
	const relayUser = "system:serviceaccount:liqo-csi:liqo-csi-relay"
	checkRequests(t, Values{"fabric": Values{"enabled": true}}, []checkedRequest{
		{"a mover", pod(nil), ""},
		{"a mover of another version", container(map[string]any{"image": "ghcr.io/liqo-csi/liqo-csi@sha256:00"}), ""},
		{"a relay", relay(nil, own, secret(name+"-01234567")), ""},
		{"a mover with a priority", pod(map[string]any{"priorityClassName": "default", "priority": 1000}), ""},
		{"the host's files", pod(map[string]any{"volumes": []any{hostPath}}), movers},
		{"a claim of others", pod(map[string]any{"volumes": []any{claim("data-db-0")}}), movers},
		{"a kubeconfig", pod(map[string]any{"volumes": []any{secret("rome")}}), movers},
		{"the account of the fabric", pod(map[string]any{"serviceAccountName": "liqo-csi-fabric"}), movers},
		{"the relay's account in a mover", pod(map[string]any{"serviceAccountName": "liqo-csi-relay"}), movers},
		{"a token in a mover", pod(map[string]any{"volumes": []any{own}}), movers},
		{"the node plugin's account in a relay", relay(map[string]any{"serviceAccountName": "liqo-csi-node"}, own), movers},
		{"kubeconfigs in a relay", relay(nil, token(`{"secret": {"name": "rome"}}`)), movers},
		{"a claim in a relay", relay(nil, own, claim("move-target-0123456789abcdef")), movers},
		{"the host's network", pod(map[string]any{"hostNetwork": true}), movers},
		{"a node", pod(map[string]any{"nodeName": "worker"}), movers},
		{"privileges", container(map[string]any{"securityContext": map[string]any{"privileged": true}}), movers},
		{"a capability", container(map[string]any{"securityContext": map[string]any{"capabilities": map[string]any{"add": []any{"SYS_ADMIN"}}}}), movers},
		{"a shell", container(map[string]any{"command": []any{"/bin/sh"}}), movers},
		{"another program of the image", container(map[string]any{"command": []any{"/usr/local/bin/liqo-csi"}, "args": []any{"node"}}), movers},
		{"another program in a relay", relay(map[string]any{"containers": []any{map[string]any{
			"name": "a", "image": "ghcr.io/liqo-csi/liqo-csi:v1", "command": []any{"/usr/local/bin/liqo-csi"}, "args": []any{"fabric"}}}}, own), movers},
		{"another image", container(map[string]any{"image": "ghcr.io/liqo-csi/liqo-csi-x:v1"}), movers},
		{"variables", container(map[string]any{"env": []any{map[string]any{"name": "LD_PRELOAD", "value": "/data/a.so"}}}), movers},
		{"another path", container(map[string]any{"volumeMounts": []any{map[string]any{"name": "data", "mountPath": "/usr/local/bin"}}}), movers},
		{"a second container", pod(map[string]any{"initContainers": []any{map[string]any{"name": "b", "image": "b"}}}), movers},

		{"deletion of a mover", deletion("pods", name), ""},
		{"deletion of the node plugin", deletion("pods", "liqo-csi-node-abcde"), namespace},
		{"the ports of a mover", forward(controllerUser, name), ""},
		{"the ports of a mover from a relay", forward(relayUser, "move-target-0123456789abcdef"), ""},
		{"the ports of the controller from a relay", forward(relayUser, "liqo-csi-controller-abcde"), namespace},
		{"the Secret of a mover", made(name+"-01234567", "Opaque"), ""},
		{"the Secret in a dry run", made(name, "Opaque"), ""},
		{"the certificates of a move", made("move-certificates-0123456789abcdef", "Opaque"), ""},
		{"a token of the node plugin", made(name+"-01234567", "kubernetes.io/service-account-token"), namespace},
		{"a kubeconfig of its own", made("rome", "Opaque"), namespace},
		{"deletion of certificates", deletion("secrets", "move-certificates-0123456789abcdef"), ""},
		{"deletion of a kubeconfig", deletion("secrets", "rome"), namespace},
		{"the claim of a mover", bound(name, name), ""},
		{"the claim of a mover, with a volume of others", bound(name, "pv"), namespace},
	})
	// An administrator creates what he wants in that namespace.
	admin := pod(map[string]any{"volumes": []any{hostPath}})
	admin.User = "admin"
	checkRequests(t, nil, []checkedRequest{{"a pod of an administrator", admin, ""}, {"the host's files", pod(map[string]any{"volumes": []any{hostPath}}), movers}})
	checkRequests(t, Values{"mover": Values{"image": "r.test:5000/m:v1"}}, []checkedRequest{
		{"the image of the value", container(map[string]any{"image": "r.test:5000/m:v2"}), ""}, {"that of the driver", container(nil), movers},
	})
	for _, values := range []Values{
		nil, {"imageRegistry": "r.test:5000/mirror"}, {"imageRegistry": "r.test", "mover": Values{"image": "ghcr.io/a/m@sha256:00"}},
		{"image": Values{"repository": "r.test:5000/a", "tag": "v1@sha256:00"}},
	} {
		text, err := helm(t).Render(t.Context(), Release, Namespace, values)
		if err != nil {
			t.Fatal(err)
		}
		_, image, _ := strings.Cut(string(text), "--mover-image=")
		image, _, _ = strings.Cut(image, "\n")
		checkRequests(t, values, []checkedRequest{{"the image of the controller's option " + image, container(map[string]any{"image": image}), ""}})
	}
}

// RBAC gives the controller rights on all nodes and volumes.
func TestControllerWritesOnlyItsPartOfNodesAndVolumes(t *testing.T) {
	node := func(changes string) string {
		const worker = `{"metadata": {"name": "worker", "labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"podCIDR": "10.0.1.0/24"}}`
		text, err := jsonpatch.MergePatch([]byte(worker), []byte(changes))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	update := func(changes string) request { return writtenBy(controllerUser, "nodes", node(`{}`), node(changes)) }
	const csiNodes = "csinodes.storage.k8s.io"
	entries := func(entries string) string {
		return `{"metadata": {"name": "worker"}, "spec": {"drivers": ` + entries + `}}`
	}
	const other, ours = `{"name": "d", "nodeID": "n", "topologyKeys": null}`, `{"name": "storage.liqo.io", "nodeID": "n"}`
	owned := strings.Replace(entries(`[`+ours+`]`), `"worker"`, `"worker", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "0"}]`, 1)
	volume := func(source string) request {
		return writtenBy(controllerUser, "persistentvolumes", "", `{"metadata": {"name": "pv"}, "spec": {`+source+`}}`)
	}
	checkRequests(t, nil, []checkedRequest{
		{"its labels", update(`{"metadata": {"labels": {"topology.storage.liqo.io/cluster": "rome", "storage.liqo.io/virtual-node": "true"}}}`), ""},
		{"another label", update(`{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`), "controller-nodes"},
		{"a label of others", update(`{"metadata": {"labels": {"a": null}}}`), "controller-nodes"},
		{"a taint", update(`{"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}`), "controller-nodes"},
		{"an annotation of a network plugin", update(`{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}}`), "controller-nodes"},
		{"a finalizer", update(`{"metadata": {"finalizers": ["storage.liqo.io/x"]}}`), "controller-nodes"},

		{"the entries of a virtual node", writtenBy(controllerUser, csiNodes, "", entries(`[`+ours+`]`)), ""},
		{"the entries of others on a new node", writtenBy(controllerUser, csiNodes, "", entries(`[`+other+`]`)), "controller-csinodes"},
		{"its entry", writtenBy(controllerUser, csiNodes, entries(`[`+other+`]`), entries(`[`+other+`, `+ours+`]`)), ""},
		{"the first entry", writtenBy(controllerUser, csiNodes, entries(`null`), entries(`[`+ours+`]`)), ""},
		{"without its entry", writtenBy(controllerUser, csiNodes, entries(`[`+ours+`]`), entries(`[]`)), ""},
		{"an owner that does not exist", writtenBy(controllerUser, csiNodes, entries(`[`+ours+`]`), owned), "controller-csinodes"},
		{"without the entry of another", writtenBy(controllerUser, csiNodes, entries(`[`+other+`, `+ours+`]`), entries(`[`+ours+`]`)), "controller-csinodes"},

		{"a volume of its own", volume(`"csi": {"driver": "storage.liqo.io", "volumeHandle": "h"}`), ""},
		{"a directory of a node", volume(`"hostPath": {"path": "/"}`), "controller-volumes"},
		{"a disk of a node", volume(`"local": {"path": "/"}`), "controller-volumes"},
		{"a volume of another driver", volume(`"csi": {"driver": "d", "volumeHandle": "h"}`), "controller-volumes"},
	})
}

// RBAC allows it for the serving certificates of all kubelets.
func TestControllerApprovesOnlyCertificatesOfTheFabric(t *testing.T) {
	approval := func(signer, user string) request {
		object := fmt.Sprintf(`{"metadata": {"name": "a"}, "spec": {"signerName": %q, "username": %q}}`, signer, user)
		return writtenBy(controllerUser, "certificatesigningrequests.certificates.k8s.io/approval", object, object)
	}
	const serving, fabricUser, policy = "kubernetes.io/kubelet-serving", "system:serviceaccount:liqo-csi:liqo-csi-fabric", "controller-certificates"
	checkRequests(t, offloading(Values{"streams": Values{"approveCertificates": true}}), []checkedRequest{
		{"of the fabric", approval(serving, fabricUser), ""},
		{"of a kubelet", approval(serving, "system:node:worker"), policy},
		{"a client's", approval("kubernetes.io/kube-apiserver-client", fabricUser), policy},
	})
}

// Of pods of others, the controller removes its gate, and holds those with claims of others in this cluster.
func TestControllerOnlyOpensItsGateOfPods(t *testing.T) {
	const policy, gate, other = "controller-pods", `{"name": "fabric.storage.liqo.io/claims"}`, `{"name": "a.test/held"}`
	gated := `{"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"schedulingGates": [` + gate + `, ` + other + `], "nodeSelector": {"a": "b"},
		"containers": [{"name": "a", "image": "a"}], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
		[{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}}}`
	open := `"schedulingGates": [` + other + `]`
	change := func(old, patch string) request {
		changed, err := jsonpatch.MergePatch([]byte(old), []byte(patch))
		if err != nil {
			t.Fatal(err)
		}
		r := written("pods", plainNamespace("shop"), old, string(changed))
		r.User = controllerUser
		return r
	}
	terms := func(expressions string) string {
		return `"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [` + expressions + `]}]}}}`
	}
	const zone, home, worker = `{"key": "zone", "operator": "Exists"}`, `{"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]}`,
		`{"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker"]}`
	preferred := `"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {"matchExpressions": [` + worker + `]}}]}}`
	free := strings.Replace(gated, terms(zone), `"affinity": {}`, 1)
	checkRequests(t, offloading(Values{"policies": true}), []checkedRequest{
		{"open", change(gated, `{"spec": {`+open+`}}`), ""},
		{"open and hold", change(gated, `{"spec": {`+open+`, `+terms(zone+`, `+home)+`}}`), ""},
		{"open and hold without terms", change(free, `{"spec": {`+open+`, `+terms(home)+`}}`), ""},
		{"choose the node", change(gated, `{"spec": {`+open+`, `+terms(zone+`, `+worker)+`}}`), policy},
		{"choose the node as well", change(free, `{"spec": {`+open+`, `+terms(home+`, `+worker)+`}}`), policy},
		{"prefer a node", change(gated, `{"spec": {`+open+`, `+preferred+`}}`), policy},
		{"choose the node by its name", change(free, `{"spec": {`+open+`, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
			[{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["worker"]}]}]}}}}}`), policy},
		{"hold without opening", change(gated, `{"spec": {`+terms(zone+`, `+home)+`}}`), policy},
		{"open another gate", change(gated, `{"spec": {"schedulingGates": [`+gate+`]}}`), policy},
		{"open all gates", change(gated, `{"spec": {"schedulingGates": []}}`), policy},
		{"another pod", change(strings.Replace(gated, gate+`, `, "", 1), `{"metadata": {"labels": {"a": "c"}}}`), policy},
		{"an image", change(gated, `{"spec": {`+open+`, "containers": [{"name": "a", "image": "b"}]}}`), policy},
		{"a selector", change(gated, `{"spec": {`+open+`, "nodeSelector": {"a": "b", "c": "d"}}}`), policy},
		{"a toleration", change(gated, `{"spec": {`+open+`, "tolerations": [{"operator": "Exists"}]}}`), policy},
		{"a deadline", change(gated, `{"spec": {`+open+`, "activeDeadlineSeconds": 1}}`), policy},
		{"a label", change(gated, `{"metadata": {"labels": {"a": "c"}}, "spec": {`+open+`}}`), policy},
		{"a finalizer", change(gated, `{"metadata": {"finalizers": ["a.test/held"]}, "spec": {`+open+`}}`), policy},
		{"an owner", change(gated, `{"metadata": {"ownerReferences": [{"kind": "a"}]}, "spec": {`+open+`}}`), policy},
	})
}
