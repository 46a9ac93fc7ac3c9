package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// beside makes a claim of another namespace for data that has a claim already: by a second
// PersistentVolume of the same handle, to read it while its pods run.
func beside(t *testing.T, n *user.Namespace, data *corev1.PersistentVolume) {
	t.Helper()
	class := ""
	source := data.Spec.CSI.DeepCopy()
	source.ReadOnly = true
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name + "-reads-along"},
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Timeout)
		defer cancel()
		if err := volumes.Delete(ctx, volume.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	n.Claim("data", class, data.Spec.Capacity.Storage().String(), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = volume.Name
		claim.Spec.VolumeMode = data.Spec.VolumeMode
	})
}

// attachments are those of one driver to a node, ours and the real one's.
func attachments(t *testing.T, n *user.Namespace, volumes ...string) (names []string) {
	t.Helper()
	n.Eventually("the attachments to be readable", func(ctx context.Context) (missing string, err error) {
		names, err = readAttachments(ctx, n, volumes...)
		return "", err
	})
	return names
}

func readAttachments(ctx context.Context, n *user.Namespace, volumes ...string) (names []string, err error) {
	found, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, one := range found.Items {
		if name := one.Spec.Source.PersistentVolumeName; name != nil && slices.Contains(volumes, *name) {
			names = append(names, one.Name)
		}
	}
	return names, nil
}

// Somebody reads a volume beside its pods, as a move does, by a second PersistentVolume. The
// two come and go in any order and do not disturb each other.
func TestASecondVolumeOfTheSameData(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"liqo-reference", "liqo-reference-attach"} {
		for _, volumeMode := range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
			t.Run(fmt.Sprintf("%s %s", class, volumeMode), func(t *testing.T) {
				// The namespace of the reader goes first: a volume is not deleted while a claim has it.
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
				before := attachments(t, n, v.Virtual.Name, v.Real.Name)
				beside(t, reader, v.Virtual)
				readers := append(slices.Clone(pods), readOnly)
				reads := func(want string) {
					t.Helper()
					n.Exec("user", fmt.Sprintf(write, want))
					reader.Eventually("the reader sees "+want, func(context.Context) (string, error) {
						out, err := reader.Kubectl("exec", "reader", "--", "sh", "-c", read)
						if err != nil || out == want+"\n" {
							return "", err
						}
						return "it reads " + out, nil
					})
				}

				reader.Pod("reader", "data", readers...)
				reader.WaitReady("reader")
				reads("beside")
				if both := attachments(t, n, v.Virtual.Name, v.Real.Name, reader.Name+"-reads-along"); !slices.Equal(both, before) {
					t.Errorf("attached with %v, for one alone with %v", both, before)
				}
				reader.DeletePod("reader")
				n.Exec("user", fmt.Sprintf(write, "alone"))

				reader.Pod("reader", "data", readers...)
				reader.WaitReady("reader")
				n.DeletePod("user")
				time.Sleep(5 * time.Second) // for kubelet to take the volume away, if it would
				if got := reader.Exec("reader", read); got != "alone" {
					user.Violated(t, "after the user has gone, the reader reads %q", got)
				}
				n.Pod("user", "data", pods...)
				n.WaitReady("user")
				reads("again")
				reader.DeletePod("reader")
				n.Exec("user", fmt.Sprintf(write, "last"))

				n.DeletePod("user")
				n.Eventually("nothing is attached any more", func(ctx context.Context) (string, error) {
					left, err := readAttachments(ctx, n, v.Virtual.Name, v.Real.Name)
					return strings.Join(left, ", "), err
				})
				real, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), v.Real.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if policy := real.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimDelete {
					t.Errorf("the real volume is %s: it follows the second volume", policy)
				}
			})
		}
	}
}
