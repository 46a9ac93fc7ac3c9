package offload

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// droppedField matches the field in the message of a pod of which the remote API server has not stored a field.
var droppedField = regexp.MustCompile(`\bspec(\.[A-Za-z]+(\[[^\]]*\])?)+`)

// The remote API server runs without beta features and drops their fields without an error, as an older one does. A pod with
// such a field is refused with the name of the field; without these fields it runs, and no other field is missing there.
func TestFieldsThatTheRemoteClusterDropsAreNamed(t *testing.T) {
	n := newExclusiveTenant(t)
	there := user.Cluster(t, "remote")
	t.Cleanup(func() {
		if err := there.Restart(user.CleanupContext(t), "kube-apiserver"); err != nil {
			t.Error(err)
		}
	})
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	remote := user.ExistingNamespace(t, there, n.Name)
	n.createPrerequisites(remote)
	if err := there.RestartWith(t.Context(), "kube-apiserver", "--feature-gates=AllBeta=false"); err != nil {
		t.Fatal(err)
	}
	n.waitFabric()
	found := outcomes{
		fields: fieldsOfPods(t, n), values: map[string]map[string]bool{}, kinds: map[string]map[string]string{},
		wrong: map[string]string{}, used: map[string]bool{},
	}
	dropped := map[string]bool{}
	for _, pod := range readPods(t) {
		if len(pod.GetAnnotations()) == 0 {
			n.createWithoutDropped(remote, pod, &found, dropped)
		}
	}
	for field, example := range found.wrong {
		user.Violated(t, "%s differs from home, and nothing reports it: %s", field, example)
	}
	if len(dropped) == 0 {
		t.Error("no field was dropped, so this test has shown nothing")
	}
	t.Logf("dropped there, refused and named: %s", strings.Join(slices.Sorted(maps.Keys(dropped)), ", "))
}

// createWithoutDropped creates a pod, again without the field that its refusal names each time, until it is accepted.
func (n tenant) createWithoutDropped(remote *user.Namespace, pod *unstructured.Unstructured, found *outcomes, dropped map[string]bool) {
	n.t.Helper()
	for attempt := range 60 {
		next := pod.DeepCopy()
		next.SetName(fmt.Sprintf("%s-%d", pod.GetName(), attempt))
		if _, err := n.createStrictly(next); err != nil {
			n.t.Errorf("%s: %v", next.GetName(), err)
			return
		}
		field := n.waitAcceptedOrRefused(remote, next.GetName())
		if field == "" {
			found.compare(n.t, n.pod(next.GetName()), n.remoteSpec(remote, next.GetName(), 0))
			return
		}
		place := byIdentity(pod.Object["spec"], strings.TrimPrefix(field, "spec"))
		without := pod.DeepCopy()
		remove(without.Object["spec"], "", place)
		if strings.HasSuffix(place, "].restartPolicy") {
			// Without it, the rules are invalid.
			remove(without.Object["spec"], "", place+"Rules")
		}
		left, isIn := leaves(without.Object["spec"], "", "", found.fields), false
		for _, one := range leaves(pod.Object["spec"], "", "", found.fields) {
			if !slices.Contains(left, one) {
				dropped[one.field], isIn = true, true
			}
		}
		if !isIn {
			n.t.Errorf("%s: the refusal names %s, which is not in the pod", pod.GetName(), field)
			return
		}
		pod = without
	}
	n.t.Errorf("%s is still refused", pod.GetName())
}

// waitAcceptedOrRefused returns the field that the refusal of a pod names, or "" when its gate in the remote cluster is open.
func (n tenant) waitAcceptedOrRefused(remote *user.Namespace, name string) (field string) {
	n.t.Helper()
	n.Eventually(name+" to be accepted or refused", func(ctx context.Context) (string, error) {
		if found := n.pod(name); found.Status.Reason == "RemoteRefused" {
			field = droppedField.FindString(found.Status.Message)
			if field == "" {
				n.t.Fatalf("%s is refused, and no field is named: %s", name, found.Status.Message)
			}
			return "", nil
		}
		there, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is no remote pod", nil
		}
		if err != nil {
			return "", err
		}
		if len(there.Spec.SchedulingGates) > 0 {
			return "it is gated", nil
		}
		return "", nil
	})
	return field
}

// byIdentity returns the path of a field with the identities of elements instead of the indexes that API servers write.
func byIdentity(spec any, path string) (at string) {
	for _, part := range regexp.MustCompile(`\.[A-Za-z]+|\[[^\]]*\]`).FindAllString(path, -1) {
		switch value := spec.(type) {
		case map[string]any:
			spec = value[strings.TrimPrefix(part, ".")]
		case []any:
			inside := strings.Trim(part, "[]")
			for i, one := range value {
				if inside == fmt.Sprint(i) || inside == identity(one, i) {
					part, spec = "["+identity(one, i)+"]", one
					break
				}
			}
		}
		at += part
	}
	return at
}
