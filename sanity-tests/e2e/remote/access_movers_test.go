package remote

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// At the levels namespaced and minimal an identity that may move volumes may create movers in the remote cluster, and
// no other pods: the mover of a real move is admitted, and with one difference it is refused. Then the move is
// completed, and the volume moves back.
func TestMoversAreRestrictedAtEachLevel(t *testing.T) {
	moves := chart.Values{"move": true}
	p, rights := newRestrictedPair(t, "namespaced", moves)
	p.home.Claim("data", "liqo-reference", "64Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{homeNode}, []string{p.node}), count)
	p.home.WaitRunningOn(pod, homeNode)
	p.home.Move("there", "data", "target: {nodeName: "+p.node+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}")
	p.home.WaitMove("there", "Ready")
	mover := p.copyOfMover()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "of-a-user"}}
	if _, err := p.remote.Client.CoreV1().ServiceAccounts(p.remote.Name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ofUser := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "of-a-user"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "a", Image: "busybox:1.37"}}, SchedulingGates: []corev1.PodSchedulingGate{{Name: "e2e.test/never"}},
	}}
	if _, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Create(t.Context(), ofUser, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	for level, identity := range map[string]*identity{"namespaced": rights, "minimal": newIdentity(p, "minimal", moves)} {
		t.Run(level, func(t *testing.T) {
			client := identity.client()
			podsAreMovers(t, p.remote, client, mover)
			otherPodsAreProtected(t, p.remote, client, ofUser.Name)
			secretsAreOfMovers(t, p.remote, client)
			other := client.CoreV1().Pods(identity.namespace.Name)
			if _, err := other.Create(t.Context(), mover, dryRun); !apierrors.IsForbidden(err) {
				user.Violated(t, "a mover in a namespace that is not listed: %v", err)
			}
		})
	}

	p.home.PatchMove("there", `{"cutover":{"requested":true}}`)
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	p.home.WaitMove("there", "Retaining")
	// When it moves back, the claimRef of the remote volume is changed, and its reclaim policy is
	// restored.
	p.home.Move("back", "data", "target: {nodeName: "+homeNode+"}, quiesce: {mode: Evict}")
	p.home.WaitRunningOn(pod, homeNode)
	p.home.WaitMove("back", "Retaining")
	p.deleteMoves()
}

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// client has the rights of the identity.
func (i *identity) client() kubernetes.Interface {
	i.p.t.Helper()
	own, err := clientcmd.RESTConfigFromKubeConfig(i.kubeconfig)
	if err != nil {
		i.p.t.Fatal(err)
	}
	admin, err := i.p.remote.Cluster.Config()
	if err != nil {
		i.p.t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = own.BearerToken
	return kubernetes.NewForConfigOrDie(config)
}

// copyOfMover is the mover in the remote cluster under another name, and not scheduled.
func (p *pair) copyOfMover() *corev1.Pod {
	p.t.Helper()
	pods, err := p.remote.Client.CoreV1().Pods(p.remote.Name).List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	at := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool { return strings.HasPrefix(pod.Name, "move-target-") })
	if at < 0 {
		p.t.Fatalf("no mover is among %d pods", len(pods.Items))
	}
	found := pods.Items[at]
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: found.Name, Labels: found.Labels, Annotations: found.Annotations}, Spec: found.Spec}
	mover.Spec.NodeName = ""
	text, err := json.Marshal(mover)
	if err != nil {
		p.t.Fatal(err)
	}
	renamed := &corev1.Pod{}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), found.Name, "move-target-0123456789abcdef")), renamed); err != nil {
		p.t.Fatal(err)
	}
	return renamed
}

// podsAreMovers checks that the mover may be created, and no pod that differs from it.
func podsAreMovers(t *testing.T, n *user.Namespace, client kubernetes.Interface, mover *corev1.Pod) {
	t.Helper()
	const program, shape, token = "nothing in these namespaces but its mover", "movers have one claim, and no Secret but their own", "no token of it"
	volume := func(source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "more", VolumeSource: source})
		}
	}
	try := func(ctx context.Context, edit func(*corev1.PodSpec)) error {
		pod := mover.DeepCopy()
		edit(&pod.Spec)
		_, err := client.CoreV1().Pods(n.Name).Create(ctx, pod, dryRun)
		return err
	}
	anotherImage := func(spec *corev1.PodSpec) { spec.Containers[0].Image = "busybox:1.37" }
	n.Eventually("the policy of pods is enforced", func(ctx context.Context) (string, error) {
		return mismatch(try(ctx, anotherImage), program), nil
	})
	if err := try(t.Context(), func(*corev1.PodSpec) {}); err != nil {
		t.Errorf("a mover is refused: %v", err)
	}
	for what, one := range map[string]struct {
		edit func(*corev1.PodSpec)
		says string
	}{
		"another image":   {anotherImage, program},
		"another command": {func(spec *corev1.PodSpec) { spec.Containers[0].Command = []string{"/bin/sh"} }, program},
		"a variable": {func(spec *corev1.PodSpec) {
			spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/data/of-a-user.so"}}
		}, program},
		"a hook": {func(spec *corev1.PodSpec) {
			spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/data/x"}}}}
		}, program},
		"a capability": {func(spec *corev1.PodSpec) {
			added := &spec.Containers[0].SecurityContext.Capabilities.Add
			*added = append(*added, "SETUID")
		}, program},
		"a second container": {func(spec *corev1.PodSpec) {
			more := spec.Containers[0].DeepCopy()
			more.Name = "more"
			spec.Containers = append(spec.Containers, *more)
		}, program},
		"a second claim": {volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "of-a-user"}}), shape},
		"a Secret":       {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-a-user"}}), shape},
		"a ConfigMap": {volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "of-a-user"},
		}}), shape},
		"another path": {func(spec *corev1.PodSpec) { spec.Containers[0].VolumeMounts[0].MountPath = "/usr/local/bin" }, shape},
		"a path of the node": {
			volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "may not have hostPath",
		},
		"the network of the node": {func(spec *corev1.PodSpec) { spec.HostNetwork = true }, "may not have the network"},
		"privileges": {func(spec *corev1.PodSpec) {
			of := spec.Containers[0].SecurityContext
			of.Privileged, of.AllowPrivilegeEscalation = new(true), nil
		}, "privileged"},
		"a node": {func(spec *corev1.PodSpec) { spec.NodeName = n.Cluster.Nodes()[0].Name }, "the scheduler chooses the nodes"},
		"another account": {func(spec *corev1.PodSpec) {
			spec.ServiceAccountName, spec.DeprecatedServiceAccount = "of-a-user", "of-a-user"
		}, token},
		"a token": {func(spec *corev1.PodSpec) { spec.AutomountServiceAccountToken = nil }, token},
		"every toleration": {func(spec *corev1.PodSpec) {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}, "tolerate no taints but"},
	} {
		err := try(t.Context(), one.edit)
		if err == nil {
			user.Violated(t, "a pod with %s is admitted", what)
		} else if wrong := mismatch(err, one.says); wrong != "" {
			t.Errorf("a pod with %s: %s", what, wrong)
		}
	}
	labelled := mover.DeepCopy()
	labelled.Labels["app"] = "of-a-user"
	_, err := client.CoreV1().Pods(n.Name).Create(t.Context(), labelled, dryRun)
	if wrong := mismatch(err, "no labels but their own"); wrong != "" {
		t.Errorf("a pod with a label of a Service's pods: %s", wrong)
	}
}

// otherPodsAreProtected checks that the pod of a user cannot be deleted, and that its ports cannot be reached.
func otherPodsAreProtected(t *testing.T, n *user.Namespace, client kubernetes.Interface, name string) {
	t.Helper()
	const says = "delete no pods in these namespaces but its movers"
	n.Eventually("the policy of deletions is enforced", func(ctx context.Context) (string, error) {
		return mismatch(client.CoreV1().Pods(n.Name).Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun.DryRun}), says), nil
	})
	forward := client.CoreV1().RESTClient().Post().Namespace(n.Name).Resource("pods").Name(name).SubResource("portforward")
	if wrong := mismatch(forward.Do(t.Context()).Error(), says); wrong != "" {
		t.Errorf("the ports of the pod of a user: %s", wrong)
	}
}

// secretsAreOfMovers checks that Secrets of movers may be created, and no others.
func secretsAreOfMovers(t *testing.T, n *user.Namespace, client kubernetes.Interface) {
	t.Helper()
	const says = "no Secrets in these namespaces but those of its movers"
	try := func(ctx context.Context, name string, kind corev1.SecretType) error {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind}
		secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: "default"}
		_, err := client.CoreV1().Secrets(n.Name).Create(ctx, secret, dryRun)
		return err
	}
	n.Eventually("the policy of Secrets is enforced", func(ctx context.Context) (string, error) {
		return mismatch(try(ctx, "of-a-user", corev1.SecretTypeOpaque), says), nil
	})
	if err := try(t.Context(), "move-target-0123456789abcdef", corev1.SecretTypeOpaque); err != nil {
		t.Errorf("the Secret of a mover is refused: %v", err)
	}
	err := try(t.Context(), "move-target-0123456789abcdef", corev1.SecretTypeServiceAccountToken)
	if err == nil {
		user.Violated(t, "a Secret for a token of the account default is admitted")
	} else if wrong := mismatch(err, says); wrong != "" {
		t.Error(wrong)
	}
}

// mismatch describes how an error differs from a refusal with this message.
func mismatch(err error, says string) string {
	switch {
	case err == nil:
		return "it is not refused"
	case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says):
		return "it is refused otherwise: " + err.Error()
	}
	return ""
}
