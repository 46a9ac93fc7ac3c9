package driver

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// `helm test` succeeds and leaves no objects. Without pods of the controller it fails and names the Deployment.
func TestHelmTestReportsABrokenInstallation(t *testing.T) {
	n := homeSerial(t)
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm.Kubeconfig = n.Cluster.Kubeconfig()
	const name = chart.Release + "-test"
	t.Cleanup(func() {
		// Helm keeps the pod of a failed test.
		err := n.Client.CoreV1().Pods(chart.Namespace).Delete(user.CleanupContext(t), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	if err := helm.Test(t.Context(), chart.Release, chart.Namespace); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ClusterRole of the test was not deleted: %v", err)
	}

	restart := stopControllers(t, n)
	err = helm.Test(t.Context(), chart.Release, chart.Namespace)
	if err == nil || !strings.Contains(err.Error(), "Deployment liqo-csi/liqo-csi-controller") {
		t.Errorf("helm test without a controller: %v", err)
	}
	restart()
	n.Eventually("helm test succeeds again", func(ctx context.Context) (string, error) {
		return "", helm.Test(ctx, chart.Release, chart.Namespace)
	})
}
