package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// snapshotClass is the lab's VolumeSnapshotClass for the default one of the real driver in any cluster.
const snapshotClass = "liqo"

func TestRemoteSnapshotIsRestoredInItsCluster(t *testing.T) {
	p := newPair(t)
	p.startPod("writer", "source", "liqo-reference")
	p.remote.WaitReady("writer")
	old := p.remote.Exec("writer", fillScript)
	p.home.Snapshot("backup", "source", snapshotClass)
	current := p.remote.Exec("writer", fillScript)
	snapshot := p.home.WantRemoteSnapshot(p.remote, "backup")
	want := fmt.Sprintf("s1:%s:%s:%s", p.cluster, p.remote.Name, snapshot.Object.Metadata.UID)
	if got := snapshot.Content.Status.Handle; got != want {
		t.Errorf("the snapshot's id is %s, want %s", got, want)
	}

	p.home.Claim("restored", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	p.home.Claim("cloned", "liqo-reference", "64Mi", user.WithDataSource("PersistentVolumeClaim", "source"))
	for pod, want := range map[string]string{"restored": old, "cloned": current} {
		p.home.Pod(pod, pod, p.onVirtualNode)
		p.home.WaitReady(pod)
		p.remote.WaitReady(pod)
		if got := p.remote.Exec(pod, sumScript); got != want {
			user.Violated(t, "the checksum of %s is %s, want %s", pod, got, want)
		}
	}
	p.home.DeleteSnapshot("backup")
	p.home.WaitSnapshotDeleted(snapshot, p.remote.Client, p.remote.Name)
}

// A pod cannot run in the cluster of its source. An event names the nodes on which it can.
func TestRestoreForAPodThatCannotRunThereNamesPossibleNodes(t *testing.T) {
	p := newPair(t)
	onHomeNode := user.OnNode(p.home.Cluster.Nodes()[0].Name)
	p.home.Claim("remote", "liqo-reference", "64Mi")
	p.home.Pod("remote", "remote", p.onVirtualNode)
	p.home.Claim("home", "liqo-reference", "64Mi")
	p.home.Pod("home", "home", onHomeNode)
	p.home.WaitReady("remote")
	p.remote.WaitReady("remote")
	p.home.WaitReady("home")
	want := map[string]string{"remote": p.remote.Exec("remote", fillScript), "home": p.home.Exec("home", fillScript)}
	p.home.Snapshot("of-remote", "remote", snapshotClass)
	p.home.Snapshot("of-home", "home", snapshotClass)

	// Pods first: if only one node can have a copy, the driver selects it at once when the claim is created.
	p.home.Pod("from-remote", "from-remote", onHomeNode)
	p.home.Claim("from-remote", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "of-remote"))
	p.home.WaitEvent("from-remote", "SourceElsewhere", "of-remote", "cluster "+p.cluster, p.node, "pod from-remote")
	p.home.Pod("from-home", "from-home", p.onVirtualNode)
	p.home.Claim("from-home", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "of-home"))
	p.home.WaitEvent("from-home", "ProvisioningFailed", "of-home", "in this cluster")
	p.home.WaitEvent("from-home", "SourceElsewhere", "of-home", "in this cluster", "pod from-home")
	for _, claim := range []string{"from-remote", "from-home"} {
		if phase := p.home.GetClaim(claim).Status.Phase; phase != corev1.ClaimPending {
			t.Errorf("the claim %s is %s", claim, phase)
		}
		p.home.DeletePod(claim)
	}

	p.home.Pod("from-remote", "from-remote", p.onVirtualNode)
	p.home.Pod("from-home", "from-home", onHomeNode)
	p.waitRestored(want)
}

// waitRestored waits for the pods with the restored volumes, and compares the data with those of their sources.
func (p *pair) waitRestored(want map[string]string) {
	p.t.Helper()
	p.home.WaitReady("from-remote")
	p.remote.WaitReady("from-remote")
	p.home.WaitReady("from-home")
	if got := p.remote.Exec("from-remote", sumScript); got != want["remote"] {
		user.Violated(p.t, "the remote checksum is %s, want %s", got, want["remote"])
	}
	if got := p.home.Exec("from-home", sumScript); got != want["home"] {
		user.Violated(p.t, "the checksum at home is %s, want %s", got, want["home"])
	}
}

// The scheduler does not know which nodes can have a copy of a source. Pods prefer wrong ones, and are scheduled
// again, in both directions.
func TestRestoreIsRescheduledToTheClusterOfItsSource(t *testing.T) {
	p := newDedicatedPair(t, spec{})
	second := p.node + "-b"
	startFabric(t, virtualNode(second, p.cluster))
	if err := waitMarked(t.Context(), p.home.Cluster, second, p.cluster); err != nil {
		t.Fatal(err)
	}
	p.home.Claim("remote", "liqo-reference", "64Mi")
	p.home.Pod("remote", "remote", p.onVirtualNode)
	p.home.Claim("home", "liqo-reference", "64Mi")
	p.home.Pod("home", "home", user.OnNode(p.home.Cluster.Nodes()[0].Name))
	p.home.WaitReady("remote")
	p.remote.WaitReady("remote")
	p.home.WaitReady("home")
	want := map[string]string{"remote": p.remote.Exec("remote", fillScript), "home": p.home.Exec("home", fillScript)}
	p.home.Snapshot("of-remote", "remote", snapshotClass)
	p.home.Snapshot("of-home", "home", snapshotClass)

	real := make([]string, 0, 2)
	for _, node := range p.home.Cluster.Nodes() {
		real = append(real, node.Name)
	}
	virtual := []string{p.node, second}
	p.home.Claim("from-remote", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "of-remote"))
	p.home.Claim("from-home", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "of-home"))
	p.home.Pod("from-remote", "from-remote", preferNodes(real, virtual))
	p.home.Pod("from-home", "from-home", preferNodes(virtual, real))
	for _, claim := range []string{"from-remote", "from-home"} {
		p.home.WaitEvent(claim, "ProvisioningFailed", "of-"+strings.TrimPrefix(claim, "from-"))
		p.home.WaitEvent(claim, "NodeSelected")
	}
	p.waitRestored(want)
	if at := p.home.GetClaim("from-remote").Annotations[sourceAt]; at != p.cluster {
		t.Errorf("the annotation for the cluster of the source is %q", at)
	}
}

// preferNodes allows all of these nodes to a pod, and prefers the first ones.
func preferNodes(first, others []string) func(*corev1.Pod) {
	in := func(nodes ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes},
		}}
	}
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{in(first...), in(others...)},
			},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: in(first...)}},
		}}
	}
}

// A RemoteCluster with a snapshot is not deleted, like one with volumes.
func TestRemoteClusterWithASnapshotIsNotDeleted(t *testing.T) {
	p := newDedicatedPair(t, spec{})
	p.startPod("writer", "source", "liqo-reference")
	p.remote.WaitReady("writer")
	p.remote.Exec("writer", fillScript)
	p.home.Snapshot("backup", "source", snapshotClass)
	snapshot := p.home.WantRemoteSnapshot(p.remote, "backup")
	p.home.DeletePod("writer")
	volume := p.waitVolume("source")
	p.deleteClaim("source")
	p.waitVolumeDeleted(volume)
	p.waitStatus("the status counts the snapshot", func(s status) bool { return s.Volumes == 0 && s.Snapshots == 1 })

	p.deleteRemoteCluster()
	p.waitDeletionBlocked(p.home.Name + "/backup")
	p.home.DeleteSnapshot("backup")
	p.home.WaitSnapshotDeleted(snapshot, p.remote.Client, p.remote.Name)
	p.home.WaitDeleted("remotecluster", p.cluster)
}

func TestSnapshotsNeedRemoteRights(t *testing.T) {
	p, _ := newRestrictedPair(t, "minimal")
	class := p.createVirtualClass("named", map[string]string{"realStorageClass": "reference"})
	p.startPod("user", "data", class)
	p.home.CreateSnapshot("backup", "data", snapshotClass)
	p.home.WaitSnapshotError("backup", "volumesnapshots", "cluster "+p.cluster)
}

const (
	// fillScript writes random data, and prints its checksum.
	fillScript = "dd if=/dev/urandom of=/data/random bs=1M count=4 2>/dev/null && sync && " + sumScript
	sumScript  = "sha256sum < /data/random"
)

// Unoffloading deletes the remote namespace. It has only the twin of a snapshot, whose volume is deleted.
func TestNamespaceOfASnapshotTwinIsDeleted(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	p.startPod("writer", "source", "liqo-reference")
	p.remote.WaitReady("writer")
	want := p.remote.Exec("writer", fillScript)
	p.home.Snapshot("backup", "source", snapshotClass)
	p.home.DeletePod("writer")
	volume := p.waitVolume("source")
	p.deleteClaim("source")
	p.waitVolumeDeleted(volume)
	found := p.home.WantRemoteSnapshot(p.remote, "backup")
	content := found.Real.Metadata.Name
	if policy := found.Real.Spec.DeletionPolicy; policy != "Retain" {
		t.Fatalf("the deletion policy of the real content is %s", policy)
	}

	p.deleteNamespace()
	p.waitNamespaceDeleted()
	left, err := user.SnapshotContent(t.Context(), p.remote.Client, content)
	if err != nil {
		t.Fatal(err)
	}
	if left == nil || left.Status.Handle != found.Real.Status.Handle {
		user.ViolatedNow(t, "the data of the snapshot was deleted: %+v", left)
	}
	p.home.WaitEvent("backup", "SnapshotTwinDeleted", content)
	if got := left.Metadata.Annotations["storage.liqo.io/data-of"]; got != found.Content.Status.Handle {
		t.Errorf("the retained content is of the snapshot %q, want %s", got, found.Content.Status.Handle)
	}

	// See docs/snapshots.md.
	p.recreateNamespace()
	rights.grant()
	key := found.Object.Metadata.UID
	p.remote.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata:
  name: snapshot-%[1]s-again
  annotations: {storage.liqo.io/deletion-policy-before: %[6]s}
spec:
  driver: %[2]s
  deletionPolicy: Retain
  source: {snapshotHandle: %[3]q}
  volumeSnapshotRef: {namespace: %[4]s, name: snapshot-%[1]s}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: snapshot-%[1]s
  labels:
    app.kubernetes.io/managed-by: storage.liqo.io
    storage.liqo.io/home-cluster: %[5]s
    storage.liqo.io/snapshot: %[1]s
spec:
  source: {volumeSnapshotContentName: snapshot-%[1]s-again}
`, key, left.Spec.Driver, left.Status.Handle, p.remote.Name, found.Twin.Metadata.Labels["storage.liqo.io/home-cluster"],
		left.Metadata.Annotations["storage.liqo.io/deletion-policy-before"]))
	if _, err := p.remote.Kubectl("delete", "volumesnapshotcontent", content); err != nil {
		t.Fatal(err)
	}
	p.home.Eventually("the snapshot has a twin again, and its content is retained", func(ctx context.Context) (string, error) {
		now, err := p.home.GetRemoteSnapshot(ctx, p.remote, "backup")
		if err != nil || now.Content == nil || now.Real == nil {
			return "it has no twin", err
		}
		if trouble := now.Content.Metadata.Annotations["storage.liqo.io/twin-trouble"]; trouble != "" {
			return trouble, nil
		}
		if now.Real.Spec.DeletionPolicy != "Retain" {
			return "its content is not retained", nil
		}
		found = now
		return "", nil
	})
	p.home.Claim("restored", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	p.home.Pod("reader", "restored", p.onVirtualNode)
	p.home.WaitReady("reader")
	p.remote.WaitReady("reader")
	if got := p.remote.Exec("reader", sumScript); got != want {
		user.Violated(t, "the checksum is %s, want %s", got, want)
	}
	p.home.DeleteSnapshot("backup")
	p.home.WaitSnapshotDeleted(found, p.remote.Client, p.remote.Name)
}

// With the level minimal snapshots are deleted with their namespace, and the RemoteCluster reports this limit.
func TestLimitOfSnapshotsIsReported(t *testing.T) {
	p, _ := newRestrictedPair(t, "minimal")
	p.waitStatus("the limits have one about snapshots", func(s status) bool {
		return strings.Contains(strings.Join(s.Limits, " "), "VolumeSnapshotContents cannot be read and changed")
	})
}
