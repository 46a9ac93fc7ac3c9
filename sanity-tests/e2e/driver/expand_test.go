package driver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// beyondReason is more than the reference driver ever gives.
const beyondReason = "20Ti"

// The second and the third time show that nothing of the one before is left.
func TestVolumeGrowsOnlineThreeTimes(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	before := n.WaitReady("user")
	n.Exec("user", "echo kept > /data/file")
	for _, size := range []string{"400Mi", "480Mi", "560Mi"} {
		small := n.FileSystemKiB("user")
		n.Resize("data", size)
		n.WaitExpanded("data", size)
		// The filesystem keeps some of it to itself.
		if large := n.FileSystemKiB("user"); large < small+70*1024 {
			t.Errorf("with %s the filesystem has %d KiB, it had %d KiB", size, large, small)
		}
	}
	if got := n.Exec("user", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	if after := n.WaitReady("user"); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Error("the pod did not live through it")
	}
}

// Of the kinds of volumes that no pod has, one has to wait for the next pod.
func TestVolumesGrowWhileNoPodHasThem(t *testing.T) {
	t.Parallel()
	for class, real := range map[string]storage.Driver{
		"reference-ext4": storage.Reference, "reference-attach": storage.Attach, "reference-local": storage.Local,
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("data", "liqo-"+class, "64Mi")
			n.Pod("first", "data")
			n.WaitReady("first")
			n.DeletePod("first")
			waitUnstaged(n, real, n.WaitVolume("data"))
			n.Resize("data", "128Mi")
			if class == "reference-ext4" {
				n.WaitResizeCondition("data", corev1.PersistentVolumeClaimFileSystemResizePending)
				n.WantCapacity("data", "64Mi")
				if table, _ := look(t, n, "volumes", "--namespace", n.Name); !strings.Contains(table, "64Mi -> 128Mi") {
					t.Errorf("the table does not say what the size is to be:\n%s", table)
				}
			} else {
				n.WaitExpanded("data", "128Mi")
			}
			n.Pod("second", "data")
			n.WaitReady("second")
			n.WaitExpanded("data", "128Mi")
			if class == "reference-ext4" {
				if size := n.FileSystemKiB("second"); size < 100*1024 {
					t.Errorf("the filesystem has %d KiB", size)
				}
			}
		})
	}
}

// waitUnstaged waits until no node holds the real volume, which takes a little longer
// than its last pod lives.
func waitUnstaged(n *user.Namespace, real storage.Driver, v user.Volume) {
	n.Eventually("the real volume is unstaged", func(context.Context) (string, error) {
		record, err := storage.BackendOf(n.Cluster, real).Volume(v.Real.Spec.CSI.VolumeHandle)
		if err != nil || len(record.Stages) == 0 {
			return "", err
		}
		return fmt.Sprintf("it is staged on %v", slices.Sorted(maps.Keys(record.Stages))), nil
	})
}

func TestBlockVolumesGrowOnline(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"liqo-reference", "liqo-reference-attach"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("device", class, "16Mi", user.Block)
			n.Pod("writer", "device", user.WithDevice)
			n.WaitReady("writer")
			n.Exec("writer", "echo kept | dd of=/data bs=512 count=1 conv=sync,fsync")
			for _, size := range []string{"24Mi", "32Mi"} {
				n.Resize("device", size)
				n.WaitExpanded("device", size)
				n.WaitDeviceSize("writer", size)
			}
			n.DeletePod("writer")
			n.Pod("reader", "device", user.WithDevice)
			n.WaitReady("reader")
			if got := n.Exec("reader", "head -c 4 /data"); got != "kept" {
				user.Violated(t, "read %q", got)
			}
		})
	}
}

// Each node has to grow what it has of a volume, also when the claim says that all is done.
func TestVolumeGrowsOnEveryNodeThatHasIt(t *testing.T) {
	n := home(t)
	last, first := twoNodes(t, n)
	n.Claim("device", "liqo-reference", "16Mi", user.Block, mode(corev1.ReadWriteMany))
	n.Claim("folder", "liqo-reference", "64Mi", mode(corev1.ReadWriteMany))
	names := []string{first.Name, last.Name}
	for _, node := range names {
		n.Pod("device-"+node, "device", user.WithDevice, user.OnNode(node))
		n.Pod("folder-"+node, "folder", user.OnNode(node))
	}
	for _, node := range names {
		n.WaitReady("device-" + node)
		n.WaitReady("folder-" + node)
	}
	for _, step := range []struct{ device, folder string }{{"24Mi", "96Mi"}, {"32Mi", "128Mi"}} {
		n.Resize("device", step.device)
		n.Resize("folder", step.folder)
		n.WaitExpanded("device", step.device)
		n.WaitExpanded("folder", step.folder)
		for _, node := range names {
			n.WaitDeviceSize("device-"+node, step.device)
		}
	}
	n.Exec("folder-"+names[0], "echo together > /data/file")
	if got := n.Exec("folder-"+names[1], "cat /data/file"); got != "together" {
		user.Violated(t, "the other node reads %q", got)
	}
}

func TestSizesAreThoseThatTheRealDriverRoundsTo(t *testing.T) {
	n := home(t)
	folders := growingClass(n, "folders", map[string]string{"roundToMebibytes": "100"})
	n.Claim("folder", folders, "64Mi")
	n.Pod("folder", "folder")
	images := growingClass(n, "images", map[string]string{"roundToMebibytes": "100", "backing": "xfs"})
	n.Claim("image", images, "320Mi")
	n.Pod("image", "image")
	n.WaitReady("folder")
	n.WaitReady("image")
	n.WaitExpanded("folder", "100Mi")
	n.WaitExpanded("image", "400Mi")
	small := n.FileSystemKiB("image")

	n.Resize("folder", "150Mi")
	n.Resize("image", "450Mi")
	n.WaitExpanded("folder", "200Mi")
	// kubelet notes what was asked for, whatever the volume has.
	n.WaitExpanded("image", "450Mi")
	if large := n.FileSystemKiB("image"); large < small+90*1024 {
		t.Errorf("the filesystem had %d KiB and has %d KiB", small, large)
	}
	n.Resize("folder", "250Mi")
	n.Resize("image", "550Mi")
	n.WaitExpanded("folder", "300Mi")
	n.WaitExpanded("image", "550Mi")
}

// growingClass makes a real class of the driver Reference and a virtual one for it, both
// of which allow expansion. It returns the virtual one.
func growingClass(n *user.Namespace, name string, parameters map[string]string) string {
	return classPair(n, name, true, parameters)
}

// classPair makes a real class of the driver Reference and a virtual one for it, which
// allows expansion in any case.
func classPair(n *user.Namespace, name string, realGrows bool, parameters map[string]string) (virtual string) {
	wait, grows := storagev1.VolumeBindingWaitForFirstConsumer, true
	real := realOf(n, name)
	n.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: real}, Provisioner: storage.Reference.Name, VolumeBindingMode: &wait,
		AllowVolumeExpansion: &realGrows, Parameters: parameters,
	})
	virtual = n.Name + "-" + name
	n.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: virtual}, Provisioner: driver.CSIName, VolumeBindingMode: &wait,
		AllowVolumeExpansion: &grows, Parameters: map[string]string{"realStorageClass": real},
	})
	return virtual
}

// realOf is the name of the real class of such a pair.
func realOf(n *user.Namespace, name string) string { return n.Name + "-real-" + name }

func TestLowerSizeIsServedAfterOneThatCannotBe(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.WaitVolume("data")
	n.Resize("data", beyondReason)
	// In the words of the real driver.
	n.WaitExpansionRefused("data", "OutOfRange", "directory volumes have 1 to")
	n.WaitResizeCondition("data", corev1.PersistentVolumeClaimControllerResizeError, "directory volumes have 1 to")
	n.WantCapacity("data", "64Mi")
	n.Resize("data", "128Mi")
	n.WaitExpanded("data", "128Mi")
	n.Resize("data", "192Mi")
	n.WaitExpanded("data", "192Mi")
}

// The resizer of the real driver sees no pod on the twin, and so cannot tell users.
func TestVolumeThatGrowsOfflineOnlyWaitsForItsPodToEnd(t *testing.T) {
	n := home(t)
	n.Claim("data", growingClass(n, "offline", map[string]string{"grow": "offline"}), "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.Resize("data", "128Mi")
	n.WaitEvent("data", "VolumeResizeFailed", "FailedPrecondition", "grows only while it is not")
	n.WaitEvent("data", "VolumeResizeFailed", "only supports offline expansion")
	n.WantCapacity("data", "64Mi")
	n.DeletePod("user")
	n.WaitExpanded("data", "128Mi")
	n.Pod("next", "data")
	n.WaitReady("next")
}

// Some classes never allow expansion, some have nobody who would do it.
func TestExpansionIsRefusedWhereTheRealClassDoesNotAllowIt(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]string{
		"fixed": "128Mi", "local-path": "128Mi",
		// More than any of these volumes has, whatever was asked for.
		"static-local": "2Gi",
	} {
		t.Run(name, func(t *testing.T) {
			n := home(t)
			virtual, real := "liqo-"+name, name
			switch name {
			case "fixed":
				virtual, real = classPair(n, name, false, nil), realOf(n, name)
			case "static-local":
				recycleStatic(t, n)
			}
			n.Claim("data", virtual, "64Mi")
			n.Pod("user", "data")
			n.WaitReady("user")
			before := n.WaitVolume("data")
			n.Resize("data", size)
			n.WaitEvent("data", "VolumeResizeFailed", "OutOfRange",
				fmt.Sprintf("the real class %q in the cluster", real), "does not allow expansion")
			n.WaitResizeCondition("data", corev1.PersistentVolumeClaimControllerResizeError, real)
			after := n.WaitVolume("data")
			was, is := before.Twin.Spec.Resources.Requests[corev1.ResourceStorage], after.Twin.Spec.Resources.Requests[corev1.ResourceStorage]
			if was.Cmp(is) != 0 {
				t.Errorf("the twin asked for %s and asks for %s", was.String(), is.String())
			}
		})
	}
}

// The quota that counts is the one of the namespace of the twins.
func TestQuotaOfTheTwinsIsToldAndLessIsServed(t *testing.T) {
	n := home(t)
	class := growingClass(n, "scarce", nil)
	limitTwins(t, n, realOf(n, "scarce"), "100Mi")
	n.Claim("data", class, "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.WaitVolume("data")
	n.Resize("data", "128Mi")
	n.WaitExpansionRefused("data", "OutOfRange", "exceeded quota: "+n.Name)
	n.Resize("data", "96Mi")
	n.WaitExpanded("data", "96Mi")
}

// limitTwins lets the twins of one real class ask for no more than this in all: twins of
// other tests are in the same namespace.
func limitTwins(t *testing.T, n *user.Namespace, class, most string) {
	t.Helper()
	quotas := n.Client.CoreV1().ResourceQuotas(chart.StorageNamespace)
	limited := corev1.ResourceName(class + ".storageclass.storage.k8s.io/requests.storage")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{limited: resource.MustParse(most)},
	}}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := quotas.Delete(user.CleanupContext(t), n.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	n.Eventually("the quota is enforced", func(ctx context.Context) (string, error) {
		found, err := quotas.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil || len(found.Status.Hard) == 0 {
			return "its status says nothing", err
		}
		return "", nil
	})
}

// Its node plugin is not there just when kubelet wants the volume to grow. Kubelet tells it with
// another reason when it grows a volume while it sets the volume up again for its pod.
func TestNodeExpansionWaitsForTheRealDriver(t *testing.T) {
	n := homeAlone(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	pod := n.WaitReady("user")
	n.WaitVolume("data")
	small := n.FileSystemKiB("user")
	back := hideSocket(t, n, storage.Reference, pod.Spec.NodeName)

	n.Resize("data", "400Mi")
	n.WaitEvent("user", "Unavailable", storage.Reference.Name)
	n.WaitResizeCondition("data", corev1.PersistentVolumeClaimFileSystemResizePending)
	n.WantCapacity("data", "320Mi")
	if twin := n.WaitVolume("data").Twin; twin.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == "" {
		t.Errorf("the twin is said to have grown before it did: %v", twin.Status)
	}

	back()
	n.WaitExpanded("data", "400Mi")
	if large := n.FileSystemKiB("user"); large < small+70*1024 {
		t.Errorf("the filesystem had %d KiB and has %d KiB", small, large)
	}
}

// hideSocket lets nobody find the node plugin of a real driver on a node until back is called.
func hideSocket(t *testing.T, n *user.Namespace, real storage.Driver, name string) (back func()) {
	t.Helper()
	node, err := n.Cluster.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(node.KubeletRoot(), "plugins", real.Name, "csi.sock")
	if err := os.Rename(socket, socket+".hidden"); err != nil {
		t.Fatal(err)
	}
	hidden := true
	back = func() {
		if !hidden {
			return
		}
		hidden = false
		if err := os.Rename(socket+".hidden", socket); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	return back
}

// The node cannot grow the volume, as it says for good, and then it can.
func TestNodeThatCannotGrowTheVolumeIsAskedAgain(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	heal := spoilTwin(t, n, found.Claim, storage.Reference, storage.Fault{
		RPC: "NodeExpandVolume", Code: "OutOfRange", Message: "this node has no room for that",
	})
	n.Resize("data", "400Mi")
	n.WaitEvent("user", "OutOfRange", "this node has no room for that")
	heal()
	n.WaitExpanded("data", "400Mi")
	n.Resize("data", "480Mi")
	n.WaitExpanded("data", "480Mi")
}
