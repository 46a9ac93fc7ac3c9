package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// These tests cover bugs that users reported for similar systems.

// renamedTenant is offloaded to a namespace with another name.
func renamedTenant(t *testing.T, args ...string) (tenant, *user.Namespace) {
	t.Helper()
	n := newTenant(t)
	n.offload(append([]string{"--namespace-mapping-strategy", "DefaultName"}, args...)...)
	name, _, _ := unstructured.NestedString(n.offloading().Object, "status", "remoteNamespaceName")
	if name == n.Name {
		t.Fatal("the remote namespace has the same name")
	}
	return n, user.ExistingNamespace(t, user.Cluster(t, "remote"), name)
}

func TestFieldsThatAreFalseAreFalseInTheRemotePod(t *testing.T) {
	n, remote := renamedTenant(t)
	no := false
	n.Pod("plain", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.EnableServiceLinks = &no
	})
	n.WaitReady("plain")
	running, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if links := running.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("the remote pod has the variables of Services")
	}
	// The nodes of the lab need no user namespaces: it is enough that the remote API server accepts
	// the pod.
	n.Pod("alone", "", stateless, func(pod *corev1.Pod) { pod.Spec.HostUsers = &no })
	remote.Eventually("the remote pod to be created", func(ctx context.Context) (string, error) {
		created, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, "alone", metav1.GetOptions{})
		if err != nil {
			return err.Error(), nil
		}
		if created.Spec.HostUsers == nil || *created.Spec.HostUsers {
			user.Violated(t, "the remote pod has no user namespace of its own")
		}
		return "", nil
	})
}

func TestPodsWithTopologySpreadRunRemotely(t *testing.T) {
	n, _ := renamedTenant(t)
	spread := func(when corev1.UnsatisfiableConstraintAction) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: when,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MatchLabelKeys: []string{"revision"},
		}
	}
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "web", "revision": "1"}
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			spread(corev1.ScheduleAnyway), spread(corev1.DoNotSchedule),
		}
	})
	n.WaitReady("web")
}

// Vendors of virtual nodes document these selectors, and old charts use the beta labels.
func TestVirtualNodesMatchUsualNodeSelectors(t *testing.T) {
	n, _ := renamedTenant(t)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.NodeSelector["type"] = "virtual-kubelet"
		pod.Spec.NodeSelector["kubernetes.io/role"] = "agent"
		pod.Spec.NodeSelector["beta.kubernetes.io/os"] = "linux"
	}, required(term(requirement(corev1.LabelArchStable, corev1.NodeSelectorOpNotIn, "s390x"))))
	n.WaitReady("web")
	n.Pod("foreign", "", stateless, func(pod *corev1.Pod) {
		// No remote node has this label, so the scheduler would not choose the virtual node.
		pod.Spec.NodeName, pod.Spec.NodeSelector = node, nil
	}, required(term(requirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "s390x"))))
	n.WaitEvent("foreign", "RemoteUnschedulable", "node affinity/selector")
}

// As at home, a pod must start with the current version of an optional object that was created
// before the pod.
func TestPodStartsWithTheConfigurationCreatedBeforeIt(t *testing.T) {
	n, remote := renamedTenant(t)
	optional := true
	const settings = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: %s}}"
	for _, color := range []string{"red", "green", "blue"} {
		n.Apply(fmt.Sprintf(settings, color))
		n.Pod(color, "", stateless, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "COLOR", ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "color", Optional: &optional,
				},
			}}}
		})
		n.WaitReady(color)
		if found := strings.TrimSpace(remote.Exec(color, "echo $COLOR")); found != color {
			user.Violated(t, "the pod has the color %q, not %s", found, color)
		}
	}
}

// As in the conformance tests of Kubernetes.
func TestSubPathMayUseAnAnnotationThatIsAddedLater(t *testing.T) {
	n, _ := renamedTenant(t)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		container := &pod.Spec.Containers[0]
		container.Env = []corev1.EnvVar{{Name: "DIRECTORY", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['directory']"},
		}}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		container.VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch", SubPathExpr: "$(DIRECTORY)/a"}}
	})
	n.waitPod("the container to fail without the annotation", "web", func(pod *corev1.Pod) string {
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Waiting != nil && status.State.Waiting.Reason == "CreateContainerConfigError" {
				return ""
			}
		}
		return fmt.Sprintf("%+v", pod.Status.ContainerStatuses)
	})
	if out, err := n.Kubectl("annotate", "pod", "web", "directory=named"); err != nil {
		t.Fatal(err, out)
	}
	n.WaitReady("web")
}

// A pod writes at home, its volume moves, and a pod in the remote cluster reads what it has written.
func TestSubPathWithTheNamespaceIsTheSameRemotely(t *testing.T) {
	n, remote := renamedTenant(t, "--pod-offloading-strategy", "LocalAndRemote")
	if err := driver.ImportImage(t.Context(), remote.Cluster); err != nil {
		t.Fatal(err)
	}
	byNamespace := func(pod *corev1.Pod) {
		container := &pod.Spec.Containers[0]
		container.Env = []corev1.EnvVar{{Name: "NAMESPACE", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"},
		}}}
		container.VolumeMounts[0].SubPathExpr = "tenants/$(NAMESPACE)"
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{
			Name: container.VolumeMounts[0].Name, MountPath: "/whole",
		})
	}
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("here", "data", byNamespace, user.PreferNode(n.Cluster.Nodes()[0].Name))
	if here := n.WaitReady("here"); here.Spec.NodeName == node {
		t.Fatal("the pod was offloaded")
	}
	n.Exec("here", "echo precious > "+user.DataPath+"/file && sync")
	n.DeletePod("here")
	n.Move("there", "data", "target: {nodeName: "+node+"}, retainSource: 1s")
	n.WaitMove("there", "Done")
	n.Pod("writer", "data", onVirtualNode, byNamespace)
	n.WaitReady("writer")
	if found := strings.TrimSpace(remote.Exec("writer", "ls /whole/tenants")); found != n.Name {
		user.Violated(t, "the directory in the remote cluster is named %q, not %s", found, n.Name)
	}
	if text := strings.TrimSpace(remote.Exec("writer", "cat "+user.DataPath+"/file")); text != "precious" {
		user.Violated(t, "the file has %q", text)
	}
}

// A retained volume is bound again by a claim of the same name, then by one of another name, and then by one to which it is
// given before the earlier claim is deleted, as CDI does.
func TestVolumeBoundToAnotherClaimKeepsItsData(t *testing.T) {
	n, remote := renamedTenant(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("one", "data", onVirtualNode)
	n.WaitReady("one")
	remote.Exec("one", "echo precious > "+user.DataPath+"/file && sync")
	volume := n.WaitBound("data").Name
	patch := func(text string) {
		t.Helper()
		if out, err := n.Kubectl("patch", "pv", volume, "--type=merge", "-p", text); err != nil {
			t.Fatal(err, out)
		}
	}
	patch(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	n.DeletePod("one")
	claim := "data"
	for _, next := range []string{"data", "renamed", "given"} {
		if next == "given" {
			patch(fmt.Sprintf(`{"spec":{"claimRef":{"name":%q,"namespace":%q,"uid":null,"resourceVersion":null}}}`, next, n.Name))
		}
		if out, err := n.Kubectl("delete", "pvc", claim); err != nil {
			t.Fatal(err, out)
		}
		if next != "given" {
			n.Eventually("the volume to be released", func(ctx context.Context) (string, error) {
				found, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
				if err != nil || found.Status.Phase == corev1.VolumeReleased {
					return "", err
				}
				return "it is " + string(found.Status.Phase), nil
			})
			patch(`{"spec":{"claimRef":null}}`)
		}
		n.Claim(next, "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = volume })
		pod := "of-" + next
		n.Pod(pod, next, onVirtualNode)
		n.WaitReady(pod)
		if text := remote.Exec(pod, "cat "+user.DataPath+"/file"); strings.TrimSpace(text) != "precious" {
			user.Violated(t, "the file has %q", text)
		}
		n.DeletePod(pod)
		claim = next
	}
	patch(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
}

func TestPodWithTokenSecretIsRefused(t *testing.T) {
	n, _ := renamedTenant(t)
	n.Apply(`{apiVersion: v1, kind: Secret, metadata: {name: token, annotations: {kubernetes.io/service-account.name: default}},
  type: kubernetes.io/service-account-token}`)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "token"},
		}}}
	})
	n.WaitEvent("web", "PodNotSupported", "the Secret token")
	n.DeletePod("web")
}

// Clients of the API read their namespace from a file, and some wait for it in an init container;
// Argo Workflows reads an annotation. The remote kubelet would wait for a ConfigMap that is not
// copied.
func TestRemotePodHasTheFilesAndVariablesThatItReads(t *testing.T) {
	n, remote := renamedTenant(t)
	const file = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.AutomountServiceAccountToken = nil
		pod.Annotations = map[string]string{"workflows.argoproj.io/template": "main"}
		container := &pod.Spec.Containers[0]
		container.Env = []corev1.EnvVar{{Name: "TEMPLATE", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['workflows.argoproj.io/template']"},
		}}}
		pod.Spec.InitContainers = []corev1.Container{{
			Name: "waits", Image: container.Image, SecurityContext: container.SecurityContext,
			Command: []string{"sh", "-c", "until [ -s " + file + " ]; do sleep 1; done"},
		}}
	})
	n.WaitReady("web")
	got := strings.Fields(remote.Exec("web", "cat "+file+"; echo; echo $TEMPLATE; ls "+strings.TrimSuffix(file, "/namespace")))
	got = got[max(0, len(got)-3):] // kubectl has said which container it takes
	if want := []string{remote.Name, "main", "namespace"}; !slices.Equal(got, want) {
		t.Errorf("the remote pod reads %q, not %q", got, want)
	}

	const settings = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, annotations: {liqo.io/skip-reflection: here}}, data: {color: red}}"
	n.Apply(settings)
	n.Pod("painter", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
		}}}
	})
	n.WaitEvent("painter", "PodNotSupported", "the ConfigMap settings", "skip-reflection")
	remote.Apply(strings.Replace(settings, "red", "blue", 1))
	n.WaitReady("painter")
	if color := remote.Exec("painter", "echo $color"); color != "blue" {
		t.Errorf("the remote pod has the color %q", color)
	}
}

// Claims of other drivers exist in the home cluster only.
func TestPodsWithClaimsOfOtherClassesStayAtHome(t *testing.T) {
	n, _ := renamedTenant(t, "--pod-offloading-strategy", "LocalAndRemote")
	const class = "reference"
	n.Claim("theirs", class, "64Mi")
	n.Claim("ours", "liqo-reference", "64Mi")
	preferring := func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{virtualNodeToleration}
		preferRemote(100)(pod)
	}
	n.Pod("late", "absent", preferring)
	n.Pod("tied", "theirs", preferring)
	n.Pod("free", "ours", onVirtualNode)
	if tied := n.WaitReady("tied"); tied.Spec.NodeName == node {
		t.Error("the pod was offloaded although its claim exists only at home")
	}
	if free := n.WaitReady("free"); free.Spec.NodeName != node {
		t.Errorf("it runs on %s", free.Spec.NodeName)
	}
	if late := n.pod("late"); len(late.Spec.SchedulingGates) != 1 {
		t.Errorf("its claim does not exist, and its gates are %v", late.Spec.SchedulingGates)
	}
	n.WaitEvent("late", "WaitingForClaim", "absent does not exist")
	n.controllerOpensItsGateOnly("late", "tied")
	n.Claim("absent", class, "64Mi")
	if late := n.WaitReady("late"); late.Spec.NodeName == node {
		t.Error("the pod was offloaded although its claim exists only at home")
	}
}

// If it were offloaded, it would be refused after its volume was created in the remote cluster, where no
// other node can use it.
func TestPodThatEveryRemoteClusterRefusesStaysAtHomeWithItsVolume(t *testing.T) {
	n, _ := renamedTenant(t, "--pod-offloading-strategy", "LocalAndRemote")
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("locks", "data", addCapability("IPC_LOCK"), preferRemote(100))
	if locks := n.WaitReady("locks"); locks.Spec.NodeName == node {
		t.Error("the pod was offloaded to a cluster that refuses it")
	}
}

// controllerOpensItsGateOnly tries the other changes that Kubernetes allows for pods with and without the driver's
// scheduling gate.
func (n tenant) controllerOpensItsGateOnly(waits, runs string) {
	n.t.Helper()
	client, _ := impersonate(n.t, n.Cluster, serviceAccountPrefix+"controller")
	const (
		noGate    = "removes the gate"
		gatesOnly = "the gates and the node affinity"
	)
	for what, one := range map[string]struct{ pod, patch, words string }{
		"the gate":           {waits, `{"spec": {"schedulingGates": []}}`, ""},
		"a label":            {waits, `{"metadata": {"labels": {"a": "b"}}, "spec": {"schedulingGates": []}}`, gatesOnly},
		"a finalizer":        {waits, `{"metadata": {"finalizers": ["example.test/a"]}, "spec": {"schedulingGates": []}}`, gatesOnly},
		"a node selector":    {waits, `{"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": []}}`, gatesOnly},
		"a pod without it":   {runs, `{"metadata": {"labels": {"a": "b"}}}`, noGate},
		"the deadline of it": {runs, `{"spec": {"activeDeadlineSeconds": 1}}`, noGate},
	} {
		_, err := client.CoreV1().Pods(n.Name).Patch(n.t.Context(), one.pod, types.MergePatchType, []byte(one.patch), dryRunPatch)
		checkOutcome(n.t, what, err, one.words)
	}
}

// tokens adds a projected token to pods that tolerate virtual nodes, as the webhook of a service mesh does after all
// policies.
const tokens = `
          object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') == 'virtual-node.liqo.io/not-allowed') &&
          !object.spec.?volumes.orValue([]).exists(v, v.name == 'workload-token') ? [
          JSONPatch{op: 'add', path: '/spec/volumes/-', value: {
            'name': dyn('workload-token'),
            'projected': dyn({'sources': [{'serviceAccountToken': {
              'audience': dyn('mesh'), 'path': dyn('token'), 'expirationSeconds': dyn(3600)}}]})}}] : []`

// mutatingPolicy is a policy of another product that changes new pods of a namespace by a JSON patch.
const mutatingPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-%[2]s
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s}
`

// mutatePods creates that policy until the end of the test.
func (n tenant) mutatePods(patch string) {
	n.t.Helper()
	n.Apply(fmt.Sprintf(mutatingPolicy, n.Name, patch))
	n.t.Cleanup(func() {
		ctx := user.CleanupContext(n.t)
		policies := n.Client.AdmissionregistrationV1()
		err := errors.Join(
			policies.MutatingAdmissionPolicyBindings().Delete(ctx, n.Name, metav1.DeleteOptions{}),
			policies.MutatingAdmissionPolicies().Delete(ctx, n.Name, metav1.DeleteOptions{}),
		)
		if err != nil {
			n.t.Error(err)
		}
	})
}

func TestPodWithATokenOfTheHomeClusterStaysAtHome(t *testing.T) {
	n, _ := renamedTenant(t, "--pod-offloading-strategy", "LocalAndRemote")
	n.mutatePods(tokens)
	tries := 0
	n.Eventually("a pod to get the token", func(ctx context.Context) (string, error) {
		// The API server applies a new policy after a delay.
		tries++
		pod := user.NewPod(fmt.Sprintf("web-%d", tries), "")
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = nil
		created, err := n.Client.CoreV1().Pods(n.Name).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err.Error(), nil
		}
		for _, volume := range created.Spec.Volumes {
			if volume.Name == "workload-token" {
				return "", nil
			}
		}
		return "it has none", nil
	})
	web := n.WaitReady(fmt.Sprintf("web-%d", tries))
	if web.Spec.NodeName == node {
		t.Error("the pod was offloaded to a cluster in which its token is not valid")
	}
}
