// Package driver shows on the lab what users of class liqo get: claims whose data
// is in real storage, pods that mount it and come back to it, and nothing lost or
// left behind when things go wrong.
//
// The real storage alone is judged in e2e/storage; calls out of the ordinary in
// the module conformance.
package driver

import (
	"context"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) { user.MainWithDriver(m) }

// installed puts the driver into the cluster, once for all tests.
var installed = struct {
	sync.Once
	err error
}{}

func install(ctx context.Context, cluster *clusters.Cluster) error {
	return installWith(ctx, cluster, chart.Values{})
}

// installWith changes values of the chart. All annotations are carried to twins, so
// that tests see which never are.
func installWith(ctx context.Context, cluster *clusters.Cluster, values chart.Values) error {
	values["carriedAnnotations"] = []string{"*"}
	return driver.Install(ctx, cluster, driver.Options{Values: values, Progress: os.Stderr})
}

// home gives the test a namespace in the cluster where users work, beside the
// other tests.
func home(t *testing.T) *user.Namespace {
	t.Helper()
	t.Parallel()
	return homeAlone(t)
}

// homeAlone is for tests that disturb everybody, as by taking the controllers away. Nothing
// runs beside them.
func homeAlone(t *testing.T) *user.Namespace {
	t.Helper()
	cluster := user.Cluster(t, "home")
	installed.Do(func() { installed.err = install(context.WithoutCancel(t.Context()), cluster) })
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	return user.NewNamespace(t, cluster)
}

func claimOf(t *testing.T, n *user.Namespace, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// spec is what most claims ask for.
func spec(class string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class,
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
		},
	}
}
