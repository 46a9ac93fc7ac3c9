package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

func daemonSetManifest(name, tolerations string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [%[2]s]
      containers:
      - {name: daemon, image: %[3]q, command: [sleep, "2147483647"]}
`, name, tolerations, images.BusyboxName)
}

func (n tenant) daemonSet(name string) *appsv1.DaemonSet {
	n.t.Helper()
	found, err := n.Client.AppsV1().DaemonSets(n.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

func (n tenant) waitRolledOut(name string) {
	n.t.Helper()
	n.Eventually("the DaemonSet to be rolled out", func(ctx context.Context) (string, error) {
		found, err := n.Client.AppsV1().DaemonSets(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := found.Status
		wanted := status.DesiredNumberScheduled
		if status.ObservedGeneration < found.Generation || wanted == 0 || status.NumberAvailable != wanted || status.UpdatedNumberScheduled != wanted {
			return fmt.Sprintf("it is %+v", status), nil
		}
		return "", nil
	})
}

// The DaemonSet controller counts nodes by the pod template, which must therefore exclude virtual nodes.
func TestDaemonSetIsKeptOffVirtualNodes(t *testing.T) {
	n := newTenant(t)
	n.Apply(daemonSetManifest("agent", "{operator: Exists}"))
	n.waitRolledOut("agent")
	first := n.daemonSet("agent")
	terms := first.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != typeLabel {
		t.Errorf("it has the terms %v", terms)
	}
	pods, err := n.Client.CoreV1().Pods(n.Name).List(t.Context(), metav1.ListOptions{LabelSelector: "app=agent"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == node {
			t.Errorf("%s is on the virtual node", pod.Name)
		}
	}
	// Applying the same manifest again does not change the template, and a rollout does not add the term twice.
	n.Apply(daemonSetManifest("agent", "{operator: Exists}"))
	if again := n.daemonSet("agent"); again.Generation != first.Generation {
		t.Errorf("it has the generation %d, and had %d", again.Generation, first.Generation)
	}
	if out, err := n.Kubectl("rollout", "restart", "daemonset/agent"); err != nil {
		t.Fatal(err, out)
	}
	n.waitRolledOut("agent")
	terms = n.daemonSet("agent").Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 {
		t.Errorf("after a rollout it has the terms %v", terms)
	}
	if out, _ := n.program("doctor"); strings.Contains(out, "DaemonSet "+n.Name+"/agent") {
		t.Errorf("doctor reports: %s", out)
	}
}

func TestDaemonSetThatIsNotKeptOffIsListed(t *testing.T) {
	n := newTenant(t)
	n.Apply(daemonSetManifest("named", "{key: virtual-node.liqo.io/not-allowed, operator: Exists}"))
	if affinity := n.daemonSet("named").Spec.Template.Spec.Affinity; affinity != nil {
		user.Violated(t, "it was changed: %v", affinity)
	}
	out, _ := n.program("doctor")
	if !strings.Contains(out, "DaemonSet "+n.Name+"/named") || !strings.Contains(out, name) {
		t.Errorf("doctor does not list it: %s", out)
	}
}
