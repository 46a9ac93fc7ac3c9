package remote

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

var databaseMoves = flag.Int("moves", 2, "number of moves in TestDatabaseMovesThereAndBackWhileItWrites: there, and back")

// movedClass is the target of a move within the remote cluster.
const movedClass = "e2e-moved"

// countScript appends increasing numbers to a file, synced each time, and continues after a restart.
const countScript = `i=$(tail -n 1 ` + user.DataPath + `/log 2>/dev/null || echo 0)
while true; do i=$((i+1)); echo $i >> ` + user.DataPath + `/log; sync; done`

// A pod writes numbers while its volume moves to another cluster and back. The claim is not replaced, and no
// number is missing.
func TestMoveThereAndBackOfAVolumeInUse(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{homeNode}, []string{p.node}), count)
	p.home.WaitRunningOn(pod, homeNode)
	uid := p.claimUID("data")
	before := p.countNumbers(p.home, pod)

	p.move("data", "--target-node", p.node, "--evict")
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	moved := p.countNumbers(p.remote, pod)
	if moved < before {
		user.Violated(t, "%d numbers were written, and the target has %d", before, moved)
	}
	p.wantSameClaim(uid)

	p.undoMove()
	p.home.WaitRunningOn(pod, homeNode)
	if again := p.countNumbers(p.home, pod); again < moved {
		user.Violated(t, "%d numbers were written before the undo, and the source has %d", moved, again)
	}
	p.wantSameClaim(uid)
	// Both moves have a retained source.
	p.deleteMoves()
}

// While the last changes of a remote source are copied, and after the commit, no remote pod starts with the source
// twin. After a cancelled cut-over pods start again.
func TestNoRemotePodStartsWithTheSourceDuringCutOver(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("writer", "data", preferNodes([]string{p.node}, []string{homeNode}))
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	real := p.waitVolume("data").Real
	const cancelled, committed = "cancelled", "committed"
	// One node for both: the second target has the handle of the first one, which may still be attached to the
	// node.
	for _, name := range []string{cancelled, committed} {
		p.home.Move(name, "data", "target: {nodeName: "+homeNode+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}, "+
			"transport: {bandwidth: 1Mi}")
		p.home.WaitMove(name, "Ready")
		// Enough data that the last pass takes some time.
		p.remote.Exec(pod, "head -c 30000000 /dev/urandom > "+user.DataPath+"/"+name+" && sync")
		p.home.PatchMove(name, `{"cutover":{"requested":true}}`)
		p.home.WaitMove(name, "Finishing")
		p.remote.Pod("stranger", "data")
		p.remote.WaitEvent("stranger", "non-existent persistentvolume")
		if name == cancelled {
			p.home.PatchMove(name, `{"cancel":true}`)
			p.home.WaitMove(name, "Cancelled")
			p.remote.WaitReady("stranger")
			found := p.waitVolume("data").Real
			if found.UID != real.UID || found.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
				t.Errorf("the PersistentVolume %s has the policy %s, and had %s", found.Name,
					found.Spec.PersistentVolumeReclaimPolicy, real.Spec.PersistentVolumeReclaimPolicy)
			}
		} else {
			// It would write to the superseded twin.
			p.home.WaitMove(name, "Retaining")
			p.home.WaitReady(pod)
			stranger, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Get(t.Context(), "stranger", metav1.GetOptions{})
			if err != nil || stranger.Status.Phase != corev1.PodPending {
				t.Errorf("a pod with the superseded twin is %s: %v", stranger.Status.Phase, err)
			}
		}
		p.remote.DeletePod("stranger")
		if name == cancelled {
			p.home.WaitRunningOn(pod, p.node)
			p.remote.WaitReady(pod)
		}
	}
	p.home.WaitRunningOn(pod, homeNode)
	if got := p.home.Exec(pod, "cat "+user.DataPath+"/"+committed+" | wc -c"); got != "30000000" {
		user.Violated(t, "%s bytes of the last changes were copied", got)
	}
	p.deleteMoves()
}

// A cut-over that takes longer than maxDowntime is tried three times. Then the move says why and leaves the pod alone,
// until its spec changes.
func TestCutoverThatTakesTooLongIsGivenUp(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{homeNode}, []string{p.node}), count)
	p.home.WaitRunningOn(pod, homeNode)
	p.home.Move("move", "data", "target: {nodeName: "+p.node+"}, quiesce: {mode: Evict}, cutover: {mode: Manual, maxDowntime: 1s}")
	p.home.WaitMove("move", "Ready")
	p.home.PatchMove("move", `{"cutover":{"requested":true}}`)
	for cutovers := int64(1); cutovers <= 3; cutovers++ {
		p.home.Eventually(fmt.Sprintf("cut-over %d takes too long", cutovers), func(ctx context.Context) (string, error) {
			move, err := p.home.Object(ctx, "volumemove", "move")
			if err != nil {
				return "", err
			}
			count, _, _ := unstructured.NestedInt64(move.Object, "status", "overruns", "count")
			if phase := user.Text(move, "status", "phase"); count < cutovers {
				return fmt.Sprintf("it is %s after %d", phase, count), nil
			}
			return "", nil
		})
	}
	const stalled = `jsonpath={.status.phase} {.status.overruns.count} {.status.conditions[?(@.type=="Stalled")]}`
	p.home.Eventually("the move says that it gives up", func(context.Context) (string, error) {
		out, err := p.home.Kubectl("get", "volumemove", "move", "-o", stalled)
		if err != nil || strings.HasPrefix(out, "Ready 3 ") && strings.Contains(out, "CutoverOverruns") &&
			strings.Contains(out, "Raise spec.cutover.maxDowntime") {
			return "", err
		}
		return "it says " + out, nil
	})
	p.home.WaitRunningOn(pod, homeNode)
	alone := p.home.WaitReady(pod)
	before, began := p.countNumbers(p.home, pod), time.Now()
	// Another attempt would follow within seconds: nothing but its own rule holds the move back.
	p.home.Eventually("the pod is left alone", func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().Pods(p.home.Name).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && (found.UID != alone.UID || found.DeletionTimestamp != nil) {
			user.ViolatedNow(t, "the pod was stopped again after %v", time.Since(began))
		}
		if time.Since(began) < time.Minute {
			return "observed for less than a minute", err
		}
		return "", err
	})
	p.home.PatchMove("move", `{"cutover":{"maxDowntime":"10m"}}`)
	p.home.WaitMove("move", "Retaining")
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	if now := p.countNumbers(p.remote, pod); now < before {
		user.Violated(t, "%d numbers were written, and the target has %d", before, now)
	}
	p.deleteMoves()
}

// A device moves to another cluster while its pods are stopped, and back while they run.
func TestDeviceMovesThereAndBack(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "16Mi", user.Block)
	homeNode := p.home.Cluster.Nodes()[0].Name
	sum := p.home.FillDevice("data", homeNode)
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{homeNode}, []string{p.node}), user.CountOnDevice)
	p.home.WaitRunningOn(pod, homeNode)
	uid, count := p.claimUID("data"), p.home.DeviceCount(pod)
	for _, leg := range []struct {
		to   *user.Namespace
		node string
		cold bool
	}{{p.remote, p.node, true}, {p.home, homeNode, false}} {
		out := p.move("data", "--target-node", leg.node, "--evict")
		if cold := strings.Contains(out, "for the whole copy"); cold != leg.cold {
			t.Errorf("the message about the stopped pods was printed: %v", cold)
		}
		p.home.WaitRunningOn(pod, leg.node)
		leg.to.WaitReady(pod)
		if got := leg.to.DeviceSum(pod); got != sum {
			user.Violated(t, "on %s the checksum of the device is %s, not %s", leg.node, got, sum)
		}
		now := leg.to.DeviceCount(pod)
		if now < count {
			user.Violated(t, "on %s the pod has counted to %d, and had counted to %d", leg.node, now, count)
		}
		count = now
		p.wantSameClaim(uid)
		p.deleteMoves()
	}
}

// A database moves to another cluster and back while it writes, and has all keys that it had confirmed.
func TestDatabaseMovesThereAndBackWhileItWrites(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "320Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("database", "data", preferNodes([]string{homeNode}, []string{p.node}), user.RunEtcd, func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(10))
	})
	p.home.WaitRunningOn(pod, homeNode)
	p.home.WaitReady(pod)
	uid, confirmed := p.claimUID("data"), 0
	for _, leg := range []struct {
		from, to *user.Namespace
		node     string
	}{{p.home, p.remote, p.node}, {p.remote, p.home, homeNode}}[:*databaseMoves] {
		load := leg.from.LoadEtcd(pod, confirmed)
		leg.from.Eventually("the database confirms keys", func(context.Context) (string, error) {
			if load.Confirmed() < confirmed+20 {
				return "fewer than 20", nil
			}
			return "", nil
		})
		p.move("data", "--target-node", leg.node, "--evict")
		confirmed = load.WaitEnd()
		p.home.WaitRunningOn(pod, leg.node)
		leg.to.WaitReady(pod)
		count, latest := leg.to.EtcdKeys(pod)
		// The last key may have been written without a confirmation.
		if count < confirmed || count != latest || latest > confirmed+1 {
			user.Violated(t, "on %s there are %d keys up to %d, and %d were confirmed", leg.node, count, latest, confirmed)
		}
		t.Logf("on %s: %d keys, %d confirmed", leg.node, count, confirmed)
		confirmed = latest
		p.wantSameClaim(uid)
		p.deleteMoves()
	}
}

// Volumes of one pod move together, because no node fits volumes in two clusters.
func TestClaimsOfOnePodMoveTogether(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Claim("log", "liqo-reference", "64Mi")
	homeNode := p.home.Cluster.Nodes()[0].Name
	pod := p.home.StatefulSet("user", "data", preferNodes([]string{homeNode}, []string{p.node}), withClaim("log"))
	p.home.WaitRunningOn(pod, homeNode)
	p.home.Exec(pod, "echo of data > /data/file; echo of log > /log/file; sync")

	p.move("data", "--with", "log", "--target-node", p.node, "--evict")
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	if got := p.remote.Exec(pod, "cat /data/file /log/file"); got != "of data\nof log" {
		user.Violated(t, "the remote pod reads %q", got)
	}
	p.home.DeleteStatefulSet("user")
}

// Pods on all nodes share a volume. All are evicted, run in the other cluster afterwards, and have the numbers that
// they wrote.
func TestMoveOfAVolumeThatPodsOnSeveralNodesShare(t *testing.T) {
	p := newPair(t)
	p.home.Claim("shared", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	var pods []string
	for at, node := range p.home.Cluster.Nodes() {
		name := fmt.Sprintf("user%d", at)
		pod := p.home.StatefulSet(name, "shared", preferNodes([]string{node.Name}, []string{p.node}), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Command = []string{"sh", "-c", strings.ReplaceAll(countScript, "/log", "/"+name)}
		})
		p.home.WaitRunningOn(pod, node.Name)
		p.home.WaitReady(pod)
		pods = append(pods, pod)
	}
	p.move("shared", "--target-node", p.node, "--evict")
	for at, pod := range pods {
		p.home.WaitRunningOn(pod, p.node)
		p.remote.WaitReady(pod)
		p.countNumbersIn(p.remote, pod, fmt.Sprintf("user%d", at))
	}
}

// The data passes through the relay at home, which has a kubeconfig of each remote cluster. Behind both is the same
// cluster, with two namespaces.
func TestMoveFromOneRemoteClusterToAnother(t *testing.T) {
	t.Parallel()
	ensureShared(t)
	remote := user.Cluster(t, "remote")
	p := &pair{t: t, node: sharedNode, cluster: sharedName, remote: user.NewNamespace(t, remote)}
	other := &pair{t: t, cluster: p.remote.Name, node: "virtual-" + p.remote.Name}
	other.remote = user.NewNamespaceNamed(t, remote, p.remote.Name+"-other")
	t.Cleanup(func() {
		p.wantNoTwins()
		other.wantNoTwins()
	})
	other.declare(mappedNamespaces(map[string]any{p.remote.Name: other.remote.Name}))
	t.Cleanup(other.undeclare)
	options := virtualNode(other.node, other.cluster)
	options.Namespace = func(home string) (string, bool) { return other.remote.Name, home == p.remote.Name }
	startFabric(t, options)
	other.waitMarked()
	p.createHomeNamespace()
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{p.node}, []string{other.node}), count)
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	before, uid := p.countNumbers(p.remote, pod), p.claimUID("data")

	p.move("data", "--target-node", other.node, "--evict")
	p.home.WaitRunningOn(pod, other.node)
	other.remote.WaitReady(pod)
	if moved := p.countNumbers(other.remote, pod); moved < before {
		user.Violated(t, "%d numbers were written, and the target has %d", before, moved)
	}
	p.wantSameClaim(uid)
}

// A volume moves to another class of its remote cluster and back while a pod writes. Its twin has the name of the
// claim before and after, for pods in the remote cluster.
func TestMoveWithinARemoteClusterAndBack(t *testing.T) {
	p := newPair(t)
	p.remote.Class(classWithoutCapacity(movedClass))
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{p.node}, []string{p.node}), count)
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	uid, count := p.claimUID("data"), p.countNumbers(p.remote, pod)
	was := p.waitVolume("data")

	for _, leg := range []struct {
		class string
		move  func()
	}{
		{movedClass, func() {
			p.move("data", "--target-node", p.node, "--storage-class", movedClass, "--evict")
		}},
		{*was.Twin.Spec.StorageClassName, p.undoMove},
	} {
		leg.move()
		p.home.WaitRunningOn(pod, p.node)
		p.remote.WaitReady(pod)
		now := p.countNumbers(p.remote, pod)
		if now < count {
			user.Violated(t, "in class %s there are %d numbers, and %d were written", leg.class, now, count)
		}
		count = now
		p.wantSameClaim(uid)
		found := p.waitVolume("data")
		if found.Twin.Name != "data" || *found.Twin.Spec.StorageClassName != leg.class || found.Real.Name == was.Real.Name {
			t.Errorf("the twin %s of class %s has the volume %s", found.Twin.Name, *found.Twin.Spec.StorageClassName, found.Real.Name)
		}
		was = found
	}
	p.deleteMoves()
}

// The source that is kept in the remote cluster has the name of the twin that the move back creates there. The undo
// deletes it only on request.
func TestUndoToARemoteClusterDeletesTheKeptCopyOnRequest(t *testing.T) {
	p := newPair(t)
	homeNode := p.home.Cluster.Nodes()[0].Name
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod := p.home.StatefulSet("counter", "data", preferNodes([]string{p.node}, []string{homeNode}), count)
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	uid, before := p.claimUID("data"), p.countNumbers(p.remote, pod)
	p.move("data", "--target-node", homeNode, "--evict")
	p.home.WaitRunningOn(pod, homeNode)
	p.home.WaitReady(pod)
	kept, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("the copy is not kept: %v", err)
	}

	name := p.onlyMove()
	if out, err := p.run("move", "undo", name, "-n", p.home.Name); err == nil || !strings.Contains(out, "--delete-kept-copy") {
		t.Fatalf("without --delete-kept-copy: %v", err)
	}
	if only := p.onlyMove(); only != name {
		t.Errorf("the refused undo has created the move %s", only)
	}
	p.mustRun("move", "undo", name, "-n", p.home.Name, "--delete-kept-copy")
	p.home.WaitRunningOn(pod, p.node)
	p.remote.WaitReady(pod)
	if now := p.countNumbers(p.remote, pod); now < before {
		user.Violated(t, "%d numbers were written, and there are %d after the undo", before, now)
	}
	p.wantSameClaim(uid)
	if found := p.waitVolume("data"); found.Twin.UID == kept.UID {
		t.Error("the twin is the copy that was kept")
	}
	p.deleteMoves()
}

// deleteMoves deletes all moves and their retained sources.
func (p *pair) deleteMoves() {
	p.t.Helper()
	if out, err := p.home.Kubectl("delete", "volumemoves", "--all"); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

// count makes a pod run countScript.
func count(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"sh", "-c", countScript} }

// countNumbers returns how many numbers a pod has written, and fails if one is missing.
func (p *pair) countNumbers(n *user.Namespace, pod string) int {
	p.t.Helper()
	return p.countNumbersIn(n, pod, "log")
}

func (p *pair) countNumbersIn(n *user.Namespace, pod, file string) int {
	p.t.Helper()
	var last int
	n.Eventually(pod+" has written", func(context.Context) (string, error) {
		out, err := n.Kubectl("exec", pod, "--", "sh", "-c", "head -n -1 "+user.DataPath+"/"+file)
		if err != nil {
			return "", err
		}
		lines := strings.Fields(out)
		for at, line := range lines {
			if number, err := strconv.Atoi(line); err != nil || number != at+1 {
				user.ViolatedNow(p.t, "number %d is %q", at+1, line)
			}
		}
		if last = len(lines); last == 0 {
			return "it has not", nil
		}
		return "", nil
	})
	return last
}

func (p *pair) claimUID(claim string) types.UID {
	p.t.Helper()
	return p.home.GetClaim(claim).UID
}

// wantSameClaim checks that the claim data was not replaced.
func (p *pair) wantSameClaim(uid types.UID) {
	p.t.Helper()
	if now := p.claimUID("data"); now != uid {
		p.t.Errorf("the claim has the uid %s, and had %s", now, uid)
	}
}

// move moves the volume of a claim, waits until the move has ended, and returns the output.
func (p *pair) move(claim string, args ...string) string {
	p.t.Helper()
	return p.mustRun(append([]string{"move", "volume", claim, "--namespace", p.home.Name}, args...)...)
}

// onlyMove returns the name of the only move of the namespace.
func (p *pair) onlyMove() string {
	p.t.Helper()
	names, err := p.home.Kubectl("get", "volumemoves", "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		p.t.Fatal(err)
	}
	if all := strings.Fields(names); len(all) != 1 {
		p.t.Fatalf("there are the moves %v, not one", all)
	}
	return strings.TrimSpace(names)
}

// undoMove undoes the only move.
func (p *pair) undoMove() {
	p.t.Helper()
	p.mustRun("move", "undo", p.onlyMove(), "-n", p.home.Name)
}

// mustRun runs a command that must succeed, and returns its output.
func (p *pair) mustRun(args ...string) string {
	p.t.Helper()
	out, err := p.run(args...)
	if err != nil {
		p.t.Fatal("the command failed")
	}
	return out
}

// run runs a command, logs and returns its output.
func (p *pair) run(args ...string) (string, error) {
	p.t.Helper()
	program, err := driver.Compile(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*user.Timeout)
	defer cancel()
	args = append(args, "--kubeconfig", p.home.Cluster.Kubeconfig())
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	p.t.Logf("liqo-csi %s: %v\n%s", strings.Join(args, " "), err, out)
	return string(out), err
}
