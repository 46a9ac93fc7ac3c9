package driver

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// claimSecondVolume creates a claim for a second PersistentVolume with the same handle, to read the data in another
// namespace while pods use it.
func claimSecondVolume(t *testing.T, n *user.Namespace, data *corev1.PersistentVolume) {
	t.Helper()
	source := data.Spec.CSI.DeepCopy()
	source.ReadOnly = true
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name + "-second"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      data.Spec.Capacity,
			AccessModes:                   data.Spec.AccessModes,
			VolumeMode:                    data.Spec.VolumeMode,
			NodeAffinity:                  data.Spec.NodeAffinity,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: source},
			ClaimRef:                      &corev1.ObjectReference{Namespace: n.Name, Name: "data"},
		},
	}
	volumes := n.Client.CoreV1().PersistentVolumes()
	if _, err := volumes.Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := volumes.Delete(user.CleanupContext(t), volume.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	n.Claim("data", "", data.Spec.Capacity.Storage().String(), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = volume.Name
		claim.Spec.VolumeMode = data.Spec.VolumeMode
	})
}

func readAttachments(n *user.Namespace, volumes ...string) (names []string) {
	n.Eventually("read the attachments", func(ctx context.Context) (missing string, err error) {
		names, err = attachments(ctx, n, volumes...)
		return "", err
	})
	return names
}

// A second PersistentVolume of the same data is mounted and unmounted in any order with the first, as by a move.
func TestSecondPersistentVolumeWithTheSameHandle(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"liqo-reference", "liqo-reference-attach"} {
		for _, volumeMode := range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
			t.Run(fmt.Sprintf("%s %s", class, volumeMode), func(t *testing.T) {
				// The namespace of the reader is deleted first, because a volume is not deleted while a claim has it.
				n := home(t)
				reader := user.NewNamespace(t, n.Cluster)
				node := user.OnNode(n.Cluster.Nodes()[0].Name)
				read, write := "cat /data/file", "echo %s > /data/file; sync"
				var claims []func(*corev1.PersistentVolumeClaim)
				pods := []func(*corev1.Pod){node}
				if volumeMode == corev1.PersistentVolumeBlock {
					claims, pods = append(claims, user.Block), append(pods, user.WithDevice)
					read, write = "dd if=/data bs=512 count=1 2>/dev/null | head -n 1", "echo %s | dd of=/data bs=512 count=1 conv=sync,fsync 2>/dev/null"
				}
				n.Claim("data", class, "64Mi", claims...)
				n.Pod("user", "data", pods...)
				n.WaitReady("user")
				v := n.WaitVolume("data")
				before := readAttachments(n, v.Virtual.Name, v.Real.Name)
				claimSecondVolume(t, reader, v.Virtual)
				readers := append(slices.Clone(pods), readOnly)
				waitRead := func(want string) {
					t.Helper()
					n.Exec("user", fmt.Sprintf(write, want))
					reader.Eventually("the reader reads "+want, func(context.Context) (string, error) {
						out, err := reader.Kubectl("exec", "reader", "--", "sh", "-c", read)
						if err != nil || out == want+"\n" {
							return "", err
						}
						return "it reads " + out, nil
					})
				}

				reader.Pod("reader", "data", readers...)
				reader.WaitReady("reader")
				waitRead("both")
				if both := readAttachments(n, v.Virtual.Name, v.Real.Name, reader.Name+"-second"); !slices.Equal(both, before) {
					t.Errorf("the attachments are %v, and were %v with one volume", both, before)
				}
				reader.DeletePod("reader")
				n.Exec("user", fmt.Sprintf(write, "one"))

				reader.Pod("reader", "data", readers...)
				reader.WaitReady("reader")
				n.DeletePod("user")
				time.Sleep(5 * time.Second) // in which kubelet would wrongly unmount the volume
				if got := reader.Exec("reader", read); got != "one" {
					user.Violated(t, "after the deletion of the other pod, the reader reads %q", got)
				}
				n.Pod("user", "data", pods...)
				n.WaitReady("user")
				waitRead("again")
				reader.DeletePod("reader")
				n.Exec("user", fmt.Sprintf(write, "last"))

				n.DeletePod("user")
				waitDetached(n, v.Virtual.Name, v.Real.Name)
				real, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), v.Real.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if policy := real.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimDelete {
					t.Errorf("the reclaim policy of the real volume is %s, that of the second volume", policy)
				}
			})
		}
	}
}
