package driver

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// The test is serial because doctor would also report classes of other tests.
func TestDoctorAcceptsTheChartAndReportsAnInvalidClass(t *testing.T) {
	n := homeSerial(t)
	if out, exit := liqoCSI(t, n, "doctor"); exit != 0 {
		t.Errorf("doctor after the installation (exit code %d):\n%s", exit, out)
	}

	wrong := virtualClass(n.Name+"-loop", map[string]string{"realStorageClass": n.Name + "-loop"})
	classes := n.Client.StorageV1().StorageClasses()
	if _, err := classes.Create(t.Context(), wrong, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out, exit := liqoCSI(t, n, "doctor", "--output", "json")
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
		t.Errorf("doctor does not report a class that names itself as the real class (exit code %d): %s", exit, out)
	}
}

func TestVolumesShowsTheObjectsOfAClaim(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-local", "64Mi")
	n.Claim("idle", "liqo-reference", "64Mi")
	n.Pod("user", "data", user.OnNode("home-2"))
	n.WaitReady("user")
	found := n.WaitVolume("data")

	out, exit := liqoCSI(t, n, "volumes", "--namespace", n.Name, "--output", "json")
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
			t.Errorf("wrong output for the volume on home-2: %s", out)
		}
	}
	if len(states) != 2 || states["data"] != string(corev1.ClaimBound) || states["idle"] != "Waiting" {
		t.Errorf("the states are %v, want Bound and Waiting: %s", states, out)
	}
	table, _ := liqoCSI(t, n, "volumes", "--namespace", n.Name)
	if !strings.Contains(table, found.Twin.Name) || !strings.Contains(table, "home-2") {
		t.Errorf("the table does not have the twin or its node:\n%s", table)
	}
}
