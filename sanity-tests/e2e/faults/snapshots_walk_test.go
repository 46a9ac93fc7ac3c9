package faults

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// The controller crashes around the writes of a snapshot and of volumes restored from it: each has the
// data, and nothing is leaked.
func (w *walk) snapshotted(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference-ext4", "64Mi")
	n.Pod("writer", "data")
	n.WaitReady("writer")
	write(n, "writer", n.Name)
	controller := w.crashController(t, n, bothSides("snapshot-create", "snapshot-note", "snapshot-retain", "allow-mode-change", "snapshot-policy-back", "snapshot-delete"))
	n.Snapshot("backup", "data", "liqo")
	found := n.WantSnapshot("backup")
	n.Claim("restored", "liqo-reference-ext4", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.Pod("reader", "restored")
	n.WaitReady("reader")
	read(t, n, "reader", n.Name)

	content := found.Content.Metadata.Name
	if _, err := n.Kubectl("annotate", "volumesnapshotcontent", content, "snapshot.storage.kubernetes.io/allow-volume-mode-change=true"); err != nil {
		t.Fatal(err)
	}
	n.Claim("raw", "liqo-reference-ext4", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"), user.Block)
	n.Pod("raw", "raw", user.WithDevice)
	// The lab's driver cannot create a raw volume from a file system; the event shows that it was called.
	n.WaitEvent("raw", "a raw volume cannot be made from a ext4 source")
	discard(n, "raw", "raw")
	n.DeleteSnapshot("backup")
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	w.waitCrashed(t, n, controller)
	discard(n, "writer", "data")
	discard(n, "reader", "restored")
}

func discard(n *user.Namespace, pod, claim string) {
	n.DeletePod(pod)
	deleteClaim(n, claim)
}

func (w *walk) snapshotRetained(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	controller := w.crashController(t, n, bothSides("snapshot-retain", "snapshot-policy-back"))
	n.Snapshot("backup", "data", "liqo-retain")
	found := n.WantSnapshot("backup")
	n.DeleteSnapshot("backup")
	n.Eventually("the snapshot is deleted", func(ctx context.Context) (string, error) {
		now, err := n.GetSnapshot(ctx, "backup")
		if err != nil || now.Object != nil {
			return "it still exists", err
		}
		return "", nil
	})
	content := found.Content.Metadata.Name
	for _, args := range [][]string{
		{"patch", "volumesnapshotcontent", content, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`},
		{"delete", "volumesnapshotcontent", content, "--wait=false"},
	} {
		if _, err := n.Kubectl(args...); err != nil {
			t.Fatal(err)
		}
	}
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	w.waitCrashed(t, n, controller)
	discard(n, "user", "data")
}

func (w *walk) snapshotAbandoned(t *testing.T, n *user.Namespace) {
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	twin := n.WaitVolume("data").Twin
	removeFault := n.AddFault(storage.Reference, storage.Fault{
		RPC: "CreateSnapshot", Match: chart.StorageNamespace + "/" + twin.Name, When: "after", Code: "Unavailable", Message: "not yet",
	})
	controller := w.crashController(t, n, bothSides("snapshot-give-up"))
	n.CreateSnapshot("backup", "data", "liqo")
	var found user.Snapshot
	n.Eventually("the snapshot has a twin with a content", func(ctx context.Context) (missing string, err error) {
		if found, err = n.GetSnapshot(ctx, "backup"); found.Real == nil {
			missing = "it does not"
		}
		return missing, err
	})
	n.DeleteSnapshot("backup")
	w.waitCrashed(t, n, controller)
	removeFault()
	n.WaitSnapshotDeleted(found, n.Client, chart.StorageNamespace)
	discard(n, "user", "data")
}

// The scheduler prefers the remote cluster for a pod whose snapshot is at home.
func (w *walk) restoreRescheduled(t *testing.T, b *remoteSetup) {
	b.declare(t)
	b.waitReady()
	b.home.Claim("data", "liqo-reference", "64Mi")
	b.home.Pod("writer", "data", user.OnNode(w.cluster.Nodes()[0].Name))
	b.home.WaitReady("writer")
	write(b.home, "writer", b.home.Name)
	b.home.Snapshot("backup", "data", "liqo")
	controller := w.crashController(t, b.home, bothSides("note-source", "select-source-node"))
	b.home.Claim("copy", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	b.home.Pod("reader", "copy", func(pod *corev1.Pod) {
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{b.id}},
		}}
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: term}},
		}}
	})
	w.waitCrashed(t, b.home, controller)
	b.home.WaitReady("reader")
	read(t, b.home, "reader", b.home.Name)
	b.home.DeleteSnapshot("backup")
	discard(b.home, "reader", "copy")
	discard(b.home, "writer", "data")
}
