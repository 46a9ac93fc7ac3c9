package driver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// A volume of a class whose volumes cannot leave their node moves to another one, and its pod with it;
// and back.
func TestMoveToAnotherNode(t *testing.T) {
	t.Parallel()
	nodes := user.Cluster(t, "home").Nodes()
	from, to := nodes[0].Name, nodes[1].Name
	for _, class := range []string{"liqo-reference-local", "liqo-local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			pod := moved(n, class, from)
			n.Move("elsewhere", "data", "target: {nodeName: "+to+"}, quiesce: {mode: Evict}")
			n.WaitMove("elsewhere", "Retaining")
			n.WaitRunningOn(pod, to)
			wantMoved(t, n, pod)
			wantUndone(t, n, "elsewhere", pod)
			n.WaitRunningOn(pod, from)
		})
	}
}

// A volume gets another real class, and stays in its cluster; and gets its old class back, which nobody
// may name but that new claims get.
func TestMoveToAnotherClass(t *testing.T) {
	n := homeAlone(t)
	allow(t, n, "reference-attach")
	t.Cleanup(func() { allow(t, n) })
	nodes := user.Cluster(t, "home").Nodes()
	pod := moved(n, "liqo-reference", nodes[0].Name)
	n.Move("other", "data", "target: {nodeName: "+nodes[1].Name+", storageClassName: reference-attach}, quiesce: {mode: Evict}")
	n.WaitMove("other", "Retaining")
	n.WaitReady(pod)
	wantMoved(t, n, pod)
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference-attach" {
		t.Errorf("the twin is of class %s", got)
	}
	wantUndone(t, n, "other", pod)
	if got := *n.WaitVolume("data").Twin.Spec.StorageClassName; got != "reference" {
		t.Errorf("back again, the twin is of class %s", got)
	}
}

// A target that gets full stops a move before anybody is sent away. It says so, and goes on when there
// is less to copy.
func TestMoveToATargetThatGetsFull(t *testing.T) {
	n := homeAlone(t)
	allow(t, n, "reference-ext4")
	t.Cleanup(func() { allow(t, n) })
	node := user.Cluster(t, "home").Nodes()[0].Name
	// Nothing limits a volume of this class.
	n.Claim("data", "liqo-reference", "64Mi")
	pod := n.StatefulSet("user", "data", user.OnNode(node))
	before := n.WaitReady(pod)
	n.Exec(pod, "cd /data && echo kept > file && head -c 90000000 /dev/urandom > much && sync")
	n.Move("smaller", "data", "target: {nodeName: "+node+", storageClassName: reference-ext4}, quiesce: {mode: Evict}")
	n.Eventually("the move says that the target is full", func(context.Context) (string, error) {
		told, err := n.Kubectl("get", "volumemove", "smaller", "-o", "jsonpath={.status.phase} {.status.waitingFor}{.status.preflight}")
		if strings.Contains(told, "No space left") {
			return "", nil
		}
		return "it says " + told, err
	})
	if now := n.WaitReady(pod); now.UID != before.UID {
		t.Error("the pod was sent away before everything was copied")
	}
	n.Exec(pod, "rm /data/much && sync")
	n.WaitMove("smaller", "Retaining")
	n.WaitReady(pod)
	if got := n.Exec(pod, "cat /data/file && test ! -e /data/much"); got != "kept" {
		user.Violated(t, "there is %q", got)
	}
}

// A claim that is given a larger request while its volume is copied grows when the move has ended.
func TestClaimThatIsMovedGrowsAfterwards(t *testing.T) {
	n := homeAlone(t)
	allow(t, n, "reference-xfs")
	t.Cleanup(func() { allow(t, n) })
	node := user.Cluster(t, "home").Nodes()[0].Name
	n.Claim("data", "liqo-reference-ext4", "320Mi")
	pod := n.StatefulSet("user", "data", user.OnNode(node))
	n.WaitReady(pod)
	n.Exec(pod, "echo kept > /data/file && sync")
	small := n.FileSystemKiB(pod)
	n.Move("elsewhere", "data", "target: {nodeName: "+node+", storageClassName: reference-xfs}, cutover: {mode: Manual}, quiesce: {mode: Evict}")
	n.WaitMove("elsewhere", "Ready")
	n.Resize("data", "480Mi")
	n.WaitEvent("data", "is being moved")
	n.PatchMove("elsewhere", `{"cutover":{"requested":true}}`)
	n.WaitMove("elsewhere", "Retaining")
	n.WaitReady(pod)
	n.WaitExpanded("data", "480Mi")
	if got := n.Exec(pod, "cat /data/file"); got != "kept" {
		user.Violated(t, "there is %q", got)
	}
	if large := n.FileSystemKiB(pod); large < small+100*1024 {
		t.Errorf("the filesystem has %d KiB, it had %d KiB", large, small)
	}
}

// A device moves to another node. Nothing is copied beside its pod, and nothing is lost that it had
// written.
func TestMoveOfADeviceToAnotherNode(t *testing.T) {
	n := home(t)
	moveDevice(t, n, "liqo-reference-local", "")
}

// A device that is attached gets another real class.
func TestMoveOfADeviceToAnotherClass(t *testing.T) {
	n := homeAlone(t)
	allow(t, n, "reference-local")
	t.Cleanup(func() { allow(t, n) })
	moveDevice(t, n, "liqo-reference-attach", ", storageClassName: reference-local")
}

// moveDevice moves a device from the first node to the second.
func moveDevice(t *testing.T, n *user.Namespace, class, more string) {
	t.Helper()
	nodes := n.Cluster.Nodes()
	n.Claim("data", class, "16Mi", user.Block)
	sum := n.FillDevice("data", nodes[0].Name)
	pod := n.StatefulSet("user", "data", user.CountOnDevice)
	n.WaitReady(pod)
	before := n.DeviceCount(pod)
	n.Move("elsewhere", "data", "target: {nodeName: "+nodes[1].Name+more+"}, quiesce: {mode: Evict}")
	n.WaitMove("elsewhere", "Retaining")
	n.WaitRunningOn(pod, nodes[1].Name)
	n.WaitReady(pod)
	if got := n.DeviceSum(pod); got != sum {
		user.Violated(t, "the device has the checksum %s, and had %s", got, sum)
	}
	if got := n.DeviceCount(pod); got < before {
		user.Violated(t, "the pod had counted to %d, and is at %d", before, got)
	}
	cold, err := n.Kubectl("get", "volumemove", "elsewhere", "-o", "jsonpath={.status.claims[0].cold}")
	if err != nil || !strings.Contains(cold, "Block") {
		t.Errorf("why nothing is copied beside its pod is said as %q, %v", cold, err)
	}
}

// moved starts a pod whose volume has something in it that is not moved by copying files alone.
func moved(n *user.Namespace, class, node string) (pod string) {
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

// wantUndone moves a volume back as a user would. It has all that it had, and what was written since then; its
// claim is the same.
func wantUndone(t *testing.T, n *user.Namespace, move, pod string) {
	t.Helper()
	before := n.WaitVolume("data").Claim.UID
	n.Exec(pod, "echo written there >> /data/log && sync")
	if out, exit := look(t, n, "move", "undo", move, "--namespace", n.Name); exit != 0 {
		t.Fatalf("undo ends with %d:\n%s", exit, out)
	}
	wantMoved(t, n, pod)
	if got := n.Exec(pod, "grep -c 'written there' /data/log"); got != "1" {
		user.Violated(t, "what was written after the move is there %s times", got)
	}
	if now := n.WaitVolume("data").Claim.UID; now != before {
		t.Errorf("the claim was %s, and is %s", before, now)
	}
}

// wantMoved compares what is in the volume, and deletes everything.
func wantMoved(t *testing.T, n *user.Namespace, pod string) {
	t.Helper()
	n.WaitReady(pod)
	got := n.Exec(pod, "cd /data && cat file third && stat -c '%h %a %Y' file && test -p pipe && test file -ef second && ls")
	if want := "kept\nkept\n2 2750 981173106\nfile\nlog\npipe\nsecond\nthird"; got != want {
		user.Violated(t, "there is\n%s\nand not\n%s", got, want)
	}
}
