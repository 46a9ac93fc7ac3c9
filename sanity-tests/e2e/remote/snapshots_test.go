package remote

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// snapshotClass is the lab's class of snapshots that means the default one of the real
// driver, in whatever cluster that is.
const snapshotClass = "liqo"

func TestSnapshotInAnotherClusterIsRestoredThere(t *testing.T) {
	p := offloaded(t)
	p.home.Claim("source", "liqo-reference", "64Mi")
	p.home.Pod("writer", "source", p.there)
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
		p.home.Pod(pod, pod, p.there)
		p.home.WaitReady(pod)
		p.remote.WaitReady(pod)
		if got := p.checksum(pod); got != want {
			t.Errorf("%s has the bytes %s, want %s", pod, got, want)
		}
	}
	p.home.DeleteSnapshot("backup")
	p.home.WantSnapshotGone(snapshot, p.remote.Client, p.remote.Name)
}

// The scheduler does not know where a snapshot is: a pod that it sends elsewhere is told.
func TestRestoreInTheWrongClusterSaysWhereToGo(t *testing.T) {
	p := offloaded(t)
	p.home.Claim("there", "liqo-reference", "64Mi")
	p.home.Pod("there", "there", p.there)
	p.home.Claim("here", "liqo-reference", "64Mi")
	p.home.Pod("here", "here", user.OnNode(p.home.Cluster.Nodes()[0].Name))
	p.home.WaitReady("there")
	p.remote.WaitReady("there")
	p.home.WaitReady("here")
	want := map[string]string{"there": p.scramble("there"), "here": fillHere(p, "here")}
	p.home.Snapshot("of-there", "there", snapshotClass)
	p.home.Snapshot("of-here", "here", snapshotClass)

	p.home.Claim("from-there", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-there"))
	p.home.Pod("from-there", "from-there", user.OnNode(p.home.Cluster.Nodes()[0].Name))
	p.home.WaitEvent("from-there", "of-there", "cluster "+p.cluster, p.node)
	p.home.Claim("from-here", "liqo-reference", "64Mi", user.From("VolumeSnapshot", "of-here"))
	p.home.Pod("from-here", "from-here", p.there)
	p.home.WaitEvent("from-here", "of-here", "node of this cluster")
	for _, claim := range []string{"from-there", "from-here"} {
		if phase := claimIn(p.home, t, claim).Status.Phase; phase != corev1.ClaimPending {
			t.Errorf("the claim %s is %s", claim, phase)
		}
		p.home.DeletePod(claim)
	}

	p.home.Pod("from-there", "from-there", p.there)
	p.home.Pod("from-here", "from-here", user.OnNode(p.home.Cluster.Nodes()[0].Name))
	p.home.WaitReady("from-there")
	p.remote.WaitReady("from-there")
	p.home.WaitReady("from-here")
	if got := p.checksum("from-there"); got != want["there"] {
		t.Errorf("there the bytes are %s, want %s", got, want["there"])
	}
	if got := p.home.Exec("from-here", sum); got != want["here"] {
		t.Errorf("here the bytes are %s, want %s", got, want["here"])
	}
}

func TestSnapshotsNeedRightsThere(t *testing.T) {
	p, _ := restricted(t, "minimal")
	class := p.virtualClass("named", map[string]string{"realStorageClass": "reference"})
	p.home.Claim("data", class, "64Mi")
	p.home.Pod("user", "data", p.there)
	p.home.WaitReady("user")
	p.home.WriteSnapshot("backup", "data", snapshotClass)
	p.home.WaitSnapshotError("backup", "volumesnapshots", "cluster "+p.cluster)
}

const (
	fill = "dd if=/dev/urandom of=/data/random bs=1M count=4 2>/dev/null && sync && " + sum
	sum  = "sha256sum < /data/random"
)

// scramble fills the volume of a pod that runs in the other cluster, and returns the checksum.
func (p *pair) scramble(pod string) string {
	p.t.Helper()
	return p.remote.Exec(pod, fill)
}

func (p *pair) checksum(pod string) string {
	p.t.Helper()
	return p.remote.Exec(pod, sum)
}

func fillHere(p *pair, pod string) string {
	p.t.Helper()
	return p.home.Exec(pod, fill)
}
