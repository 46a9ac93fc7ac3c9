package user

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUnexpectedTerminations(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	ended := func(code int32, reason string, at time.Time) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: metav1.NewTime(at)}}
	}
	pod := func(component, container string, now, last corev1.ContainerState) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"app.kubernetes.io/component": component}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: container, State: now, LastTerminationState: last,
			}}},
		}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for what, one := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"runs":                        {pod("controller", "driver", running, corev1.ContainerState{}), false},
		"terminated with its pod":     {pod("controller", "driver", ended(143, "Error", began), corev1.ContainerState{}), false},
		"killed with its pod":         {pod("fabric", "fabric", ended(137, "Error", began), corev1.ContainerState{}), false},
		"a panic":                     {pod("controller", "driver", running, ended(101, "Error", began)), true},
		"a panic, and no restart yet": {pod("node", "driver", ended(101, "Error", began), corev1.ContainerState{}), true},
		"too much memory":             {pod("controller", "driver", ended(137, "OOMKilled", began), corev1.ContainerState{}), true},
		"restarted":                   {pod("fabric", "fabric", running, ended(137, "Error", began)), true},
		"a panic before the suite":    {pod("controller", "driver", running, ended(101, "Error", began.Add(-time.Second))), false},
		"a sidecar":                   {pod("controller", "csi-provisioner", running, ended(1, "Error", began)), false},
		"a mover":                     {pod("mover", "driver", running, ended(1, "Error", began)), false},
	} {
		if got := unexpected(one.pod, began); (len(got) > 0) != one.want {
			t.Errorf("%s: %q", what, got)
		}
	}
	var all driverTerminations
	all.record(pod("controller", "driver", running, ended(101, "Error", began)), began)
	all.record(pod("controller", "driver", running, ended(101, "Error", began)), began)
	if err := all.found(); err == nil || strings.Count(err.Error(), "exit code 101") != 1 || !strings.HasPrefix(err.Error(), Violation) {
		t.Errorf("found is %v", err)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	text := "short\n" + strings.Repeat("a", 9) + "é" + strings.Repeat("b", 30) + "\nlast"
	if got, want := cutLines(text, 10), "short\naaaaaaaaa…\nlast"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
