package main

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func TestTheStatusOfAMoveIsRead(t *testing.T) {
	const text = `
apiVersion: storage.liqo.io/v1alpha1
kind: VolumeMove
status:
  phase: Retaining
  gatedAt: "2026-11-28T07:00:00Z"
  committedAt: "2026-11-28T07:00:21.500000Z"
  downtime: {predicted: 1m 5s, actual: 24.3s}
  overruns: {count: 3, reason: MaxDowntimeExceeded}
  claims: [{name: data, passes: 7, bytes: {done: 1, total: 1, sent: 42}}]
  conditions:
  - {type: Drained, status: "True", reason: Unused, message: "", lastTransitionTime: "2026-11-28T07:00:12Z"}
  - {type: Stalled, status: "False", reason: Progressing, message: the move continues, lastTransitionTime: "2026-11-28T07:00:12Z"}
`
	object := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = object.UnmarshalJSON(json)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := readMoveStatus(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	if got.phase != "Retaining" || !got.committed || got.passes != 7 || got.sent != 42 || got.overruns != 3 || got.stalled != "" {
		t.Errorf("got %+v", got)
	}
	if drain, last := got.drained.Sub(got.gated), got.committedAt.Sub(got.drained); drain != 12*time.Second || last != 9500*time.Millisecond {
		t.Errorf("drained after %s, committed %s later", drain, last)
	}
}

func TestStopsOfAPodAreItsReplacements(t *testing.T) {
	pod := func(uid string, ready corev1.ConditionStatus) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return pod
	}
	var watch podWatch
	at := time.Now()
	absent := apierrors.NewNotFound(corev1.Resource("pods"), "user-0")
	watch.record(nil, errors.New("no answer"), at)
	for second, one := range []*corev1.Pod{pod("a", "True"), pod("a", "True"), nil, pod("b", "False"), pod("b", "True"), pod("b", "False"), pod("b", "True")} {
		var err error
		if one == nil {
			err = absent
		}
		watch.record(one, err, at.Add(time.Duration(second)*time.Second))
		if ready := one != nil && one.Status.Conditions[0].Status == "True"; ready != (watch.running() == nil) {
			t.Errorf("second %d: %v", second, watch.running())
		}
	}
	if stops, down := watch.stops(); stops != 1 || down[0] != 3*time.Second {
		t.Errorf("stopped %d times: %v", stops, down)
	}
}
