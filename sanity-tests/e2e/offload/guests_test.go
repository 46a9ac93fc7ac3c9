package offload

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

var runningPods = flag.Int("running-pods", 1, "number of pods that run while TestRemoteAccessIsUpgradedWithRunningPods upgrades the remote chart")

// Rights and policies of a remote cluster are upgraded under running pods. Before the upgrade there
// are no policies and, as in older versions, no Pod Security label. The identity may not set that
// label; the chart documents how an administrator does. Until then the namespace can be used as it
// is.
func TestRemoteAccessIsUpgradedWithRunningPods(t *testing.T) {
	n := newExclusiveTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	if level := n.remote(remote.Name).Labels[podSecurity]; level != "baseline" {
		t.Errorf("its level is %q", level)
	}
	unlabelled := []byte(`{"metadata": {"labels": {"` + podSecurity + `": null}}}`)
	if _, err := remote.Client.CoreV1().Namespaces().Patch(t.Context(), remote.Name, types.MergePatchType, unlabelled, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.access.Apply(user.CleanupContext(t)); err != nil {
			t.Error(err)
		}
	})
	bindings := remote.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	all, err := bindings.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Items {
		if strings.HasPrefix(one.Name, driver.Policies) {
			if err := bindings.Delete(t.Context(), one.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	identity, _ := impersonate(t, remote.Cluster, "system:serviceaccount:liqo-csi-access:liqo-csi-remote")
	privileged := newPod("restricted", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	})
	wantOutcome := func(want string) {
		t.Helper()
		n.Eventually("the outcome of a privileged pod to be "+want, func(ctx context.Context) (string, error) {
			_, err := identity.CoreV1().Pods(remote.Name).Create(ctx, privileged, dryRunCreate)
			return mismatch(err, want), nil
		})
	}
	wantOutcome("")
	uids := map[string]types.UID{}
	for number := range *runningPods {
		n.Pod(fmt.Sprintf("web-%d", number), "", stateless)
	}
	for number := range *runningPods {
		name := fmt.Sprintf("web-%d", number)
		n.WaitReady(name)
		uids[name] = n.remotePod(remote, name)
	}
	runs := user.WatchRuns(t, remote)

	if err := shared.access.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantOutcome("may not be privileged")
	n.Pod("other", "", stateless)
	n.WaitReady("other")

	notes, err := shared.access.Notes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(notes, "\nkubectl label ")
	command, _, _ = strings.Cut(command, "\n")
	if out, err := remote.Kubectl(append([]string{"label"}, strings.Fields(command)...)...); err != nil {
		t.Fatal(command, err, out)
	}
	if level := n.remote(remote.Name).Labels[podSecurity]; level != "baseline" {
		t.Errorf("its level is %q after %s", level, command)
	}
	n.Pod("last", "", stateless)
	n.WaitReady("last")
	for name, uid := range uids {
		n.WaitReady(name)
		if now := n.remotePod(remote, name); now != uid {
			t.Errorf("the running pod %s was replaced: %s instead of %s", name, now, uid)
		}
	}
	if ran := runs.CheckNoneTwice(); ran != *runningPods+2 {
		t.Errorf("%d pods ran, not %d", ran, *runningPods+2)
	}
	n.unoffload()
}

// remotePod returns the uid of a remote pod.
func (n tenant) remotePod(remote *user.Namespace, name string) types.UID {
	n.t.Helper()
	pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return pod.UID
}

// Remote nodes can be drained without force, and an autoscaler may remove them, if the pods have a
// controller at home.
func TestRemoteNodesCanBeDrained(t *testing.T) {
	n := newTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", "Remote")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.Apply(deploymentManifest("web", 1))
	n.Pod("bare", "", stateless)
	web := n.onlyPod("app=web")
	n.WaitReady(web)
	n.WaitReady("bare")
	remotePod := func(name string) *corev1.Pod {
		t.Helper()
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	for name, want := range map[string]string{web: "true", "bare": ""} {
		if found := remotePod(name).Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]; found != want {
			t.Errorf("the annotation for autoscalers is %q on %s", found, name)
		}
	}
	for _, name := range []string{web, "bare"} {
		if out, err := n.Kubectl("label", "pod", name, "e2e-drained="+n.Name); err != nil {
			t.Fatal(err, out)
		}
		n.Eventually("a drain to take "+name, func(ctx context.Context) (string, error) {
			// Other tests run on that node.
			drain := exec.CommandContext(ctx, remote.Cluster.Kubectl(), "drain", remotePod(name).Spec.NodeName,
				"--dry-run=server", "--ignore-daemonsets", "--pod-selector=e2e-drained="+n.Name)
			out, err := drain.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "evicting pod "+n.Name+"/"+name) {
				return fmt.Sprintf("%v: %s", err, out), nil
			}
			return "", nil
		})
	}
	n.DeletePod("bare")
}
