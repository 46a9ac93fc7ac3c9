package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/nodes"
)

// Static volumes of an administrator, on each node.
const (
	staticDir         = "/mnt/disks"
	staticDirectories = 4
	staticDirSize     = "1Gi" // a promise only, as with any directory
	staticBlockSize   = "64Mi"
	staticBlockBytes  = int64(64) << 20
	staticClass       = "static-local"
)

type staticVolume struct {
	Name, Node, Path, Mode, Size string
}

// prepareStaticVolumes creates directories and one block device on each node. They are in the lab's
// state directory, so `lab down` removes them.
func prepareStaticVolumes(ctx context.Context, cluster *clusters.Cluster) ([]staticVolume, error) {
	var volumes []staticVolume
	for _, node := range cluster.Nodes() {
		for number := range staticDirectories {
			dir := path.Join(staticDir, fmt.Sprintf("disk%d", number+1))
			if err := os.MkdirAll(node.HostPath(dir), 0o777); err != nil {
				return nil, fmt.Errorf("prepare a static volume: %w", err)
			}
			volumes = append(volumes, staticVolume{
				Name: fmt.Sprintf("%s-%s-disk%d", staticClass, node.Name, number+1),
				Node: node.Name, Path: dir, Mode: "Filesystem", Size: staticDirSize,
			})
		}
		device, err := staticDevice(ctx, node)
		if err != nil {
			return nil, fmt.Errorf("prepare a static block volume on node %s: %w", node.Name, err)
		}
		volumes = append(volumes, staticVolume{
			Name: fmt.Sprintf("%s-%s-block", staticClass, node.Name),
			Node: node.Name, Path: device, Mode: "Block", Size: staticBlockSize,
		})
	}
	return volumes, nil
}

// staticDevice returns the loop device of the node's image file.
func staticDevice(ctx context.Context, node *nodes.Node) (string, error) {
	image := node.HostPath(path.Join(staticDir, "block.img"))
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			return "", err
		}
		if err := os.Truncate(image, staticBlockBytes); err != nil {
			return "", err
		}
	}
	attached, err := losetup(ctx, "--associated", image, "--output", "NAME", "--noheadings")
	if err != nil || attached != "" {
		return attached, err
	}
	return losetup(ctx, "--find", "--show", image)
}

func losetup(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// wiper is the name of a claim that does not exist. A volume is bound to it while it is wiped, so
// that no other claim gets it.
const wiper = "being-wiped"

// recycling is locked by the test of this process that recycles; others run in parallel.
var recycling sync.Mutex

// RecycleStatic makes released volumes of the class static-local available
// again, empty, as an administrator would.
func RecycleStatic(ctx context.Context, cluster *clusters.Cluster) error {
	recycling.Lock()
	defer recycling.Unlock()
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	for _, volume := range volumes.Items {
		if volume.Spec.StorageClassName != staticClass || volume.Spec.ClaimRef == nil {
			continue
		}
		if err := recycle(ctx, client, cluster, &volume); err != nil {
			return fmt.Errorf("recycle volume %s: %w", volume.Name, err)
		}
	}
	return nil
}

// recycle wipes a volume if its claim is deleted, after it has made sure that no claim can be bound
// to it meanwhile.
func recycle(ctx context.Context, client kubernetes.Interface, cluster *clusters.Cluster, volume *corev1.PersistentVolume) error {
	all, of := client.CoreV1().PersistentVolumes(), volume.Spec.ClaimRef
	if of.Name != wiper {
		if volume.Status.Phase != corev1.VolumeReleased {
			return nil
		}
		// Its phase may be older than its claim.
		claim, err := client.CoreV1().PersistentVolumeClaims(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && claim.UID == of.UID {
			return nil
		}
		// With the resourceVersion the patch fails if the volume has changed.
		take := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"claimRef":{"namespace":%q,"name":%q,"uid":null,"resourceVersion":null}}}`,
			volume.ResourceVersion, metav1.NamespaceDefault, wiper)
		_, err = all.Patch(ctx, volume.Name, types.MergePatchType, []byte(take), metav1.PatchOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // another process has it
		}
		if err != nil {
			return err
		}
	}
	if err := wipe(cluster, volume); err != nil {
		return err
	}
	_, err := all.Patch(ctx, volume.Name, types.MergePatchType, []byte(`{"spec":{"claimRef":null}}`), metav1.PatchOptions{})
	return err
}

func wipe(cluster *clusters.Cluster, volume *corev1.PersistentVolume) error {
	if *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		device, err := os.OpenFile(volume.Spec.Local.Path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer device.Close()
		_, err = device.Write(make([]byte, staticBlockBytes))
		return err
	}
	for _, node := range cluster.Nodes() {
		if !strings.HasPrefix(volume.Name, staticClass+"-"+node.Name+"-disk") {
			continue
		}
		dir := node.HostPath(volume.Spec.Local.Path)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
