package faults

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/nodes"
)

// repairVolumeData writes the vol_data.json of mounts that a killed kubelet has left empty. Kubelet
// truncates the file before it writes it (saveVolumeData of its CSI plugin); if it is killed in between, it
// can never unmount the volume, with any driver. With dozens of kills this happens, and is not tested here.
func repairVolumeData(ctx context.Context, client kubernetes.Interface, node *nodes.Node) error {
	files, err := filepath.Glob(filepath.Join(node.KubeletRoot(), "pods/*/volumes/kubernetes.io~csi/*/vol_data.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		// An error: deleted with its pod.
		if info, err := os.Stat(file); err != nil || info.Size() > 0 {
			continue
		}
		name := filepath.Base(filepath.Dir(file))
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("repair %s: %w", file, err)
		}
		if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != driver.CSIName {
			continue
		}
		handle := volume.Spec.CSI.VolumeHandle
		attachment := sha256.Sum256([]byte(handle + driver.CSIName + node.Name))
		data, err := json.Marshal(map[string]string{
			"attachmentID": fmt.Sprintf("csi-%x", attachment), "driverName": driver.CSIName, "nodeName": node.Name,
			"specVolID": name, "volumeHandle": handle, "volumeLifecycleMode": "Persistent", "seLinuxMountContext": "",
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return fmt.Errorf("repair %s: %w", file, err)
		}
	}
	return nil
}
