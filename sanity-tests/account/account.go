// Package account takes stock of everything that volumes leave behind in a
// cluster of the lab: objects, mounts, loop devices, records of the node plugin
// and the data itself. Two stocks compared tell what was leaked or lost.
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
	// recordDir is where the node plugin remembers volumes, below kubelet's root.
	recordDir = "plugins/storage.liqo.io/state"
	// localPathDir is where local-path-provisioner has its volumes on each node.
	localPathDir = "/opt/local-path-provisioner"
)

// Stock is what there is, each thing under a name that people can look up.
type Stock map[string]struct{}

// Take takes stock of a cluster.
func Take(ctx context.Context, cluster *clusters.Cluster) (Stock, error) {
	stock := Stock{}
	for _, count := range []func(context.Context, *clusters.Cluster) error{
		stock.objects, stock.mounts, stock.records, stock.loops, stock.data,
	} {
		if err := count(ctx, cluster); err != nil {
			return nil, fmt.Errorf("take stock of cluster %s: %w", cluster.Name(), err)
		}
	}
	return stock, nil
}

// Beyond names what is in this stock and was not in the other, sorted.
func (s Stock) Beyond(other Stock) []string {
	var more []string
	for thing := range s {
		if _, known := other[thing]; !known {
			more = append(more, thing)
		}
	}
	slices.Sort(more)
	return more
}

func (s Stock) add(format string, args ...any) { s[fmt.Sprintf(format, args...)] = struct{}{} }

func (s Stock) objects(ctx context.Context, cluster *clusters.Cluster) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	// Twins for claims of other clusters are in the namespaces of their users.
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

func (s Stock) snapshots(ctx context.Context, client kubernetes.Interface) error {
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

// mounts counts those of CSI and local volumes; those of other kinds come and go
// with any pod.
func (s Stock) mounts(_ context.Context, cluster *clusters.Cluster) error {
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

func (s Stock) records(_ context.Context, cluster *clusters.Cluster) error {
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

// loops counts every loop device of the machine, by the name and inode of its file.
// Neither its number nor the path in sysfs would do: numbers are reused, and the
// path is the one inside the mount namespace that opened the file.
func (s Stock) loops(context.Context, *clusters.Cluster) error {
	attached, err := machine.LoopDevices()
	if err != nil {
		return err
	}
	for _, info := range attached {
		s.add("loop device on %s (inode %d)", unix.ByteSliceToString(info.File_name[:]), info.Inode)
	}
	return nil
}

// data counts what real drivers remember, and what they hold, remembered or not.
func (s Stock) data(_ context.Context, cluster *clusters.Cluster) error {
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

// files counts what is in a folder, if there is one.
func (s Stock) files(what, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		s.add("%s: %s", what, entry.Name())
	}
	return nil
}
