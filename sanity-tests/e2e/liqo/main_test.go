// Package liqo shows the driver beside Liqo itself: its controllers offload
// namespaces, its virtual kubelet is the virtual node and carries the pods, its
// identity is all that the driver has in the remote cluster unless a test grants more.
//
// Everything about remote volumes that does not need the real Liqo is tested in
// e2e/remote. The rights of an identity hold in the whole cluster, so these tests run
// one after the other.
package liqo

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
	"storage.liqo.io/sanity-tests/machine"
)

func TestMain(m *testing.M) { user.Main(m, removeLiqo) }

// allowedClass is the one that annotations of claims may name.
const allowedClass = "reference"

// shared is made by the first test, and removed after the last.
var shared struct {
	once    sync.Once
	err     error
	peering *liqo.Peering
}

// prepare starts Liqo and the driver beside it, unless they run.
func prepare(t *testing.T) {
	t.Helper()
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	shared.once.Do(func() { shared.err = start(context.WithoutCancel(t.Context()), home, remote) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

func start(ctx context.Context, home, remote *clusters.Cluster) (err error) {
	if shared.peering, err = liqo.Start(ctx, home, remote, os.Stderr); err != nil {
		return err
	}
	values := chart.Values{
		"liqo":                      chart.Values{"tenantNamespaces": []string{liqo.TenantNamespace}},
		"allowedRealStorageClasses": []string{allowedClass},
	}
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stderr, Values: values}); err != nil {
		return err
	}
	return awaitMarked(ctx, home)
}

// awaitMarked waits until the scheduler and csi-provisioner can use the virtual node.
func awaitMarked(ctx context.Context, home *clusters.Cluster) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	return machine.Until(ctx, "the driver to serve node "+liqo.RemoteID, func() error {
		csiNode, err := client.StorageV1().CSINodes().Get(ctx, liqo.RemoteID, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, entry := range csiNode.Spec.Drivers {
			if entry.Name == driver.CSIName {
				return nil
			}
		}
		return fmt.Errorf("its CSINode has %v", csiNode.Spec.Drivers)
	})
}

func removeLiqo(ctx context.Context) error {
	if shared.peering == nil {
		return nil
	}
	return shared.peering.Stop(ctx)
}
