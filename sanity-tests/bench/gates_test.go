package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestGatesAreTimedByGroup(t *testing.T) {
	pod := func(uid, group string, gated bool, node string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: map[string]string{GroupLabel: group}}}
		if gated {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: ClaimsGate}}
		}
		pod.Spec.NodeName = node
		return pod
	}
	w := &GateWatch{pods: map[string]*gatedPod{}}
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	w.record(pod("old", "set", false, "n"), at(-5))
	w.moved = begin
	w.record(pod("a", "set", true, ""), at(1))
	w.record(pod("a", "set", false, ""), at(3))
	w.record(pod("a", "set", false, "node"), at(7))
	w.record(pod("b", "set", true, ""), at(1))
	w.record(pod("c", "plain", false, ""), at(1))
	w.record(pod("c", "plain", false, "node"), at(2))
	rows := w.Rows("all")
	want := []GateRow{
		{Period: "all", Group: "plain", Pods: 1, Scheduled: Times{P50: time.Second, P99: time.Second}},
		{Period: "all", Group: "set", Pods: 2, Gated: 2, Waiting: 1, Unscheduled: 1,
			Opened: Times{P50: 2 * time.Second, P99: 2 * time.Second}, Scheduled: Times{P50: 6 * time.Second, P99: 6 * time.Second}},
	}
	if len(rows) != 2 || rows[0] != want[0] || rows[1] != want[1] {
		t.Errorf("got %+v", rows)
	}
	var out bytes.Buffer
	if err := (GateReport{Rows: rows, WritesPerPod: 1.5, Gone: time.Minute}).Print(&out); err != nil || !strings.Contains(out.String(), "writes per pod: 1.5") {
		t.Errorf("%v: %s", err, out.String())
	}
}
