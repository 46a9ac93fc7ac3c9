package user

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// StatefulSet creates a StatefulSet with one pod, NAME-0, which has the claim at DataPath. A move evicts the
// pod, and its controller never runs two of it.
func (n *Namespace) StatefulSet(name, claim string, edits ...func(*corev1.Pod)) (pod string) {
	n.t.Helper()
	template := NewPod(name, claim, edits...)
	if *template.Spec.TerminationGracePeriodSeconds == 0 {
		template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: template.Labels},
				Spec:       template.Spec,
			},
		},
	}
	if _, err := n.Client.AppsV1().StatefulSets(n.Name).Create(n.t.Context(), set, metav1.CreateOptions{}); err != nil {
		n.t.Fatalf("create StatefulSet: %v", err)
	}
	return name + "-0"
}

// DeleteStatefulSet deletes a StatefulSet, and waits until its pod is deleted.
func (n *Namespace) DeleteStatefulSet(name string) {
	n.t.Helper()
	if err := n.Client.AppsV1().StatefulSets(n.Name).Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatalf("delete StatefulSet: %v", err)
	}
	n.WaitDeleted("pod", name+"-0")
}

// WaitRunningOn waits until a pod runs on this node and is not terminating.
func (n *Namespace) WaitRunningOn(pod, node string) {
	n.t.Helper()
	n.Eventually(pod+" runs on "+node, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if found.Spec.NodeName == node && found.Status.Phase == corev1.PodRunning && found.DeletionTimestamp == nil {
			return "", nil
		}
		return fmt.Sprintf("it is %s on %q", found.Status.Phase, found.Spec.NodeName), nil
	})
}

// Move creates a VolumeMove. The spec is YAML in one line, without braces.
func (n *Namespace) Move(name, claim, spec string) {
	n.t.Helper()
	n.Apply(fmt.Sprintf(`
apiVersion: storage.liqo.io/v1alpha1
kind: VolumeMove
metadata: {name: %s, namespace: %s}
spec: {claims: [%s], %s}
`, name, n.Name, claim, spec))
}

// MoveStatus returns the phase of a move, and the rest of its status.
func (n *Namespace) MoveStatus(ctx context.Context, name string) (phase, text string, err error) {
	move, err := n.Object(ctx, "volumemove", name)
	if err != nil {
		return "", "", err
	}
	preflight, _, _ := unstructured.NestedFieldNoCopy(move.Object, "status", "preflight")
	phase = Text(move, "status", "phase")
	return phase, fmt.Sprint(phase, " ", Text(move, "status", "waitingFor"), preflight), nil
}

// WaitMove waits until a move is in one of these phases.
func (n *Namespace) WaitMove(name string, phases ...string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("the move %s is %s", name, strings.Join(phases, " or ")), func(ctx context.Context) (string, error) {
		phase, status, err := n.MoveStatus(ctx, name)
		if slices.Contains(phases, phase) {
			return "", nil
		}
		if err == nil && slices.Contains([]string{"Done", "Cancelled", "Failed"}, phase) {
			n.t.Fatalf("the move %s is %s", name, status)
		}
		return "it is " + status, err
	})
}

// PatchMove patches the spec of a move.
func (n *Namespace) PatchMove(name, spec string) {
	n.t.Helper()
	if out, err := n.Kubectl("patch", "volumemove", name, "--type=merge", "-p", `{"spec":`+spec+`}`); err != nil {
		n.t.Fatalf("patch volumemove: %v: %s", err, out)
	}
}

// WaitDeleted waits until an object is deleted.
func (n *Namespace) WaitDeleted(kind, name string) {
	n.t.Helper()
	n.Eventually(kind+" "+name+" is deleted", func(ctx context.Context) (string, error) {
		if _, err := n.Object(ctx, kind, name); !apierrors.IsNotFound(err) {
			return "it exists", err
		}
		return "", nil
	})
}
