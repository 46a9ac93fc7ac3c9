package offload

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// podRights grants all rights on the pods of a namespace, more than any default role does.
const podRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods}
rules:
  - {apiGroups: [""], resources: [pods, pods/status, pods/binding], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pods}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pods}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: e2e-user}
`

// The metadata that the fabric writes on a pod keeps it from running twice. Users may write everything else.
func TestOnlyTheFabricChangesItsMarksOnPods(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Apply(podRights)
	client, _ := impersonate(t, n.Cluster, "e2e-user", "system:authenticated")
	n.Pod("web", "", stateless)
	n.WaitReady("web")
	const refusal = "only the fabric may change the finalizer"
	try := func(client kubernetes.Interface, kind types.PatchType, patch string, parts ...string) (*corev1.Pod, error) {
		return client.CoreV1().Pods(n.Name).Patch(t.Context(), "web", kind, []byte(patch), dryRunPatch, parts...)
	}
	const (
		freed    = `{"metadata": {"finalizers": null}}`
		moved    = `{"metadata": {"annotations": {"fabric.storage.liqo.io/remote-cluster": "other"}}}`
		labelled = `{"metadata": {"labels": {"team": "a"}}}`
		own      = `{"status": {"conditions": [{"type": "example.test/Own", "status": "True"}]}}`
	)
	for what, one := range map[string]struct {
		kind  types.PatchType
		patch string
		parts []string
		words string
	}{
		"the finalizer":             {types.MergePatchType, freed, nil, refusal},
		"an annotation":             {types.MergePatchType, moved, nil, refusal},
		"a new annotation":          {types.MergePatchType, `{"metadata": {"annotations": {"fabric.storage.liqo.io/new": "a"}}}`, nil, refusal},
		"the label":                 {types.MergePatchType, `{"metadata": {"labels": {"liqo.io/shadowPod": null}}}`, nil, refusal},
		"the conditions":            {types.MergePatchType, `{"status": {"conditions": []}}`, []string{"status"}, refusal},
		"a condition":               {types.StrategicMergePatchType, `{"status": {"conditions": [{"type": "fabric.storage.liqo.io/RemotePodStarted", "message": "other"}]}}`, []string{"status"}, refusal},
		"an annotation by status":   {types.MergePatchType, moved, []string{"status"}, refusal},
		"another label":             {types.MergePatchType, labelled, nil, ""},
		"another condition":         {types.StrategicMergePatchType, own, []string{"status"}, ""},
		"the phase, as kubelets do": {types.MergePatchType, `{"status": {"reason": "Evicted"}}`, []string{"status"}, ""},
	} {
		_, err := try(client, one.kind, one.patch, one.parts...)
		checkOutcome(t, what, err, one.words)
	}
	pods := client.CoreV1().Pods(n.Name)
	for what, edit := range map[string]func(*corev1.Pod){
		"a plain pod":             func(*corev1.Pod) {},
		"Liqo's own pod":          func(pod *corev1.Pod) { pod.Labels = map[string]string{"liqo.io/shadowPod": "true"} },
		"a remote pod of another": func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fabric.storage.liqo.io/home-pod": "a/b"} },
	} {
		made, err := pods.Create(t.Context(), newPod("made", edit), dryRunCreate)
		checkOutcome(t, what, err, "")
		if wanted := newPod("made", edit); err == nil && (!maps.Equal(made.Labels, wanted.Labels) || !maps.Equal(made.Annotations, wanted.Annotations)) {
			t.Errorf("%s has the labels %v and the annotations %v", what, made.Labels, made.Annotations)
		}
	}
	// A copy, as by kubectl debug --copy-to or from a backup, is a new pod, also if an
	// administrator creates it.
	web, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, client := range map[string]kubernetes.Interface{"a user": client, "an administrator": n.Client} {
		made, err := client.CoreV1().Pods(n.Name).Create(t.Context(), newPod("made", func(pod *corev1.Pod) {
			pod.Annotations, pod.Labels, pod.Finalizers = web.Annotations, web.Labels, append(web.Finalizers, "example.test/own")
		}), dryRunCreate)
		if err != nil {
			t.Errorf("%s cannot copy a pod: %v", what, err)
			continue
		}
		for key := range made.Annotations {
			if strings.HasPrefix(key, "fabric.storage.liqo.io/") {
				t.Errorf("the copy by %s has the annotation %s", what, key)
			}
		}
		if made.Labels["liqo.io/shadowPod"] != "" || !slices.Equal(made.Finalizers, []string{"example.test/own"}) {
			t.Errorf("the copy by %s has the labels %v and the finalizers %v", what, made.Labels, made.Finalizers)
		}
	}
	// Without the label of its selector, the controller would create pods without end.
	_, err = pods.Create(t.Context(), newPod("made", func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"fabric.storage.liqo.io/app": "web"}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1", Controller: ptr.To(true)}}
	}), dryRunCreate)
	checkOutcome(t, "a pod whose controller selects it by a label of the fabric", err, refusal)
	// Kubernetes copies the annotations of a binding to the pod.
	waiting := newPod("waiting", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "nobody" })
	if _, err := pods.Create(t.Context(), waiting, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "waiting", Annotations: map[string]string{"fabric.storage.liqo.io/remote-cluster": name}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	checkOutcome(t, "a binding", pods.Bind(t.Context(), binding, dryRunCreate), refusal)
	if _, err := try(n.Client, types.MergePatchType, freed); err != nil {
		t.Error("an administrator is refused: ", err)
	}
	n.DeletePod("web")
}

// A user may create a pod with the gate that a policy adds to pods with claims. The fabric must open it.
func TestSchedulingGateOfAUsersPodIsRemoved(t *testing.T) {
	n := newTenant(t)
	n.Pod("web", "", withoutVolumes, func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "fabric.storage.liqo.io/claims"}}
	})
	n.WaitReady("web")
	n.DeletePod("web")
}
