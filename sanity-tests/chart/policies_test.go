package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/components"
)

const (
	remoteUser = "system:serviceaccount:liqo-csi:liqo-csi-remote"
	contents   = "volumesnapshotcontents.snapshot.storage.k8s.io"
	snapshots  = "volumesnapshots.snapshot.storage.k8s.io"
)

// request is Request of components/policies.
type request struct {
	User, Operation, Resource, Name string
	Groups                          []string
	Object, OldObject               json.RawMessage
	Namespace                       *corev1.Namespace
	Rights                          []string
}

// refusals returns the messages of the policies that refuse each request, evaluated with the code
// of the API server.
func refusals(t *testing.T, values Values, requests []request) []string {
	t.Helper()
	var policies []*admissionv1.ValidatingAdmissionPolicy
	for _, object := range render(t, values) {
		if policy, is := object.(*admissionv1.ValidatingAdmissionPolicy); is {
			policies = append(policies, policy)
		}
	}
	question, err := json.Marshal(map[string]any{"Policies": policies, "Requests": requests})
	if err != nil {
		t.Fatal(err)
	}
	root, err := components.ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "go", "run", "-trimpath", ".")
	command.Dir = filepath.Join(root, "components", "policies")
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	command.Stdin = bytes.NewReader(question)
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		t.Fatalf("evaluate the policies: %v: %s", err, &said)
	}
	var answers []string
	if err := json.Unmarshal(out, &answers); err != nil || len(answers) != len(requests) {
		t.Fatalf("%v: %s", err, out)
	}
	return answers
}

// write is a merge patch. refused is a part of the message that refuses it; others means that
// another identity writes it.
type write struct{ what, patch, refused string }

const others = "by others"

// history is a sequence of writes of one object. A refused write does not change it.
type history struct {
	resource, object string
	rights           []string
	writes           []write
}

func checkHistories(t *testing.T, values Values, histories map[string]history) {
	t.Helper()
	var requests []request
	var names []string
	var wanted []write
	for name, it := range histories {
		current := []byte(it.object)
		for _, one := range it.writes {
			next, err := jsonpatch.MergePatch(current, []byte(one.patch))
			if err != nil {
				t.Fatal(name, one.what, err)
			}
			if one.refused != others {
				names, wanted = append(names, name+": "+one.what), append(wanted, one)
				requests = append(requests, request{
					User: remoteUser, Operation: "UPDATE", Resource: it.resource, Object: next, OldObject: current, Rights: it.rights,
				})
			}
			if one.refused == "" || one.refused == others {
				current = next
			}
		}
	}
	for at, refusal := range refusals(t, values, requests) {
		if words := wanted[at].refused; (words == "") != (refusal == "") || !strings.Contains(refusal, words) {
			t.Errorf("%s: the refusal is %q instead of %q", names[at], refusal, words)
		}
	}
}

// volume returns a PersistentVolume with this reclaim policy and the claim shop/data.
func volume(policy string) string {
	return `{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv", "labels": {"a": "b"}, "finalizers": ["kubernetes.io/pv-protection"]},
		"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "` + policy + `",
		"claimRef": {"namespace": "shop", "name": "data", "uid": "u1", "resourceVersion": "7"}, "csi": {"driver": "d", "volumeHandle": "h"}},
		"status": {"phase": "Bound"}}`
}

// The driver may write the volumes of its twins (crates/twin: reclaim, holder, delete;
// crates/moves: gate; crates/controllers: recovery), and with the same rights no data of others is
// deleted.
func TestRemoteVolumesAllowOnlyTheDriversWrites(t *testing.T) {
	gate := func(gated string) string {
		return `"storage.liqo.io/gate": "{\"version\":1,\"move\":\"m\",\"gate\":1` + gated + `}"`
	}
	gated := gate(`,\"gated\":{\"policy\":\"Delete\",\"claimUid\":\"u1\"}`)
	const (
		retain   = `{"metadata": {"annotations": {"storage.liqo.io/reclaim-policy-before": "Delete", "storage.liqo.io/data-of": "home/pvc-1"}}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}`
		back     = `{"metadata": {"annotations": {"storage.liqo.io/reclaim-policy-before": null}}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}`
		toDelete = `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`
		another  = `{"spec": {"claimRef": {"name": "other", "uid": "u2", "resourceVersion": null}}}`
		again    = `{"spec": {"claimRef": {"uid": "u2", "resourceVersion": null}}}`
		released = `{"status": {"phase": "Released"}}`
		noClaim  = "from its claim where it may not create pods"
		noData   = "back to what it was"
	)
	closed := `{"metadata": {"annotations": {` + gated + `}}, "spec": {"persistentVolumeReclaimPolicy": "Retain",
		"claimRef": {"name": "move-source-0123456789abcdef", "uid": "m1", "resourceVersion": null}}}`
	opened := `{"spec": {"claimRef": {"name": "data", "uid": "u1", "resourceVersion": null}}}`
	pods := []string{"create pods shop"}
	checkHistories(t, remoteFabric(nil), map[string]history{
		"a rolled back move": {"persistentvolumes", volume("Delete"), pods, []write{
			{"close the gate", closed, ""}, {"open it", opened, ""},
			{"the policy", `{"metadata": {"annotations": {` + gate("") + `}}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, ""},
		}},
		"a rolled back move to Retain": {"persistentvolumes", volume("Delete"), pods, []write{
			{"close the gate", closed, ""}, {"open it", opened, ""},
			{"the policy", `{"metadata": {"annotations": {` + gate("") + `, "storage.liqo.io/reclaim-policy-before": "Delete"}}}`, ""},
			{"the policy later", back, ""},
		}},
		"a move within a namespace": {"persistentvolumes", volume("Delete"), pods, []write{
			{"close the gate", closed, ""},
			{"retain the source", `{"metadata": {"annotations": {` + gate("") + `, "storage.liqo.io/reclaim-policy-before": "Delete", "storage.liqo.io/source-of-move": "s"}}}`, ""},
			{"its twin is deleted", released, others},
			{"release the source", back, ""},
		}},
		"the target of one": {"persistentvolumes", volume("Delete"), pods, []write{
			{"retain", retain, ""}, {"pass on", another, ""}, {"the policy", back, ""},
		}},
		"a move with Liqo": {"persistentvolumes", volume("Delete"), []string{"create shadowpods.offloading.liqo.io shop"}, []write{
			{"close the gate", closed, ""},
		}},
		"a gate without the right to pods": {"persistentvolumes", volume("Delete"), nil, []write{
			{"close the gate", closed, noClaim}, {"it is closed", closed, others}, {"open it", opened, ""},
		}},
		"a recovery": {"persistentvolumes", volume("Delete"), nil, []write{
			{"retain", retain, ""}, {"the twin is deleted", released, others}, {"the twin is recreated", again, ""},
			{"bound", `{"status": {"phase": "Bound"}}`, others}, {"the policy", back, ""},
		}},
		"a deletion of retained data": {"persistentvolumes", volume("Delete"), nil, []write{
			{"retain", retain, ""}, {"the uid of the claimRef is removed", `{"spec": {"claimRef": {"uid": null}}, "status": {"phase": "Available"}}`, others},
			{"delete", `{"metadata": {"annotations": {"storage.liqo.io/reclaim-policy-before": null}},
				"spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"uid": "pvc-1"}}}`, ""},
		}},
		"a deletion without a claim": {"persistentvolumes", volume("Delete"), nil, []write{
			{"retain", retain, ""}, {"the claimRef is removed", `{"spec": {"claimRef": null}, "status": {"phase": "Available"}}`, others},
			{"delete", `{"spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"uid": "pvc-1"}}}`, ""},
		}},
		"retained data of others": {"persistentvolumes", volume("Retain"), []string{"create pods mine"}, []write{
			{"Delete", toDelete, noData}, {"Recycle", `{"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}`, noData},
			{"the annotation with the previous policy", retain, noData}, {"a gate", `{"metadata": {"annotations": {` + gated + `}}}`, noData},
			{"marks of the driver", `{"metadata": {"annotations": {"storage.liqo.io/data-of": "home/pvc-1"}}}`, ""},
			{"Delete afterwards", toDelete, noData},
			{"another claim", another, noClaim}, {"a claim of that name", again, noClaim},
			{"a claim of another namespace", `{"spec": {"claimRef": {"namespace": "mine"}}}`, "of another namespace"},
			{"no claim", `{"spec": {"claimRef": null}}`, "of another namespace"},
			{"its claim is deleted", released, others}, {"Delete at last", toDelete, noData},
		}},
		"data of others": {"persistentvolumes", volume("Delete"), []string{"create pods mine"}, []write{
			{"another claim", another, noClaim}, {"a claim of that name", again, noClaim}, {"the gate of a move", closed, noClaim},
			{"a label", `{"metadata": {"labels": {"a": "c"}}}`, "but its own"}, {"mount options", `{"spec": {"mountOptions": ["ro"]}}`, "but their reclaim policy"},
		}},
		"a volume without a claim": {"persistentvolumes", strings.Replace(volume("Retain"), `"claimRef"`, `"other"`, 1), pods, []write{
			{"a claim", `{"spec": {"claimRef": {"namespace": "shop", "name": "data"}}}`, "of another namespace"},
		}},
	})
}

// The same for the data of snapshots.
func TestRemoteSnapshotContentsAllowOnlyTheDriversWrites(t *testing.T) {
	content := func(policy, snapshot string) string {
		return `{"metadata": {"name": "c"}, "spec": {"deletionPolicy": "` + policy + `", "driver": "d", "source": {"volumeHandle": "h"},
			"volumeSnapshotRef": {"namespace": "shop", "name": "` + snapshot + `"}}}`
	}
	const (
		retain   = `{"metadata": {"annotations": {"storage.liqo.io/deletion-policy-before": "Delete", "storage.liqo.io/data-of": "s"}}, "spec": {"deletionPolicy": "Retain"}}`
		back     = `{"metadata": {"annotations": {"storage.liqo.io/deletion-policy-before": null, "storage.liqo.io/data-of": null}}, "spec": {"deletionPolicy": "Delete"}}`
		toDelete = `{"spec": {"deletionPolicy": "Delete"}}`
		mode     = `{"metadata": {"annotations": {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}}}`
		noData   = "back to what it was"
		notOwn   = "of its own snapshots"
	)
	checkHistories(t, remoteFabric(nil), map[string]history{
		"a twin": {contents, content("Delete", "snapshot-1"), nil, []write{
			{"retain", retain, ""}, {"the mode", mode, ""}, {"back", back, ""}, {"an annotation", `{"metadata": {"annotations": {"a": "b"}}}`, "but its own"},
			{"the source", `{"spec": {"source": {"volumeHandle": "other"}}}`, notOwn}, {"the class", `{"spec": {"volumeSnapshotClassName": "c"}}`, notOwn},
		}},
		"retained": {contents, content("Retain", "snapshot-1"), nil, []write{
			{"Delete", toDelete, noData}, {"the annotation with the previous policy", retain, noData}, {"Delete afterwards", toDelete, noData},
		}},
		"of others": {contents, content("Delete", "backup"), nil, []write{{"retain", retain, notOwn}, {"the mode", mode, notOwn}}},
	})
}

// RBAC cannot distinguish a twin from a claim or snapshot of others.
func TestRemoteClaimsOfOthersAreProtected(t *testing.T) {
	labelled := func(labels ...string) json.RawMessage {
		object := map[string]any{"metadata": map[string]any{"name": "data", "namespace": "shop", "labels": labelsOf(labels)}}
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const managed, home, move = "app.kubernetes.io/managed-by=storage.liqo.io", "storage.liqo.io/home-cluster=", "storage.liqo.io/move=m"
	for level, id := range map[string]string{"minimal": "rome", "full": "", "fabric": "rome"} {
		access := Values{"only": true, "level": level, "homeClusterID": id, "subjects": []Values{{"kind": "Group", "name": "liqo"}}}
		if level == "minimal" {
			access["namespaces"] = []string{"shop"}
		}
		var requests []request
		var may []bool
		for _, one := range []struct {
			object json.RawMessage
			may    bool
		}{
			{labelled(managed, home+"rome"), true}, {labelled(managed, move), true}, {labelled(managed, home+"milan"), id == ""},
			{labelled(managed, home+"milan", move), id == ""}, {labelled(managed), false}, {labelled(home + "rome"), false}, {labelled(), false},
		} {
			marked := labelled(managed, home+"rome")
			for _, resource := range []string{"persistentvolumeclaims", snapshots} {
				requests = append(requests,
					request{User: remoteUser, Operation: "CREATE", Resource: resource, Object: one.object},
					request{User: remoteUser, Operation: "UPDATE", Resource: resource, OldObject: one.object, Object: marked},
					request{User: remoteUser, Operation: "DELETE", Resource: resource, OldObject: one.object},
					// Liqo's identity writes its own claims.
					request{User: "liqo", Groups: []string{"liqo"}, Operation: "DELETE", Resource: resource, OldObject: one.object})
				may = append(may, one.may, one.may, one.may, true)
			}
		}
		for at, refusal := range refusals(t, Values{"remoteAccess": access}, requests) {
			if (refusal == "") != may[at] || !may[at] && !strings.Contains(refusal, "but those that it has made") {
				t.Errorf("level %s of %q, %s %s of %s: %q", level, id, requests[at].Operation, requests[at].Resource, requests[at].OldObject, refusal)
			}
		}
	}
}

func labelsOf(pairs []string) map[string]string {
	labels := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		labels[key] = value
	}
	return labels
}

// newRemoteNamespace returns a remote namespace as the fabric creates it.
func newRemoteNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			"fabric.storage.liqo.io/home": homeID, "fabric.storage.liqo.io/home-namespace": "shop", "app.kubernetes.io/managed-by": "storage.liqo.io",
			"pod-security.kubernetes.io/enforce": "baseline", "kubernetes.io/metadata.name": name,
		},
		Annotations: map[string]string{"fabric.storage.liqo.io/home-uid": "u", "fabric.storage.liqo.io/home-namespace-uid": "n"},
	}}
}

// Annotations of namespaces grant as much as labels: a project of Rancher, ids of users on
// OpenShift.
func TestRemoteNamespacesAllowNoOtherMetadata(t *testing.T) {
	of := func(label, annotation string) request {
		namespace := newRemoteNamespace("shop-rome")
		if label != "" {
			namespace.Labels[label] = "x"
		}
		if annotation != "" {
			namespace.Annotations[annotation] = "x"
		}
		text, err := json.Marshal(namespace)
		if err != nil {
			t.Fatal(err)
		}
		return request{User: remoteUser, Operation: "CREATE", Resource: "namespaces", Object: text, Namespace: namespace}
	}
	deleted := of("other", "other")
	deleted.Operation, deleted.OldObject, deleted.Object = "DELETE", deleted.Object, nil
	requests := []request{
		of("", ""), of("field.cattle.io/projectId", ""), of("", "field.cattle.io/projectId"), deleted,
		of("openshift.io/run-level", ""), of("", "openshift.io/sa.scc.uid-range"),
	}
	words := []string{"", "", "", "", "no labels but those", "no annotations but those"}
	for at, refusal := range refusals(t, remoteFabric(Values{"namespaceLabels": []string{"field.cattle.io/projectId"}}), requests) {
		if (words[at] == "") != (refusal == "") || !strings.Contains(refusal, words[at]) {
			t.Errorf("%s: %q instead of %q", requests[at].Object, refusal, words[at])
		}
	}
}

// A priority pre-empts pods of the cluster. Pods have none unless it is listed, also if it is the default.
func TestRemotePodsHaveOnlyListedPriorities(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop-rome", Labels: map[string]string{"fabric.storage.liqo.io/home": homeID}}}
	pod := func(class string, priority int) request {
		text := fmt.Sprintf(`{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}], "automountServiceAccountToken": false,
			"priorityClassName": %q, "priority": %d}}`, class, priority)
		return request{User: remoteUser, Operation: "CREATE", Resource: "pods", Object: json.RawMessage(text), Namespace: namespace}
	}
	requests := []request{pod("", 0), pod("low", -5), pod("high", 1000), pod("listed", 1000), pod("system-node-critical", 2000001000)}
	for at, refusal := range refusals(t, remoteFabric(Values{"pods": Values{"priorityClasses": []string{"listed"}}}), requests) {
		if may := at != 2 && at != 4; may != (refusal == "") {
			t.Errorf("%s: %q", requests[at].Object, refusal)
		}
	}
	if refusal := refusals(t, remoteFabric(nil), requests[2:3])[0]; !strings.Contains(refusal, "remoteAccess.pods.priorityClasses") {
		t.Errorf("by default: %q", refusal)
	}
}

// What an attacker in the fabric's process may not write: other nodes, their pods, and what their own pods run. Policies
// decide it, for the fabric's rights are on all nodes and pods.
func TestRequestsOfTheFabricAreLimitedToItsNodes(t *testing.T) {
	const fabricUser = "system:serviceaccount:liqo-csi:liqo-csi-fabric"
	pod := func(node, image, phase, mark string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"metadata": {"name": "p", "namespace": "shop", "labels": {"app": "shop"}, "annotations": {%s}},
			"spec": {"nodeName": %q, "containers": [{"name": "a", "image": %q}]}, "status": {"phase": %q}}`, mark, node, image, phase))
	}
	node := func(cluster, taint string) json.RawMessage {
		label := ""
		if cluster != "" {
			label = fmt.Sprintf(`"fabric.storage.liqo.io/cluster": %q`, cluster)
		}
		return json.RawMessage(fmt.Sprintf(`{"metadata": {"name": "rome", "labels": {%s}}, "spec": {"taints": [{"key": "virtual-node.liqo.io/not-allowed", "effect": "NoExecute"},
			{"key": %q, "effect": "NoSchedule"}]}}`, label, taint))
	}
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	isOwn := []string{"run fabricnodes.storage.liqo.io liqo-csi rome"}
	write := func(resource string, old, object json.RawMessage) request {
		operation := "UPDATE"
		switch {
		case old == nil:
			operation = "CREATE"
		case object == nil:
			operation = "DELETE"
		}
		r := request{User: fabricUser, Operation: operation, Resource: resource, Object: object, OldObject: old, Rights: isOwn}
		if strings.HasPrefix(resource, "pods") {
			r.Namespace = shop
		}
		return r
	}
	byUser := func(r request) request { r.User = "user"; return r }
	own, real := pod("rome", "a", "Pending", ""), pod("worker", "a", "Running", "")
	const mark, usersMark = `"fabric.storage.liqo.io/remote": "r"`, `"app.example/owner": "me"`
	checkRequests(t, Values{"fabric": Values{"enabled": true}}, []checkedRequest{
		{"the status of its own pod", write("pods/status", own, pod("rome", "a", "Running", "")), ""},
		{"a mark of its own pod", write("pods", own, pod("rome", "a", "Pending", mark)), ""},
		{"the end of its own pod", write("pods", own, nil), ""},
		{"the image of its own pod", write("pods", own, pod("rome", "b", "Pending", "")), "fabric-pods"},
		{"an annotation of others", write("pods", own, pod("rome", "a", "Pending", usersMark)), "fabric-pods"},
		{"the image of a pod on a real node", write("pods", real, pod("worker", "b", "Running", "")), "fabric-pods"},
		{"the status of a pod on a real node", write("pods/status", real, pod("worker", "a", "Failed", "")), "fabric-pods"},
		{"a debug container on a real node", write("pods/ephemeralcontainers", real, real), "fabric-pods"},
		{"the end of a pod on a real node", write("pods", real, nil), "fabric-pods"},
		{"the end of a pod without a node", write("pods", pod("", "a", "Pending", ""), nil), "fabric-pods"},
		{"a user deletes a pod on a real node", byUser(write("pods", real, nil)), ""},
		{"a user writes a mark", byUser(write("pods", own, pod("rome", "a", "Pending", mark))), "fabric-marks-of-pods"},

		{"a node of its own", write("nodes", nil, node("rome", "a")), ""},
		{"a taint of its own node", write("nodes", node("rome", "a"), node("rome", "b")), ""},
		{"the end of its own node", write("nodes", node("rome", "a"), nil), ""},
		{"a node without its label", write("nodes", nil, node("", "a")), "fabric-nodes"},
		{"a taint of a real node", write("nodes", node("", "a"), node("", "b")), "fabric-nodes"},
		{"the status of a real node", write("nodes/status", node("", "a"), node("", "a")), "fabric-nodes"},
		{"a real node becomes its own", write("nodes", node("", "a"), node("rome", "a")), "fabric-nodes"},
		{"its own node becomes another cluster's", write("nodes", node("rome", "a"), node("milan", "a")), "fabric-nodes"},
		{"the end of a real node", write("nodes", node("", "a"), nil), "fabric-nodes"},
	})
}

// checkedRequest is a request, and the prefix of the name of the policy that refuses it, or "".
type checkedRequest struct {
	what      string
	request   request
	refusedBy string
}

func checkRequests(t *testing.T, values Values, all []checkedRequest) {
	t.Helper()
	var requests []request
	for _, one := range all {
		requests = append(requests, one.request)
	}
	for at, refusal := range refusals(t, values, requests) {
		if want := all[at].refusedBy; (want == "") != (refusal == "") || !strings.HasPrefix(refusal, want) {
			t.Errorf("%s: the refusal is %q, want one of %q", all[at].what, refusal, want)
		}
	}
}

func TestOffloadingOfSystemNamespacesIsRefused(t *testing.T) {
	in := func(name string) request {
		return request{
			User: "user", Operation: "CREATE", Resource: "namespaceoffloadings.offloading.liqo.io",
			Object:    json.RawMessage(`{"metadata": {"name": "offloading"}, "spec": {}}`),
			Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		}
	}
	values := Values{"fabric": Values{"enabled": true}, "storageNamespace": "twins", "liqo": Values{"tenantNamespaces": []string{"tenant-a"}}}
	checkRequests(t, values, []checkedRequest{
		{"a user's namespace", in("shop"), ""},
		{"one of Kubernetes", in("kube-system"), "never-offloaded"},
		{"that of the driver", in("liqo-csi"), "never-offloaded"},
		{"that of the twins", in("twins"), "never-offloaded"},
		{"a tenant's of Liqo", in("tenant-a"), "never-offloaded"},
	})
}

// An ExternalName may be any name, whatever addresses are allowed: where these are limited, it has to be allowed as well.
func TestExternalNamesAreRefusedWhereAddressesAreLimited(t *testing.T) {
	namespace := newRemoteNamespace("shop-rome")
	of := func(kind string) request {
		text := fmt.Sprintf(`{"metadata": {"name": "db"}, "spec": {"type": %q, "externalName": "db.example.com"}}`, kind)
		return request{User: remoteUser, Operation: "CREATE", Resource: "services", Object: json.RawMessage(text), Namespace: namespace}
	}
	const policy = "liqo-csi-remote.liqo-csi-configuration"
	limited := []string{"10.0.0.0/16"}
	for _, one := range []struct {
		what      string
		values    Values
		refusedBy string
	}{
		{"by default", nil, ""},
		{"refused", Values{"externalNames": false}, policy},
		{"with limited addresses", Values{"endpointCIDRs": limited}, policy},
		{"allowed with limited addresses", Values{"endpointCIDRs": limited, "externalNames": true}, ""},
		{"the default, written", Values{"endpointCIDRs": limited, "externalNames": "auto"}, policy},
	} {
		checkRequests(t, remoteFabric(one.values), []checkedRequest{
			{"an ExternalName, " + one.what, of("ExternalName"), one.refusedBy},
			{"a ClusterIP, " + one.what, of("ClusterIP"), ""},
		})
	}
}

// The home cluster chooses the names of its remote namespaces, unless a value limits them.
func TestNamesOfRemoteNamespacesMatchTheValue(t *testing.T) {
	named := func(name string) request {
		namespace := newRemoteNamespace(name)
		text, err := json.Marshal(namespace)
		if err != nil {
			t.Fatal(err)
		}
		return request{User: remoteUser, Operation: "CREATE", Resource: "namespaces", Object: text, Namespace: namespace}
	}
	checkRequests(t, remoteFabric(nil), []checkedRequest{{"any name, by default", named("istio-system"), ""}})
	checkRequests(t, remoteFabric(Values{"namespaceNames": `[a-z\d-]+-rome`}), []checkedRequest{
		{"a name that matches", named("shop-rome"), ""},
		{"another name", named("istio-system"), "liqo-csi-remote.liqo-csi"},
		{"a name that only begins so", named("shop-rome-too"), "liqo-csi-remote.liqo-csi"},
	})
}
