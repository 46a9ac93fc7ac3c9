// Package liqo tests the driver with Liqo itself: Liqo's controllers offload namespaces, its virtual kubelet runs the
// pods, and the driver only has the rights of its identity in the remote cluster unless a test grants more.
//
// The package e2e/remote tests what does not need Liqo. These tests are serial, because an identity has its rights in
// the whole cluster.
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

// allowedClass is the only real class that claims may name.
const allowedClass = "reference"

// shared is created by the first test, and removed after the last.
var shared struct {
	once    sync.Once
	err     error
	peering *liqo.Peering
}

// prepare starts Liqo and the driver, once for all tests.
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
	return waitMarked(ctx, home)
}

// waitMarked waits until the virtual node has a CSINode with the driver.
func waitMarked(ctx context.Context, home *clusters.Cluster) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	return machine.Until(ctx, "the driver in the CSINode "+liqo.RemoteID, func() error {
		csiNode, err := client.StorageV1().CSINodes().Get(ctx, liqo.RemoteID, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, entry := range csiNode.Spec.Drivers {
			if entry.Name == driver.CSIName {
				return nil
			}
		}
		return fmt.Errorf("it has %v", csiNode.Spec.Drivers)
	})
}

func removeLiqo(ctx context.Context) error {
	if shared.peering == nil {
		return nil
	}
	return shared.peering.Stop(ctx)
}
