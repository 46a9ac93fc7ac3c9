package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// snapshotClass is the lab's class of snapshots that means the default one of the real
// driver, in whatever cluster that is.
const snapshotClass = "liqo"

func TestSnapshotInAnotherClusterIsRestoredThere(t *testing.T) {
	p := newPair(t)
	p.home.Claim("source", "liqo-reference", "64Mi")
	p.home.Pod("writer", "source", p.onVirtualNode)
	p.home.WaitReady("writer")
	p.remote.WaitReady("writer")
	old := p.scramble("writer")
	p.home.Snapshot("backup", "source", snapshotClass)
	current := p.scramble("writer")
	snapshot := p.home.FollowSnapshotTo(p.remote, "backup")
	want := fmt.Sprintf("s1:%s:%s:%s", p.cluster, p.remote.Name, snapshot.Object.Metadata.UID)
	if got := snapshot.Content.Status.Handle; got != want {
		t.Errorf("the snapshot's id is %s, want %s", got, want)
	}

	p.home.Claim("restored", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "backup"))
	p.home.Claim("cloned", "liqo-reference", "64Mi", user.From("PersistentVolumeClaim", "source"))
	for pod, want := range map[string]string{"restored": old, "cloned": current} {
		p.home.Pod(pod, pod, p.onVirtualNode)
		p.home.WaitReady(pod)
		p.remote.WaitReady(pod)
		if got := p.checksum(pod); got != want {
			user.Violated(t, "%s has the bytes %s, want %s", pod, got, want)
		}
	}
	p.home.DeleteSnapshot("backup")
	p.home.WantSnapshotGone(snapshot, p.remote.Client, p.remote.Name)
}

// A pod that may not run where the source of its claim is: nobody can help but the user.
func TestRestoreForAPodThatMayNotGoThereSaysWhereToGo(t *testing.T) {
	p := newPair(t)
	here := user.OnNode(p.home.Cluster.Nodes()[0].Name)
	p.home.Claim("there", "liqo-reference", "64Mi")
	p.home.Pod("there", "there", p.onVirtualNode)
	p.home.Claim("here", "liqo-reference", "64Mi")
	p.home.Pod("here", "here", here)
	p.home.WaitReady("there")
	p.remote.WaitReady("there")
	p.home.WaitReady("here")
	want := map[string]string{"there": p.scramble("there"), "here": fillHere(p, "here")}
	p.home.Snapshot("of-there", "there", snapshotClass)
	p.home.Snapshot("of-here", "here", snapshotClass)

	// The pods first: where only one node can have a copy it is selected at once.
	p.home.Pod("from-there", "from-there", here)
	p.home.Claim("from-there", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-there"))
	p.home.WaitEvent("from-there", "SourceElsewhere", "of-there", "cluster "+p.cluster, p.node, "pod from-there")
	p.home.Pod("from-here", "from-here", p.onVirtualNode)
	p.home.Claim("from-here", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-here"))
	p.home.WaitEvent("from-here", "ProvisioningFailed", "of-here", "in this cluster")
	p.home.WaitEvent("from-here", "SourceElsewhere", "of-here", "in this cluster", "pod from-here")
	for _, claim := range []string{"from-there", "from-here"} {
		if phase := p.home.GetClaim(claim).Status.Phase; phase != corev1.ClaimPending {
			t.Errorf("the claim %s is %s", claim, phase)
		}
		p.home.DeletePod(claim)
	}

	p.home.Pod("from-there", "from-there", p.onVirtualNode)
	p.home.Pod("from-here", "from-here", here)
	p.home.WaitReady("from-there")
	p.remote.WaitReady("from-there")
	p.home.WaitReady("from-here")
	if got := p.checksum("from-there"); got != want["there"] {
		user.Violated(t, "there the bytes are %s, want %s", got, want["there"])
	}
	if got := p.home.Exec("from-here", sumScript); got != want["here"] {
		user.Violated(t, "here the bytes are %s, want %s", got, want["here"])
	}
}

// Where several nodes can have a copy, the scheduler chooses first, and cannot know which
// those are. The pods here prefer the wrong ones: they are sent back, both ways.
func TestRestoreWhoseFirstNodeWasWrongIsSentToItsSource(t *testing.T) {
	p := newDedicatedPair(t, spec{})
	second := p.node + "-b"
	startFabric(t, virtualNode(second, p.cluster))
	if err := waitMarked(t.Context(), p.home.Cluster, second, p.cluster); err != nil {
		t.Fatal(err)
	}
	p.home.Claim("there", "liqo-reference", "64Mi")
	p.home.Pod("there", "there", p.onVirtualNode)
	p.home.Claim("here", "liqo-reference", "64Mi")
	p.home.Pod("here", "here", user.OnNode(p.home.Cluster.Nodes()[0].Name))
	p.home.WaitReady("there")
	p.remote.WaitReady("there")
	p.home.WaitReady("here")
	want := map[string]string{"from-there": p.scramble("there"), "from-here": fillHere(p, "here")}
	p.home.Snapshot("of-there", "there", snapshotClass)
	p.home.Snapshot("of-here", "here", snapshotClass)

	real := make([]string, 0, 2)
	for _, node := range p.home.Cluster.Nodes() {
		real = append(real, node.Name)
	}
	standing := []string{p.node, second}
	p.home.Claim("from-there", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-there"))
	p.home.Claim("from-here", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-here"))
	p.home.Pod("from-there", "from-there", preferNodes(real, standing))
	p.home.Pod("from-here", "from-here", preferNodes(standing, real))
	for _, claim := range []string{"from-there", "from-here"} {
		p.home.WaitEvent(claim, "ProvisioningFailed", "of-"+strings.TrimPrefix(claim, "from-"))
		p.home.WaitEvent(claim, "NodeSelected")
	}
	p.home.WaitReady("from-there")
	p.remote.WaitReady("from-there")
	p.home.WaitReady("from-here")
	if got := p.checksum("from-there"); got != want["from-there"] {
		user.Violated(t, "there the bytes are %s, want %s", got, want["from-there"])
	}
	if got := p.home.Exec("from-here", sumScript); got != want["from-here"] {
		user.Violated(t, "here the bytes are %s, want %s", got, want["from-here"])
	}
	if at := p.home.GetClaim("from-there").Annotations[sourceAt]; at != p.cluster {
		t.Errorf("the miss is noted as %q", at)
	}
}

// preferNodes lets a pod run on all of these nodes, on the first ones if it can.
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

// A cluster where nothing but a snapshot is left is held as one with volumes.
func TestClusterWithASnapshotIsHeld(t *testing.T) {
	p := newDedicatedPair(t, spec{})
	p.home.Claim("source", "liqo-reference", "64Mi")
	p.home.Pod("writer", "source", p.onVirtualNode)
	p.home.WaitReady("writer")
	p.remote.WaitReady("writer")
	p.scramble("writer")
	p.home.Snapshot("backup", "source", snapshotClass)
	snapshot := p.home.FollowSnapshotTo(p.remote, "backup")
	p.home.DeletePod("writer")
	volume := p.waitVolume("source")
	p.deleteClaim("source")
	p.wantGone(volume)
	p.waitStatus("it says that a snapshot is there", func(s status) bool { return s.Volumes == 0 && s.Snapshots == 1 })

	all, err := remoteClusters(p.home.Cluster)
	if err == nil {
		err = all.Delete(t.Context(), p.cluster, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	p.waitStatus("it says what holds it", func(s status) bool {
		ready := meta.FindStatusCondition(s.Conditions, "Ready")
		return hasCondition(s, "Ready", metav1.ConditionFalse, "HoldsVolumes") && strings.Contains(ready.Message, p.home.Name+"/backup")
	})
	p.home.DeleteSnapshot("backup")
	p.home.WantSnapshotGone(snapshot, p.remote.Client, p.remote.Name)
	p.home.Eventually("the RemoteCluster goes", func(ctx context.Context) (string, error) {
		_, err := all.Get(ctx, p.cluster, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is still there", err
	})
}

func TestSnapshotsNeedRightsThere(t *testing.T) {
	p, _ := newRestrictedPair(t, "minimal")
	class := p.createVirtualClass("named", map[string]string{"realStorageClass": "reference"})
	p.home.Claim("data", class, "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.home.WriteSnapshot("backup", "data", snapshotClass)
	p.home.WaitSnapshotError("backup", "volumesnapshots", "cluster "+p.cluster)
}

const (
	fillScript = "dd if=/dev/urandom of=/data/random bs=1M count=4 2>/dev/null && sync && " + sumScript
	sumScript  = "sha256sum < /data/random"
)

// scramble fills the volume of a pod that runs in the other cluster, and returns the checksum.
func (p *pair) scramble(pod string) string {
	p.t.Helper()
	return p.remote.Exec(pod, fillScript)
}

func (p *pair) checksum(pod string) string {
	p.t.Helper()
	return p.remote.Exec(pod, sumScript)
}

func fillHere(p *pair, pod string) string {
	p.t.Helper()
	return p.home.Exec(pod, fillScript)
}

// Unoffloading deletes the namespace with all that is in it. Here that is nothing but the twin of
// a snapshot, whose data is all that is left of its volume.
func TestNamespaceOfASnapshotTwinIsDeleted(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	p.home.Claim("source", "liqo-reference", "64Mi")
	p.home.Pod("writer", "source", p.onVirtualNode)
	p.home.WaitReady("writer")
	p.remote.WaitReady("writer")
	want := p.scramble("writer")
	p.home.Snapshot("backup", "source", snapshotClass)
	p.home.DeletePod("writer")
	volume := p.waitVolume("source")
	p.deleteClaim("source")
	p.wantGone(volume)
	found := p.home.FollowSnapshotTo(p.remote, "backup")
	kept := found.Real.Metadata.Name
	if policy := found.Real.Spec.DeletionPolicy; policy != "Retain" {
		t.Fatalf("the real content is kept only as long as %s", policy)
	}

	namespaces := p.remote.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), p.remote.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.remote.Eventually("the namespace ends", func(ctx context.Context) (string, error) {
		found, err := namespaces.Get(ctx, p.remote.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprint(found.Status.Conditions), err
	})
	left, err := user.SnapshotContent(t.Context(), p.remote.Client, kept)
	if err != nil {
		t.Fatal(err)
	}
	if left == nil || left.Status.Handle != found.Real.Status.Handle {
		user.ViolatedNow(t, "the data of the snapshot is gone: %+v", left)
	}
	p.home.WaitEvent("backup", "SnapshotTwinDeleted", kept)
	if got := left.Metadata.Annotations["storage.liqo.io/data-of"]; got != found.Content.Status.Handle {
		t.Errorf("the content that keeps the data says it is of %q, want %s", got, found.Content.Status.Handle)
	}

	// As docs/snapshots.md says.
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.remote.Name}}
	if _, err := namespaces.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
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
	if _, err := p.remote.Kubectl("delete", "volumesnapshotcontent", kept); err != nil {
		t.Fatal(err)
	}
	p.home.Eventually("the snapshot is well again, and kept again", func(ctx context.Context) (string, error) {
		now, err := p.home.BehindSnapshotIn(ctx, p.remote, "backup")
		if err != nil || now.Content == nil || now.Real == nil {
			return "its twin is not there", err
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
	p.home.Claim("restored", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "backup"))
	p.home.Pod("reader", "restored", p.onVirtualNode)
	p.home.WaitReady("reader")
	p.remote.WaitReady("reader")
	if got := p.checksum("reader"); got != want {
		user.Violated(t, "the bytes are %s, want %s", got, want)
	}
	p.home.DeleteSnapshot("backup")
	p.home.WantSnapshotGone(found, p.remote.Client, p.remote.Name)
}

// With the least of rights nothing of a snapshot outlives its namespace, and the cluster says so.
func TestWhereSnapshotsAreNotKeptIsSaid(t *testing.T) {
	p, _ := newRestrictedPair(t, "minimal")
	p.waitStatus("it says that snapshots are not kept", func(s status) bool {
		return strings.Contains(strings.Join(s.Limits, " "), "VolumeSnapshotContents cannot be read and changed")
	})
}
