// Package account lists everything that volumes leave in a cluster of the lab: objects, mounts, loop
// devices, records of the node plugin, and data. The difference of two inventories is what was leaked
// or lost.
package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/storage"
)

const (
	// recordDir has the node plugin's records of volumes, below kubelet's root.
	recordDir = "plugins/storage.liqo.io/state"
	// localPathDir has the volumes of local-path-provisioner on each node.
	localPathDir = "/opt/local-path-provisioner"
)

// Inventory is a set of descriptions of objects, mounts and so on.
type Inventory map[string]struct{}

// List returns the inventory of a cluster.
func List(ctx context.Context, cluster *clusters.Cluster) (Inventory, error) {
	inventory := Inventory{}
	for _, add := range []func(context.Context, *clusters.Cluster) error{
		inventory.objects, inventory.mounts, inventory.records, inventory.loops, inventory.data,
	} {
		if err := add(ctx, cluster); err != nil {
			return nil, fmt.Errorf("list the inventory of cluster %s: %w", cluster.Name(), err)
		}
	}
	return inventory, nil
}

// Except returns what is in this inventory and not in the other, sorted.
func (s Inventory) Except(other Inventory) []string {
	var more []string
	for item := range s {
		if _, known := other[item]; !known {
			more = append(more, item)
		}
	}
	slices.Sort(more)
	return more
}

func (s Inventory) add(format string, args ...any) { s[fmt.Sprintf(format, args...)] = struct{}{} }

func (s Inventory) objects(ctx context.Context, cluster *clusters.Cluster) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	// Twins of claims of other clusters are in the namespaces of users.
	claims, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, claim := range claims.Items {
		if claim.Namespace == chart.StorageNamespace || claim.Labels["app.kubernetes.io/managed-by"] == "storage.liqo.io" {
			s.add("twin %s/%s", claim.Namespace, claim.Name)
		}
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, volume := range volumes.Items {
		s.add("PersistentVolume %s", volume.Name)
	}
	attachments, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, attachment := range attachments.Items {
		s.add("VolumeAttachment %s to %s", attachment.Name, attachment.Spec.NodeName)
	}
	return s.snapshots(ctx, client)
}

func (s Inventory) snapshots(ctx context.Context, client kubernetes.Interface) error {
	for _, kind := range []string{"volumesnapshots", "volumesnapshotcontents"} {
		raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis/snapshot.storage.k8s.io/v1/" + kind).DoRaw(ctx)
		if err != nil {
			return err
		}
		var found metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &found); err != nil {
			return fmt.Errorf("read %s: %w", kind, err)
		}
		for _, object := range found.Items {
			s.add("%s %s/%s", kind, object.Namespace, object.Name)
		}
	}
	return nil
}

// mounts adds those of CSI and local volumes. Any pod has mounts of other kinds.
func (s Inventory) mounts(_ context.Context, cluster *clusters.Cluster) error {
	table, err := machine.Mounts()
	if err != nil {
		return err
	}
	for _, node := range cluster.Nodes() {
		for _, point := range table.Below(node.KubeletRoot()) {
			below := strings.TrimPrefix(point, node.KubeletRoot())
			if strings.Contains(below, "kubernetes.io~csi") || strings.Contains(below, "kubernetes.io~local-volume") ||
				strings.HasPrefix(below, "/plugins/") {
				s.add("mount %s on %s", below, node.Name)
			}
		}
	}
	return nil
}

func (s Inventory) records(_ context.Context, cluster *clusters.Cluster) error {
	for _, node := range cluster.Nodes() {
		files, err := filepath.Glob(filepath.Join(node.KubeletRoot(), recordDir, "*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			s.add("record %s on %s", filepath.Base(file), node.Name)
		}
	}
	return nil
}

// loops adds every loop device of the machine, by the name and inode of its file: numbers of devices
// are reused, and the path in sysfs is that in the mount namespace that opened the file.
func (s Inventory) loops(context.Context, *clusters.Cluster) error {
	attached, err := machine.LoopDevices()
	if err != nil {
		return err
	}
	for _, info := range attached {
		s.add("loop device on %s (inode %d)", unix.ByteSliceToString(info.File_name[:]), info.Inode)
	}
	return nil
}

// data adds the real drivers' records of volumes, and their data.
func (s Inventory) data(_ context.Context, cluster *clusters.Cluster) error {
	for _, driver := range storage.Drivers() {
		volumes, err := storage.BackendOf(cluster, driver).Volumes()
		if err != nil {
			return err
		}
		for _, volume := range volumes {
			s.add("volume %s of %s", volume.ID, driver.Name)
		}
		if err := s.files("content of "+driver.Name, filepath.Join(driver.StateDir(cluster), "data")); err != nil {
			return err
		}
	}
	for _, node := range cluster.Nodes() {
		if err := s.files("folder of local-path on "+node.Name, node.HostPath(localPathDir)); err != nil {
			return err
		}
	}
	return nil
}

// files adds the entries of a folder, if it exists.
func (s Inventory) files(what, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		s.add("%s: %s", what, entry.Name())
	}
	return nil
}
