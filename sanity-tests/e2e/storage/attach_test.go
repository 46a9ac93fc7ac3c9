package storage

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// attachments counts the VolumeAttachments of a volume that are attached.
func attachments(ctx context.Context, n *user.Namespace, volume string) (int, error) {
	all, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, attachment := range all.Items {
		if name := attachment.Spec.Source.PersistentVolumeName; name != nil && *name == volume && attachment.Status.Attached {
			count++
		}
	}
	return count, nil
}

func TestAttachedVolumesAreDetached(t *testing.T) {
	n := home(t)
	backend := storage.BackendOf(n.Cluster, storage.Attach)
	n.Claim("data", "reference-attach", "64Mi")
	n.Pod("user", "data")
	pod := n.WaitReady("user")
	volume := n.WaitBound("data")
	if count, err := attachments(t.Context(), n, volume.Name); err != nil || count != 1 {
		t.Errorf("%d attachments, %v", count, err)
	}
	record, err := backend.Volume(volume.Spec.CSI.VolumeHandle)
	if err != nil || record.Attachments[pod.Spec.NodeName] == nil {
		t.Errorf("the backend has the attachments %v, %v", record.Attachments, err)
	}
	published, err := backend.Calls(func(call storage.Call) bool {
		return call.Volume == record.ID && call.RPC == "NodePublishVolume" && call.Code == "OK"
	})
	if err != nil || len(published) == 0 {
		t.Fatalf("the driver got no NodePublishVolume, %v", err)
	}
	for _, key := range []string{"csi.storage.k8s.io/pod.name", "csi.storage.k8s.io/serviceAccount.tokens"} {
		if !slices.Contains(published[0].VolumeContext, key) {
			t.Errorf("the volume context has %v, not %s", published[0].VolumeContext, key)
		}
	}

	n.DeletePod("user")
	n.Eventually("the volume is detached", func(ctx context.Context) (string, error) {
		count, err := attachments(ctx, n, volume.Name)
		if err != nil {
			return "", err
		}
		record, err := backend.Volume(volume.Spec.CSI.VolumeHandle)
		if err != nil || count == 0 && len(record.Attachments) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d VolumeAttachments, the backend has %v", count, record.Attachments), nil
	})
}
