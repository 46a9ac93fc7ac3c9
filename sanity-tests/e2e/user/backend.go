package user

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/storage"
)

// AddFault adds a fault to a driver in the namespace's cluster, until remove is called or the test ends.
func (n *Namespace) AddFault(driver storage.Driver, fault storage.Fault) (remove func()) {
	n.t.Helper()
	removeFault, err := storage.BackendOf(n.Cluster, driver).AddFault(fault)
	if err != nil {
		n.t.Fatal(err)
	}
	remove = func() {
		if err := removeFault(); err != nil {
			n.t.Error(err)
		}
	}
	n.t.Cleanup(remove)
	return remove
}

// WaitUnstaged waits until a driver's volume is staged on no node, some time after its last pod was deleted.
func (n *Namespace) WaitUnstaged(driver storage.Driver, volume *corev1.PersistentVolume) {
	n.t.Helper()
	n.Eventually("the volume "+volume.Name+" is unstaged", func(context.Context) (string, error) {
		record, err := storage.BackendOf(n.Cluster, driver).Volume(volume.Spec.CSI.VolumeHandle)
		if err != nil || len(record.Stages) == 0 {
			return "", err
		}
		return fmt.Sprintf("it is staged on %v", slices.Sorted(maps.Keys(record.Stages))), nil
	})
}
