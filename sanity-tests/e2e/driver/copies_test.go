package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// VolumeSnapshotClasses of the lab: two for the default class of each real driver, with the policies Delete and
// Retain, and one that names a real class.
const (
	snapshotClass = "liqo"
	retainClass   = "liqo-retain"
	namedClass    = "liqo-reference"
)

// fillRandom writes random data to the volume of a pod, and returns its checksum.
func fillRandom(n *user.Namespace, pod string, block bool) string {
	if block {
		n.Exec(pod, "dd if=/dev/urandom of=/data bs=1M count=4 2>/dev/null && sync")
	} else {
		n.Exec(pod, "dd if=/dev/urandom of=/data/random bs=1M count=4 2>/dev/null && mkdir -p /data/a/b && date > /data/a/b/c && sync")
	}
	return checksum(n, pod, block)
}

// checksum returns the checksum of what fillRandom wrote.
func checksum(n *user.Namespace, pod string, block bool) string {
	if block {
		return n.Exec(pod, "dd if=/data bs=1M count=4 2>/dev/null | sha256sum")
	}
	return n.Exec(pod, "cat /data/random /data/a/b/c | sha256sum")
}

func TestSnapshotsAndClonesHaveTheData(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		class, snapshots string
		block            bool
	}{
		"directory":         {"liqo-reference", snapshotClass, false},
		"xfs":               {"liqo-reference-xfs", namedClass, false},
		"attached":          {"liqo-reference-attach", snapshotClass, false},
		"on one node":       {"liqo-reference-local", snapshotClass, false},
		"block":             {"liqo-reference", snapshotClass, true},
		"block on one node": {"liqo-reference-local", snapshotClass, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := home(t)
			var claims []func(*corev1.PersistentVolumeClaim)
			var pods []func(*corev1.Pod)
			if one.block {
				claims, pods = append(claims, user.Block), append(pods, user.WithDevice)
			}
			from := func(kind, name string) []func(*corev1.PersistentVolumeClaim) {
				return append([]func(*corev1.PersistentVolumeClaim){user.WithDataSource(kind, name)}, claims...)
			}
			n.Claim("source", one.class, "320Mi", claims...)
			n.Pod("writer", "source", pods...)
			n.WaitReady("writer")
			before := fillRandom(n, "writer", one.block)
			n.Snapshot("backup", "source", one.snapshots)
			current := fillRandom(n, "writer", one.block)

			n.Claim("restored", one.class, "320Mi", from("VolumeSnapshot", "backup")...)
			n.Claim("cloned", one.class, "320Mi", from("PersistentVolumeClaim", "source")...)
			n.Pod("restored", "restored", pods...)
			n.Pod("cloned", "cloned", pods...)
			for pod, want := range map[string]string{"restored": before, "cloned": current} {
				n.WaitReady(pod)
				if got := checksum(n, pod, one.block); got != want {
					user.Violated(t, "the checksum in %s is %s, want %s", pod, got, want)
				}
			}
			fillRandom(n, "cloned", one.block)
			if got := checksum(n, "writer", one.block); got != current {
				user.Violated(t, "a write to the clone changed its source")
			}
			wantTwinsOfCopies(t, n)
		})
	}
}

// wantTwinsOfCopies checks that the twins have the data sources of their claims.
func wantTwinsOfCopies(t *testing.T, n *user.Namespace) {
	t.Helper()
	snapshot := n.WantSnapshot("backup")
	labels := snapshot.Twin.Metadata.Labels
	if labels["app.kubernetes.io/managed-by"] != driver.CSIName || labels["storage.liqo.io/snapshot"] != snapshot.Object.Metadata.UID {
		t.Errorf("labels of the snapshot's twin: %v", labels)
	}
	if want := fmt.Sprintf("s1:%s::%s", clusterID(t, n), snapshot.Object.Metadata.UID); snapshot.Content.Status.Handle != want {
		t.Errorf("the handle of the snapshot is %s, want %s", snapshot.Content.Status.Handle, want)
	}
	for claim, want := range map[string]string{
		"restored": "VolumeSnapshot/" + snapshot.Twin.Metadata.Name,
		"cloned":   "PersistentVolumeClaim/" + n.WaitVolume("source").Twin.Name,
	} {
		source := n.WaitVolume(claim).Twin.Spec.DataSource
		if source == nil || source.Kind+"/"+source.Name != want {
			t.Errorf("the data source of the twin of %s is %v, want %s", claim, source, want)
		}
	}
}

// clusterID returns the id of the cluster from a label of its nodes.
func clusterID(t *testing.T, n *user.Namespace) string {
	t.Helper()
	node, err := n.Client.CoreV1().Nodes().Get(t.Context(), n.Cluster.Nodes()[0].Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Labels["topology.storage.liqo.io/cluster"]
}

// Copies of a node-local volume can only be on its node, so the driver selects it without a pod.
func TestCopiesOfANodeLocalVolumeAreOnItsNode(t *testing.T) {
	n := home(t)
	node := startPod(n, "writer", "source", "liqo-reference-local").Spec.NodeName
	want := fillRandom(n, "writer", false)
	n.Snapshot("backup", "source", snapshotClass)
	for claim, source := range map[string]func(*corev1.PersistentVolumeClaim){
		"restored": user.WithDataSource("VolumeSnapshot", "backup"),
		"cloned":   user.WithDataSource("PersistentVolumeClaim", "source"),
	} {
		n.Claim(claim, "liqo-reference-local", "64Mi", source)
		n.WaitBound(claim)
		n.Pod(claim, claim)
		if got := n.WaitReady(claim).Spec.NodeName; got != node {
			t.Errorf("pod %s runs on %s, its data is on %s", claim, got, node)
		}
		if got := checksum(n, claim, false); got != want {
			user.Violated(t, "the checksum in %s is %s, want %s", claim, got, want)
		}
		n.WaitEvent(claim, "NodeSelected", node)
		n.WantNoEvent(claim, "ProvisioningFailed")
	}
}

// An event reports that a pod which may not run on the node of the snapshot cannot have the copy. With
// restoreTopology=cluster the scheduler selects the node, and the real driver reports the error.
func TestPodThatCannotRunOnTheNodeOfACopyGetsAnEvent(t *testing.T) {
	n := home(t)
	n.Claim("source", "liqo-reference-local", "64Mi")
	n.Pod("writer", "source", user.OnNode("home-1"))
	n.WaitReady("writer")
	n.Snapshot("backup", "source", snapshotClass)
	n.Pod("reader", "restored", user.OnNode("home-2"))
	n.Claim("restored", "liqo-reference-local", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.WaitEvent("restored", "SourceElsewhere", "backup", "home-1", "pod reader")

	clusterWide := virtualClass(n.Name+"-cluster", map[string]string{"realStorageClass": "reference-local", "restoreTopology": "cluster"})
	n.Class(clusterWide)
	n.Claim("cluster-wide", clusterWide.Name, "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.Pod("cluster-wide", "cluster-wide", user.OnNode("home-2"))
	n.WaitEvent("cluster-wide", "ProvisioningFailed", "lives on node home-1")
	n.WantNoEvent("cluster-wide", "SourceElsewhere")
}

// Snapshots do not prevent the deletion of their volume, and remain usable.
func TestSnapshotOutlivesItsVolume(t *testing.T) {
	n := home(t)
	startPod(n, "writer", "source", "liqo-reference")
	want := fillRandom(n, "writer", false)
	n.Snapshot("backup", "source", snapshotClass)
	snapshot := n.WantSnapshot("backup")
	volume := n.WaitVolume("source")
	n.DeletePod("writer")
	deleteClaim(t, n, "source")
	waitVolumeDeleted(t, n, volume)

	n.Claim("restored", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.Pod("reader", "restored")
	n.WaitReady("reader")
	if got := checksum(n, "reader", false); got != want {
		user.Violated(t, "the checksum is %s, want %s", got, want)
	}
	n.DeleteSnapshot("backup")
	n.WaitSnapshotDeleted(snapshot, n.Client, chart.StorageNamespace)
	wantNoSnapshotData(t, n, snapshot)
	if got := checksum(n, "reader", false); got != want {
		user.Violated(t, "after the deletion of the snapshot the checksum is %s, want %s", got, want)
	}
}

// wantNoSnapshotData checks that the real driver has deleted the data of a snapshot.
func wantNoSnapshotData(t *testing.T, n *user.Namespace, s user.Snapshot) {
	t.Helper()
	data := storage.BackendOf(n.Cluster, storage.Reference).Data(s.Real.Status.Handle)
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		user.Violated(t, "the real driver still has %s: %v", data, err)
	}
}

// Provisioners that are no CSI drivers ignore the data source of a claim, and would create an empty volume.
func TestCopiesThatNoDriverSupportsAreRefused(t *testing.T) {
	n := home(t)
	n.Claim("local", "liqo-local-path", "64Mi")
	n.Claim("static", "liqo-static-local", "64Mi")
	n.Claim("reference", "liqo-reference", "64Mi")
	for _, claim := range []string{"local", "static", "reference"} {
		n.Pod(claim, claim)
		n.WaitReady(claim)
	}
	for _, claim := range []string{"local", "static"} {
		n.CreateSnapshot("of-"+claim, claim, snapshotClass)
		n.WaitSnapshotError("of-"+claim, "not a CSI volume")
	}

	n.Snapshot("backup", "reference", snapshotClass)
	for claim, one := range map[string]struct{ class, kind, source, message string }{
		"cloned":          {"liqo-local-path", "PersistentVolumeClaim", "local", "not a CSI volume"},
		"cloned-static":   {"liqo-static-local", "PersistentVolumeClaim", "static", "not a CSI volume"},
		"cloned-to-local": {"liqo-local-path", "PersistentVolumeClaim", "reference", "belongs to the driver"},
		"restored":        {"liqo-local-path", "VolumeSnapshot", "backup", "belongs to the driver"},
		"of-another":      {"liqo-reference-attach", "VolumeSnapshot", "backup", "belongs to the driver"},
	} {
		n.Claim(claim, one.class, "64Mi", user.WithDataSource(one.kind, one.source))
		n.Pod(claim, claim)
		n.WaitEvent(claim, one.message)
		if phase := n.GetClaim(claim).Status.Phase; phase != corev1.ClaimPending {
			t.Errorf("the claim %s is %s", claim, phase)
		}
	}
}

func TestSnapshotClassOfAnotherDriverIsRefused(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference-attach")
	n.CreateSnapshot("backup", "data", namedClass)
	n.WaitSnapshotError("backup", "belongs to the driver", storage.Reference.Name, "but the volume to")
}

// The snapshot is deleted while the real driver creates it. Only its twin refers to what was
// created.
func TestSnapshotDeletedDuringCreationLeaksNothing(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	removeFault := addTwinFault(n, n.GetClaim("data"),
		storage.Fault{RPC: "CreateSnapshot", When: "after", Code: "Unavailable", Message: "not yet"})
	n.CreateSnapshot("backup", "data", snapshotClass)
	var found user.Snapshot
	n.Eventually("the snapshot has a twin with a content", func(ctx context.Context) (missing string, err error) {
		if found, err = n.GetSnapshot(ctx, "backup"); found.Real == nil {
			missing = "it has none"
		}
		return missing, err
	})
	n.DeleteSnapshot("backup")
	removeFault()
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	deleted, err := storage.BackendOf(n.Cluster, storage.Reference).Calls(func(call storage.Call) bool {
		return call.RPC == "DeleteSnapshot" && strings.Contains(call.Code+call.Message, "OK")
	})
	if err != nil || len(deleted) == 0 {
		t.Errorf("the real driver got no successful DeleteSnapshot: %v", err)
	}
}

func TestRetainedSnapshotIsKeptAndCanBeDeleted(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
	n.Snapshot("backup", "data", retainClass)
	found := n.WantSnapshot("backup")
	if found.Real.Spec.DeletionPolicy != "Retain" {
		t.Errorf("the deletion policy of the real snapshot is %s", found.Real.Spec.DeletionPolicy)
	}
	n.DeleteSnapshot("backup")
	n.WaitDeleted("volumesnapshot", "backup")
	data := storage.BackendOf(n.Cluster, storage.Reference).Data(found.Real.Status.Handle)
	if _, err := os.Stat(data); err != nil {
		user.Violated(t, "the data of the retained snapshot was deleted: %v", err)
	}
	waitListed(t, n, found, "Retained")

	// An administrator deletes it.
	content := found.Content.Metadata.Name
	if _, err := n.Kubectl("patch", "volumesnapshotcontent", content, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Kubectl("delete", "volumesnapshotcontent", content, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	wantNoSnapshotData(t, n, found)
}

// When a retained snapshot and its content are deleted, only the twin still refers to the data.
func TestTwinOfARetainedSnapshotIsReportedAndCanBeRestored(t *testing.T) {
	n := home(t)
	startPod(n, "writer", "data", "liqo-reference")
	want := fillRandom(n, "writer", false)
	n.Snapshot("backup", "data", retainClass)
	found := n.WantSnapshot("backup")
	waitListed(t, n, found, "Ready")
	n.DeleteSnapshot("backup")
	content := found.Content.Metadata.Name
	n.WaitDeleted("volumesnapshot", "backup")
	if _, err := n.Kubectl("delete", "volumesnapshotcontent", content); err != nil {
		t.Fatal(err)
	}
	row := waitListed(t, n, found, "Orphaned")
	doctor, _ := liqoCSI(t, n, "doctor")
	if twin := chart.StorageNamespace + "/" + found.Twin.Metadata.Name; !strings.Contains(doctor, twin) {
		t.Errorf("doctor does not report the twin %s:\n%s", twin, doctor)
	}

	// What the advice requires: another content with the same id.
	if !strings.Contains(row.Advice, row.ID) {
		t.Errorf("the advice %q does not name the id %s", row.Advice, row.ID)
	}
	n.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: second-%[1]s}
spec:
  driver: %[2]s
  deletionPolicy: Delete
  source: {snapshotHandle: %[3]q}
  volumeSnapshotRef: {namespace: %[1]s, name: second}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: second}
spec:
  volumeSnapshotClassName: %[4]s
  source: {volumeSnapshotContentName: second-%[1]s}
`, n.Name, driver.CSIName, row.ID, snapshotClass))
	n.Claim("restored", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "second"))
	n.Pod("reader", "restored")
	n.WaitReady("reader")
	if got := checksum(n, "reader", false); got != want {
		user.Violated(t, "the checksum is %s, want %s", got, want)
	}
	n.DeleteSnapshot("second")
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	wantNoSnapshotData(t, n, found)
}

// listedSnapshot is a snapshot in the output of `liqo-csi volumes`.
type listedSnapshot struct {
	State, Advice, ID string
	Snapshot, Twin    *struct{ Namespace, Name string }
}

// waitListed waits until `liqo-csi volumes` lists a snapshot in this state with its twin.
func waitListed(t *testing.T, n *user.Namespace, s user.Snapshot, state string) (found listedSnapshot) {
	t.Helper()
	n.Eventually(fmt.Sprintf("snapshot %s is listed as %s", s.Object.Metadata.Name, state), func(context.Context) (string, error) {
		out, exit := liqoCSI(t, n, "volumes", "--namespace", n.Name, "--output", "json")
		var list struct{ Snapshots []listedSnapshot }
		if err := json.Unmarshal([]byte(out), &list); err != nil || exit != 0 {
			return "", fmt.Errorf("exit code %d, %v: %s", exit, err, out)
		}
		for _, found = range list.Snapshots {
			is := found.Snapshot != nil && found.Snapshot.Name == s.Object.Metadata.Name && found.Snapshot.Namespace == n.Name
			if is && found.Twin != nil && found.Twin.Name == s.Twin.Metadata.Name && found.State == state {
				return "", nil
			}
		}
		return "the output is " + out, nil
	})
	return found
}

// A block volume can be restored from a snapshot of a filesystem only with an annotation of its content.
func TestVolumeModeChangesOnlyWithTheAnnotation(t *testing.T) {
	n := home(t)
	startPod(n, "user", "data", "liqo-reference-ext4")
	n.Snapshot("backup", "data", snapshotClass)
	content := n.WantSnapshot("backup").Content.Metadata.Name
	n.Claim("raw", "liqo-reference-ext4", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"), user.Block)
	n.Pod("raw", "raw", user.WithDevice)
	n.WaitEvent("raw", "allow-volume-mode-change")
	if _, err := n.Kubectl("annotate", "volumesnapshotcontent", content, "snapshot.storage.kubernetes.io/allow-volume-mode-change=true"); err != nil {
		t.Fatal(err)
	}
	// The real driver refuses it.
	n.WaitEvent("raw", "a raw volume cannot be made from a ext4 source")
}
