package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// look runs one of the commands that look around, as an administrator would.
func look(t *testing.T, n *user.Namespace, args ...string) (stdout string, exit int) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), user.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig", n.Cluster.Kubeconfig())...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatalf("%s: %v", cmd, err)
	}
	if errors.Len() > 0 {
		t.Logf("%s says on standard error: %s", cmd, errors.String())
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// Not beside others, whose odd classes the doctor would find as well.
func TestDoctorFindsTheChartSoundAndAWrongClassNot(t *testing.T) {
	n := homeAlone(t)
	if out, exit := look(t, n, "doctor"); exit != 0 {
		t.Errorf("of a fresh installation doctor says (exit code %d):\n%s", exit, out)
	}

	wait := storagev1.VolumeBindingWaitForFirstConsumer
	wrong := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: n.Name + "-loop"},
		Provisioner:       driver.CSIName,
		Parameters:        map[string]string{"realStorageClass": n.Name + "-loop"},
		VolumeBindingMode: &wait,
	}
	classes := n.Client.StorageV1().StorageClasses()
	if _, err := classes.Create(t.Context(), wrong, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out, exit := look(t, n, "doctor", "--output", "json")
	if err := classes.Delete(t.Context(), wrong.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	var report struct {
		Findings []struct{ Severity, Object, Problem, Fix string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := false
	for _, finding := range report.Findings {
		found = found || finding.Severity == "error" && strings.Contains(finding.Object, wrong.Name) && finding.Fix != ""
	}
	if !found || exit != 1 {
		t.Errorf("a class that names itself as the real one is not found (exit code %d): %s", exit, out)
	}
}

func TestVolumesShowsWhatStandsBehindAClaim(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-local", "64Mi")
	n.Claim("idle", "liqo-reference", "64Mi")
	n.Pod("user", "data", user.OnNode("home-2"))
	n.WaitReady("user")
	found := n.WaitVolume("data")

	out, exit := look(t, n, "volumes", "--namespace", n.Name, "--output", "json")
	var list struct {
		Volumes []struct {
			Claim, Twin  *struct{ Namespace, Name string }
			State, Class string
			RealClass    string
			RealVolume   string
			Nodes        []string
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || exit != 0 {
		t.Fatalf("exit code %d, %v: %s", exit, err, out)
	}
	states := map[string]string{}
	for _, volume := range list.Volumes {
		states[volume.Claim.Name] = volume.State
		if volume.Claim.Name != "data" {
			continue
		}
		if volume.Twin == nil || volume.Twin.Name != found.Twin.Name || volume.Twin.Namespace != found.Twin.Namespace ||
			volume.RealClass != "reference-local" || volume.RealVolume != found.Real.Name ||
			len(volume.Nodes) != 1 || volume.Nodes[0] != "home-2" {
			t.Errorf("wrong about the volume on home-2: %s", out)
		}
	}
	if len(states) != 2 || states["data"] != string(corev1.ClaimBound) || states["idle"] != "Waiting" {
		t.Errorf("got %v, want a bound claim and one that waits: %s", states, out)
	}
	table, _ := look(t, n, "volumes", "--namespace", n.Name)
	if !strings.Contains(table, found.Twin.Name) || !strings.Contains(table, "home-2") {
		t.Errorf("the table lacks the twin or its node:\n%s", table)
	}
}
