// Package storage tests the storage of the lab without the driver: the reference driver with the sidecars of
// Kubernetes, local-path and static volumes on real kubelets.
package storage

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) { user.Main(m) }

// home creates a namespace in the home cluster for a parallel test.
func home(t *testing.T) *user.Namespace {
	t.Helper()
	t.Parallel()
	return user.NewNamespace(t, user.Cluster(t, "home"))
}
