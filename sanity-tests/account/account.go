// Package account takes stock of everything that volumes leave behind in a
// cluster of the lab: objects, mounts, loop devices, records of the node plugin
// and the data itself. Two stocks compared tell what was leaked or lost.
package account

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/storage"
)

// recordDir is where the node plugin remembers volumes, below kubelet's root.
const recordDir = "plugins/storage.liqo.io/state"

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
	twins, err := client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, twin := range twins.Items {
		s.add("twin %s/%s", twin.Namespace, twin.Name)
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

// loops counts loop devices on files of the lab, by file: numbers are reused.
func (s Stock) loops(context.Context, *clusters.Cluster) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil {
			continue // detached meanwhile
		}
		if path := strings.TrimSpace(string(backing)); strings.HasPrefix(path, machine.Path()) {
			s.add("loop device on %s", path)
		}
	}
	return nil
}

func (s Stock) data(_ context.Context, cluster *clusters.Cluster) error {
	for _, driver := range storage.Drivers() {
		volumes, err := storage.BackendOf(cluster, driver).Volumes()
		if err != nil {
			return err
		}
		for _, volume := range volumes {
			s.add("data %s of %s", volume.ID, driver.Name)
		}
	}
	return nil
}
