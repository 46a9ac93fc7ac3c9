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

// mendTorn writes what a kubelet that was killed meant to write. Kubelet truncates the
// vol_data.json of a mount before it fills it (saveVolumeData of its CSI plugin); one
// that dies in between can neither unmount the volume nor end its pod ever after, whatever
// the driver. With dozens of kills that happens now and then, and is not what is tested.
func mendTorn(ctx context.Context, client kubernetes.Interface, node *nodes.Node) error {
	files, err := filepath.Glob(filepath.Join(node.KubeletRoot(), "pods/*/volumes/kubernetes.io~csi/*/vol_data.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		// What cannot be looked at went with its pod.
		if info, err := os.Stat(file); err != nil || info.Size() > 0 {
			continue
		}
		name := filepath.Base(filepath.Dir(file))
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("mend %s: %w", file, err)
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
			return fmt.Errorf("mend what kubelet left: %w", err)
		}
	}
	return nil
}
