package driver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// A node-local volume moves to another node with its pod, and back.
func TestMoveToAnotherNode(t *testing.T) {
	t.Parallel()
	nodes := user.Cluster(t, "home").Nodes()
	from, to := nodes[0].Name, nodes[1].Name
	for _, class := range []string{"liqo-reference-local", "liqo-local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			pod := startPodWithFiles(n, class, from)
			n.Move("move", "data", "target: {nodeName: "+to+"}, quiesce: {mode: Evict}")
			n.WaitMove("move", "Retaining")
			n.WaitRunningOn(pod, to)
			wantFiles(t, n, pod)
			undoMove(t, n, "move", pod)
			n.WaitRunningOn(pod, from)
		})
	}
}

// A volume moves to another real class in its cluster. The undo moves it to its old class, which new claims get but no
// move may name.
func moveToAnotherClass(t *testing.T, n *user.Namespace) {
	nodes := user.Cluster(t, "home").Nodes()
	pod := startPodWithFiles(n, "liqo-reference", nodes[0].Name)
	n.Move("move", "data", "target: {nodeName: "+nodes[1].Name+", storageClassName: reference-attach}, quiesce: {mode: Evict}")
	n.WaitMove("move", "Retaining")
	n.WaitReady(pod)
	wantFiles(t, n, pod)
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference-attach" {
		t.Errorf("the class of the twin is %s", got)
	}
	undoMove(t, n, "move", pod)
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference" {
		t.Errorf("after the undo the class of the twin is %s", got)
	}
}

// A full target stops a move before a pod is evicted. The move reports it, and continues when there is less to copy.
func moveToATargetThatGetsFull(t *testing.T, n *user.Namespace) {
	node := user.Cluster(t, "home").Nodes()[0].Name
	// The size of a volume of this class is not limited.
	n.Claim("data", "liqo-reference", "64Mi")
	pod := n.StatefulSet("user", "data", user.OnNode(node))
	before := n.WaitReady(pod)
	n.Exec(pod, "cd /data && echo kept > file && head -c 90000000 /dev/urandom > large && sync")
	n.Move("move", "data", "target: {nodeName: "+node+", storageClassName: reference-ext4}, quiesce: {mode: Evict}")
	n.Eventually("the move reports that the target is full", func(ctx context.Context) (string, error) {
		_, status, err := n.MoveStatus(ctx, "move")
		if strings.Contains(status, "No space left") {
			return "", nil
		}
		return "its status is " + status, err
	})
	if now := n.WaitReady(pod); now.UID != before.UID {
		t.Error("the pod was evicted before everything was copied")
	}
	n.Exec(pod, "rm /data/large && sync")
	n.WaitMove("move", "Retaining")
	n.WaitReady(pod)
	if got := n.Exec(pod, "cat /data/file && test ! -e /data/large"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
}

// A claim that is resized in any phase of its move is expanded, at the latest when it has moved.
func moveOfAClaimThatGrows(t *testing.T, n *user.Namespace) {
	for _, phase := range []string{"Ready", "Draining", "Retaining"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			n := user.NewNamespace(t, n.Cluster)
			pod := startGrowingPod(n, "liqo-reference-ext4")
			small := n.FileSystemKiB(pod)
			n.Move("move", "data", "target: {nodeName: "+firstNode(n)+", storageClassName: reference-xfs}, cutover: {mode: Manual}, quiesce: {mode: Evict}")
			n.WaitMove("move", "Ready")
			if phase != "Ready" {
				n.PatchMove("move", `{"cutover":{"requested":true}}`)
				n.WaitMove("move", phase)
			}
			n.Resize("data", "480Mi")
			if phase != "Retaining" {
				n.WaitEvent("data", "is being moved")
			}
			if phase == "Ready" {
				n.PatchMove("move", `{"cutover":{"requested":true}}`)
			}
			n.WaitMove("move", "Retaining")
			n.WaitReady(pod)
			n.WaitExpanded("data", "480Mi")
			wantKept(t, n, pod)
			if large := n.FileSystemKiB(pod); large < small+100*1024 {
				t.Errorf("the filesystem has %d KiB, and had %d KiB", large, small)
			}
		})
	}
}

// The class of the target allows no expansion: the move fails with that reason and stops no pod, and the volume is expanded
// where it is.
func moveOfAClaimThatOutgrowsItsTarget(t *testing.T, n *user.Namespace) {
	fixed := realClass(fixedClass, storage.Reference, nil)
	fixed.AllowVolumeExpansion = new(bool)
	n.Class(fixed)
	pod := startGrowingPod(n, "liqo-reference-xfs")
	before := n.WaitReady(pod)
	n.Move("move", "data", "target: {nodeName: "+firstNode(n)+", storageClassName: "+fixedClass+"}, cutover: {mode: Manual}, quiesce: {mode: Evict}")
	n.WaitMove("move", "Ready")
	n.Resize("data", "480Mi")
	n.WaitEvent("data", "does not allow expansion")
	n.WaitMove("move", "Failed")
	if now := n.WaitReady(pod); now.UID != before.UID {
		t.Error("the pod was evicted for a target that is too small")
	}
	n.WaitExpanded("data", "480Mi")
	wantKept(t, n, pod)
}

// fixedClass is a real class that allows no expansion.
const fixedClass = "e2e-fixed"

func firstNode(n *user.Namespace) string { return n.Cluster.Nodes()[0].Name }

// startGrowingPod creates a claim of a class that allows expansion (that of reference-xfs also while it is mounted), and a
// StatefulSet with a file in it, whose pod takes a while to end.
func startGrowingPod(n *user.Namespace, class string) (pod string) {
	n.Claim("data", class, "320Mi")
	pod = n.StatefulSet("user", "data", user.OnNode(firstNode(n)), func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(20))
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "trap : TERM; while :; do sleep 1; done"}
	})
	n.WaitReady(pod)
	n.Exec(pod, "echo kept > /data/file && sync")
	return pod
}

func wantKept(t *testing.T, n *user.Namespace, pod string) {
	t.Helper()
	if got := n.Exec(pod, "cat /data/file"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
}

// A block volume moves to another node. It is copied only while no pod runs, and has all that was written.
func TestMoveOfADeviceToAnotherNode(t *testing.T) {
	n := home(t)
	moveDevice(t, n, "liqo-reference-local", "")
}

// An attached block volume moves to another real class.
func moveOfADeviceToAnotherClass(t *testing.T, n *user.Namespace) {
	moveDevice(t, n, "liqo-reference-attach", ", storageClassName: reference-local")
}

// moveDevice moves a block volume from the first node to the second.
func moveDevice(t *testing.T, n *user.Namespace, class, moreOfTarget string) {
	t.Helper()
	nodes := n.Cluster.Nodes()
	n.Claim("data", class, "16Mi", user.Block)
	sum := n.FillDevice("data", nodes[0].Name)
	pod := n.StatefulSet("user", "data", user.CountOnDevice)
	n.WaitReady(pod)
	before := n.DeviceCount(pod)
	n.Move("move", "data", "target: {nodeName: "+nodes[1].Name+moreOfTarget+"}, quiesce: {mode: Evict}")
	n.WaitMove("move", "Retaining")
	n.WaitRunningOn(pod, nodes[1].Name)
	n.WaitReady(pod)
	if got := n.DeviceSum(pod); got != sum {
		user.Violated(t, "the checksum of the device is %s, and was %s", got, sum)
	}
	if got := n.DeviceCount(pod); got < before {
		user.Violated(t, "the pod had counted to %d, and is at %d", before, got)
	}
	cold, err := n.Kubectl("get", "volumemove", "move", "-o", "jsonpath={.status.claims[0].cold}")
	if err != nil || !strings.Contains(cold, "Block") {
		t.Errorf("status.claims[0].cold is %q, %v", cold, err)
	}
}

// startPodWithFiles creates a claim with links, a pipe, permissions and times, and a StatefulSet that writes to it.
func startPodWithFiles(n *user.Namespace, class, node string) (pod string) {
	n.Claim("data", class, "64Mi")
	n.Pod("writer", "data", user.OnNode(node))
	n.WaitReady("writer")
	n.Exec("writer", "cd /data && echo kept > file && ln file second && ln -s file third && chmod 2750 file && mkfifo pipe && "+
		"touch -d '2001-02-03 04:05:06' file && sync")
	n.DeletePod("writer")
	pod = n.StatefulSet("user", "data", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "while true; do date >> /data/log; sync; sleep 0.1; done"}
	})
	n.WaitReady(pod)
	return pod
}

// undoMove undoes a move. The claim is the same, and its volume has all that was written before and since the move.
func undoMove(t *testing.T, n *user.Namespace, move, pod string) {
	t.Helper()
	before := n.WaitVolume("data").Claim.UID
	n.Exec(pod, "echo after the move >> /data/log && sync")
	if out, exit := liqoCSI(t, n, "move", "undo", move, "--namespace", n.Name); exit != 0 {
		t.Fatalf("the exit code of undo is %d:\n%s", exit, out)
	}
	wantFiles(t, n, pod)
	if got := n.Exec(pod, "grep -c 'after the move' /data/log"); got != "1" {
		user.Violated(t, "the file has the line written after the move %s times", got)
	}
	if now := n.WaitVolume("data").Claim.UID; now != before {
		t.Errorf("the UID of the claim was %s, and is %s", before, now)
	}
}

// wantFiles compares the files in the volume with those of startPodWithFiles.
func wantFiles(t *testing.T, n *user.Namespace, pod string) {
	t.Helper()
	n.WaitReady(pod)
	got := n.Exec(pod, "cd /data && cat file third && stat -c '%h %a %Y' file && test -p pipe && test file -ef second && ls")
	if want := "kept\nkept\n2 2750 981173106\nfile\nlog\npipe\nsecond\nthird"; got != want {
		user.Violated(t, "the files are\n%s\nwant\n%s", got, want)
	}
}
