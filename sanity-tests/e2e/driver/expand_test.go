package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// tooLarge is more than the maximum of the reference driver.
const tooLarge = "20Ti"

// An expansion must not leave anything that prevents the next.
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
		// The filesystem needs a part for itself.
		if large := n.FileSystemKiB("user"); large < small+70*1024 {
			t.Errorf("with %s the filesystem has %d KiB, and had %d KiB", size, large, small)
		}
	}
	if got := n.Exec("user", "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	if after := n.WaitReady("user"); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Error("the pod was restarted or replaced")
	}
}

// Without a pod, the expansion of one of these kinds is only completed for the next pod.
func TestVolumesGrowWithoutAPod(t *testing.T) {
	t.Parallel()
	for class, real := range map[string]storage.Driver{
		"reference-ext4": storage.Reference, "reference-attach": storage.Attach, "reference-local": storage.Local,
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			startPod(n, "first", "data", "liqo-"+class)
			n.DeletePod("first")
			n.WaitUnstaged(real, n.WaitVolume("data").Real)
			n.Resize("data", "128Mi")
			if class == "reference-ext4" {
				n.WaitResizeCondition("data", corev1.PersistentVolumeClaimFileSystemResizePending)
				n.WantCapacity("data", "64Mi")
				if table, _ := liqoCSI(t, n, "volumes", "--namespace", n.Name); !strings.Contains(table, "64Mi -> 128Mi") {
					t.Errorf("the table has no requested size:\n%s", table)
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

// A volume is expanded on every node where it is published, even if the claim has its new size already.
func TestVolumeGrowsOnEveryNodeThatUsesIt(t *testing.T) {
	n := home(t)
	last, first := twoNodes(t, n)
	n.Claim("device", "liqo-reference", "16Mi", user.Block, withAccessModes(corev1.ReadWriteMany))
	n.Claim("folder", "liqo-reference", "64Mi", withAccessModes(corev1.ReadWriteMany))
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
	n.Exec("folder-"+names[0], "echo shared text > /data/file")
	if got := n.Exec("folder-"+names[1], "cat /data/file"); got != "shared text" {
		user.Violated(t, "the other node reads %q", got)
	}
}

func TestSizesAreRoundedByTheRealDriver(t *testing.T) {
	n := home(t)
	folders := createExpandableClasses(n, "folders", map[string]string{"roundToMebibytes": "100"})
	n.Claim("folder", folders, "64Mi")
	n.Pod("folder", "folder")
	images := createExpandableClasses(n, "images", map[string]string{"roundToMebibytes": "100", "backing": "xfs"})
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
	// kubelet sets the requested size, not that of the volume.
	n.WaitExpanded("image", "450Mi")
	if large := n.FileSystemKiB("image"); large < small+90*1024 {
		t.Errorf("the filesystem had %d KiB and has %d KiB", small, large)
	}
	n.Resize("folder", "250Mi")
	n.Resize("image", "550Mi")
	n.WaitExpanded("folder", "300Mi")
	n.WaitExpanded("image", "550Mi")
}

// createExpandableClasses is createClasses with a real class that allows expansion.
func createExpandableClasses(n *user.Namespace, name string, parameters map[string]string) (virtual string) {
	return createClasses(n, name, true, parameters)
}

// createClasses creates a class of the driver Reference and a virtual class for it that allows expansion.
func createClasses(n *user.Namespace, name string, expandable bool, parameters map[string]string) (virtual string) {
	real := realClass(realClassName(n, name), storage.Reference, parameters)
	real.AllowVolumeExpansion = &expandable
	n.Class(real)
	class := virtualClass(n.Name+"-"+name, map[string]string{"realStorageClass": real.Name})
	class.AllowVolumeExpansion = new(true)
	n.Class(class)
	return class.Name
}

// realClassName returns the name of the real class that createClasses creates.
func realClassName(n *user.Namespace, name string) string { return n.Name + "-real-" + name }

func TestSmallerSizeSucceedsAfterAFailedExpansion(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	n.WaitVolume("data")
	n.Resize("data", tooLarge)
	// A message of the real driver.
	n.WaitExpansionRefused("data", "OutOfRange", "directory volumes have 1 to")
	n.WaitResizeCondition("data", corev1.PersistentVolumeClaimControllerResizeError, "directory volumes have 1 to")
	n.WantCapacity("data", "64Mi")
	n.Resize("data", "128Mi")
	n.WaitExpanded("data", "128Mi")
	n.Resize("data", "192Mi")
	n.WaitExpanded("data", "192Mi")
}

// The resizer of the real driver cannot report this to users, because no pod uses the twin.
func TestOfflineExpansionWaitsForThePodToEnd(t *testing.T) {
	n := home(t)
	n.Claim("data", createExpandableClasses(n, "offline", map[string]string{"grow": "offline"}), "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.Resize("data", "128Mi")
	n.WaitEvent("data", "VolumeResizeFailed", "FailedPrecondition", "grows only while it is not")
	n.WantCapacity("data", "64Mi")
	n.DeletePod("user")
	n.WaitExpanded("data", "128Mi")
	n.Pod("next", "data")
	n.WaitReady("next")
}

// Of the real classes, one does not allow expansion, and two have no resizer.
func TestExpansionIsRefusedIfTheRealClassForbidsIt(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]string{
		"fixed": "128Mi", "local-path": "128Mi",
		// Static volumes are larger than requested, but none has this size.
		"static-local": "2Gi",
	} {
		t.Run(name, func(t *testing.T) {
			n := home(t)
			virtual, real := "liqo-"+name, name
			switch name {
			case "fixed":
				virtual, real = createClasses(n, name, false, nil), realClassName(n, name)
			case "static-local":
				recycleStatic(t, n)
			}
			startPod(n, "user", "data", virtual)
			before := n.WaitVolume("data")
			n.Resize("data", size)
			n.WaitEvent("data", "VolumeResizeFailed", "OutOfRange",
				fmt.Sprintf("the real class %q in the cluster", real), "does not allow expansion")
			n.WaitResizeCondition("data", corev1.PersistentVolumeClaimControllerResizeError, real)
			after := n.WaitVolume("data")
			was, is := before.Twin.Spec.Resources.Requests[corev1.ResourceStorage], after.Twin.Spec.Resources.Requests[corev1.ResourceStorage]
			if was.Cmp(is) != 0 {
				t.Errorf("the twin requested %s and requests %s", was.String(), is.String())
			}
		})
	}
}

// An expansion needs quota in the namespace of the twins.
func TestQuotaForTwinsIsReportedAndASmallerSizeSucceeds(t *testing.T) {
	n := home(t)
	class := createExpandableClasses(n, "with-quota", nil)
	setTwinQuota(t, n, realClassName(n, "with-quota"), "100Mi")
	startPod(n, "user", "data", class)
	n.WaitVolume("data")
	n.Resize("data", "128Mi")
	n.WaitExpansionRefused("data", "OutOfRange", "exceeded quota: "+n.Name)
	n.Resize("data", "96Mi")
	n.WaitExpanded("data", "96Mi")
}

// setTwinQuota sets a quota for the twins of one real class, because those of other tests are in the same namespace.
func setTwinQuota(t *testing.T, n *user.Namespace, class, most string) {
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
			return "it has no status", err
		}
		return "", nil
	})
}

// The node plugin of the real driver is unreachable when kubelet expands the volume. The reason of the event depends
// on whether kubelet is mounting the volume again.
func TestNodeExpansionWaitsForTheRealDriver(t *testing.T) {
	n := homeSerial(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	pod := n.WaitReady("user")
	n.WaitVolume("data")
	small := n.FileSystemKiB("user")
	restore := hideSocket(t, n, storage.Reference, pod.Spec.NodeName)

	n.Resize("data", "400Mi")
	n.WaitEvent("user", "Unavailable", storage.Reference.Name)
	n.WaitResizeCondition("data", corev1.PersistentVolumeClaimFileSystemResizePending)
	n.WantCapacity("data", "320Mi")
	if twin := n.WaitVolume("data").Twin; twin.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == "" {
		t.Errorf("the twin has no pending expansion: %v", twin.Status)
	}

	restore()
	n.WaitExpanded("data", "400Mi")
	if large := n.FileSystemKiB("user"); large < small+70*1024 {
		t.Errorf("the filesystem had %d KiB and has %d KiB", small, large)
	}
}

// hideSocket renames the socket of a real driver's node plugin until restore is called.
func hideSocket(t *testing.T, n *user.Namespace, real storage.Driver, name string) (restore func()) {
	t.Helper()
	node, err := n.Cluster.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(node.KubeletRoot(), "plugins", real.Name, "csi.sock")
	if err := os.Rename(socket, socket+".hidden"); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := os.Rename(socket+".hidden", socket); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// The node cannot expand the volume, reports an infeasible size, and later can.
func TestFailedNodeExpansionIsRetried(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-xfs", "320Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	removeFault := addTwinFault(n, found.Claim, storage.Fault{
		RPC: "NodeExpandVolume", Code: "OutOfRange", Message: "this node has no capacity for that",
	})
	n.Resize("data", "400Mi")
	n.WaitEvent("user", "OutOfRange", "this node has no capacity for that")
	removeFault()
	n.WaitExpanded("data", "400Mi")
	n.Resize("data", "480Mi")
	n.WaitExpanded("data", "480Mi")
}
