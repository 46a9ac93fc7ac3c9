// Package driver tests the virtual classes in one cluster: provisioning, mounts and deletion of volumes, and
// that no data is lost and no object is left when something fails.
//
// The package e2e/storage tests the real storage without the driver, the module conformance unusual CSI calls.
package driver

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func TestMain(m *testing.M) { user.MainWithDriver(m) }

// installed is the result of the installation for all tests.
var installed = struct {
	sync.Once
	err error
}{}

func install(ctx context.Context, cluster *clusters.Cluster) error {
	return installWith(ctx, cluster, chart.Values{})
}

// installWith installs the driver with these values. All annotations are copied to twins, so that tests see
// which never are.
func installWith(ctx context.Context, cluster *clusters.Cluster, values chart.Values) error {
	values["carriedAnnotations"] = []string{"*"}
	return driver.Install(ctx, cluster, driver.Options{Values: values, Progress: os.Stderr})
}

// home creates a namespace in the home cluster for a parallel test.
func home(t *testing.T) *user.Namespace {
	t.Helper()
	t.Parallel()
	return homeSerial(t)
}

// homeSerial is home for tests that would disturb others, for example because they stop the controllers.
func homeSerial(t *testing.T) *user.Namespace {
	t.Helper()
	cluster := user.Cluster(t, "home")
	installed.Do(func() { installed.err = install(context.WithoutCancel(t.Context()), cluster) })
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	return user.NewNamespace(t, cluster)
}

// spec returns the spec of a claim for 64Mi.
func spec(class string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class,
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
		},
	}
}

// startPod creates a claim for 64Mi and a pod with it, and waits until the pod is ready.
func startPod(n *user.Namespace, pod, claim, class string) *corev1.Pod {
	n.Claim(claim, class, "64Mi")
	n.Pod(pod, claim)
	return n.WaitReady(pod)
}

// virtualClass returns a StorageClass of the driver.
func virtualClass(name string, parameters map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver.CSIName, Parameters: parameters,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// realClass returns a StorageClass of a real driver.
func realClass(name string, real storage.Driver, parameters map[string]string) *storagev1.StorageClass {
	class := virtualClass(name, parameters)
	class.Provisioner = real.Name
	return class
}

// liqoCSI runs the program for the cluster, and returns its standard output and exit code.
func liqoCSI(t *testing.T, n *user.Namespace, args ...string) (stdout string, exit int) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), user.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig", n.Cluster.Kubeconfig())...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatalf("%s: %v", cmd, err)
	}
	if stderr.Len() > 0 {
		t.Logf("%s: standard error: %s", cmd, stderr.String())
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// runTransfer runs `liqo-csi import` or `liqo-csi release` for an object of the namespace, and kills it when ctx
// ends. It returns standard output and error.
func runTransfer(ctx context.Context, t *testing.T, n *user.Namespace, command, kind, name string, args ...string) (string, error) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		return "", err
	}
	args = append([]string{command, kind, n.Name + "/" + name, "--kubeconfig", n.Cluster.Kubeconfig()}, args...)
	if !slices.Contains(args, "--timeout") {
		args = append(args, "--timeout", "3m")
	}
	// No --timeout is longer than user.Timeout.
	ctx, cancel := context.WithTimeout(ctx, 2*user.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	t.Logf("liqo-csi %s: %v\n%s", strings.Join(args[:3], " "), err, out)
	return string(out), err
}
