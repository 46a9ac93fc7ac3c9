// Package storage shows that the storage in the lab is real: what users expect
// of a storage class works with the reference driver, local-path and static
// volumes, on real kubelets with the stock sidecars. liqo-csi is not involved.
package storage

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) { user.Main(m) }

// home gives the test a namespace in the cluster where users work.
func home(t *testing.T) *user.Namespace {
	t.Helper()
	t.Parallel()
	return user.NewNamespace(t, user.Cluster(t, "home"))
}
