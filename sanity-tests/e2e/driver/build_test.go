package driver

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
)

// unknownCommand is the exit code for an unknown command.
const unknownCommand = 64

// Tests crash development builds at crash points. A release has none.
func TestOnlyDevelopmentBuildsHaveCrashPoints(t *testing.T) {
	n := home(t)
	pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=node",
	})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("the pods of the node plugin: %v, %v", pods, err)
	}
	listed, err := n.Kubectl("--namespace", chart.Namespace, "exec", pods.Items[0].Name, "-c", "driver", "--", driver.Program, "crash-points")
	if os.Getenv(driver.ProfileVariable) == "release" {
		exit := &exec.ExitError{}
		if !errors.As(err, &exit) || exit.ExitCode() != unknownCommand {
			t.Errorf("crash-points is a command of a release: %v, %s", err, listed)
		}
		return
	}
	if err != nil || !slices.Contains(strings.Fields(listed), "before-twin-create") {
		t.Errorf("crash points of the development build: %v, %s", err, listed)
	}
}
