package remote

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// movedClass is one to which a volume moves within the remote cluster.
const movedClass = "e2e-moved"

// countScript writes one number after the other, each when the one before is on the disk, and goes on
// namespace it was stopped.
const countScript = `i=$(tail -n 1 ` + user.DataPath + `/log 2>/dev/null || echo 0)
while true; do i=$((i+1)); echo $i >> ` + user.DataPath + `/log; sync; done`

// A database of sorts moves to another cluster and back while it writes: its claim stays, and no
// number is missing.
func TestMoveThereAndBackOfAVolumeInUse(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod, here := p.createCounter("counter", "data"), p.home.Cluster.Nodes()[0].Name
	p.home.WaitOn(pod, here)
	uid := p.claimUID("data")
	before := p.countNumbers(p.home, pod)

	p.move(t, "data", "--target-node", p.node, "--evict")
	p.home.WaitOn(pod, p.node)
	p.remote.WaitReady(pod)
	there := p.countNumbers(p.remote, pod)
	if there < before {
		user.Violated(t, "%d numbers had been written, and %d are there", before, there)
	}
	if now := p.claimUID("data"); now != uid {
		t.Errorf("the claim has the uid %s now, and had %s", now, uid)
	}

	name, err := p.home.Kubectl("get", "volumemoves", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		t.Fatal(err)
	}
	p.mustRun(t, "move", "undo", name, "-n", p.home.Name)
	p.home.WaitOn(pod, here)
	if again := p.countNumbers(p.home, pod); again < there {
		user.Violated(t, "%d numbers had been written there, and %d are back", there, again)
	}
	if now := p.claimUID("data"); now != uid {
		t.Errorf("the claim has the uid %s after the way back, and had %s", now, uid)
	}
	// The sources of both are still kept.
	p.deleteMoves(t)
}

// While the last changes of a remote source are copied, and after the commit, no pod there starts with its
// twin; after a cancelled cut-over one does.
func TestNoPodThereStartsWithASourceThatIsBeingCutOver(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	here := p.home.Cluster.Nodes()[0].Name
	pod := p.home.Set("writer", "data", preferNodes([]string{p.node}, []string{here}))
	p.home.WaitOn(pod, p.node)
	p.remote.WaitReady(pod)
	real := p.home.FollowTo(p.remote, "data").Real
	const cancelled, through = "cancelled", "through"
	for at, name := range []string{cancelled, through} {
		// A node each: kubelet may still have the attachment of the first target, which has the same handle.
		node := p.home.Cluster.Nodes()[at].Name
		p.home.Move(name, "data", "target: {nodeName: "+node+"}, quiesce: {mode: Evict}, cutover: {mode: Manual}, "+
			"transport: {bandwidth: 1Mi}")
		p.home.WaitMove(name, "Ready")
		// So much that the last pass takes a while.
		p.remote.Exec(pod, "head -c 30000000 /dev/urandom > "+user.DataPath+"/"+name+" && sync")
		p.home.EditMove(name, `{"cutover":{"requested":true}}`)
		p.home.WaitMove(name, "Finishing")
		p.remote.Pod("stranger", "data")
		p.remote.WaitEvent("stranger", "non-existent persistentvolume")
		if name == cancelled {
			p.home.EditMove(name, `{"cancel":true}`)
			p.home.WaitMove(name, "Cancelled")
			p.remote.WaitReady("stranger")
			found := p.home.FollowTo(p.remote, "data").Real
			if found.UID != real.UID || found.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
				t.Errorf("the PersistentVolume %s has the policy %s, and had %s", found.Name,
					found.Spec.PersistentVolumeReclaimPolicy, real.Spec.PersistentVolumeReclaimPolicy)
			}
		} else {
			// It would write to superseded data.
			p.home.WaitMove(name, "Retaining")
			p.home.WaitReady(pod)
			stranger, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Get(t.Context(), "stranger", metav1.GetOptions{})
			if err != nil || stranger.Status.Phase != corev1.PodPending {
				t.Errorf("a pod with the superseded twin is %s: %v", stranger.Status.Phase, err)
			}
		}
		p.remote.DeletePod("stranger")
		if name == cancelled {
			p.home.WaitOn(pod, p.node)
			p.remote.WaitReady(pod)
		}
	}
	p.home.WaitOn(pod, here)
	if got := p.home.Exec(pod, "cat "+user.DataPath+"/"+through+" | wc -c"); got != "30000000" {
		user.Violated(t, "%s bytes of the last changes were copied", got)
	}
	p.deleteMoves(t)
}

// A device moves to another cluster, without its pods, and back, beside them.
func TestDeviceMovesThereAndBack(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "16Mi", user.Block)
	here := p.home.Cluster.Nodes()[0].Name
	sum := p.home.FillDevice("data", here)
	pod := p.home.Set("counter", "data", preferNodes([]string{here}, []string{p.node}), user.CountOnDevice)
	p.home.WaitOn(pod, here)
	uid, count := p.claimUID("data"), p.home.DeviceCount(pod)
	for _, leg := range []struct {
		to   *user.Namespace
		node string
		cold bool
	}{{p.remote, p.node, true}, {p.home, here, false}} {
		said := p.move(t, "data", "--target-node", leg.node, "--evict")
		if cold := strings.Contains(said, "for the whole copy"); cold != leg.cold {
			t.Errorf("the message about the stopped pods was printed: %v", cold)
		}
		p.home.WaitOn(pod, leg.node)
		leg.to.WaitReady(pod)
		if got := leg.to.DeviceSum(pod); got != sum {
			user.Violated(t, "on %s the device has the checksum %s, and had %s", leg.node, got, sum)
		}
		now := leg.to.DeviceCount(pod)
		if now < count {
			user.Violated(t, "on %s the pod is at %d, and had counted to %d", leg.node, now, count)
		}
		count = now
		if now := p.claimUID("data"); now != uid {
			t.Errorf("the claim has the uid %s, and had %s", now, uid)
		}
		p.deleteMoves(t)
	}
}

// A database moves to another cluster and back while it writes, and has all that it had confirmed.
func TestDatabaseMovesThereAndBackWhileItWrites(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "320Mi")
	here := p.home.Cluster.Nodes()[0].Name
	pod := p.home.Set("database", "data", preferNodes([]string{here}, []string{p.node}), user.Etcd, func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(10))
	})
	p.home.WaitOn(pod, here)
	p.home.WaitReady(pod)
	uid, confirmed := p.claimUID("data"), 0
	for _, leg := range []struct {
		from, to *user.Namespace
		node     string
	}{{p.home, p.remote, p.node}, {p.remote, p.home, here}} {
		load := leg.from.LoadEtcd(pod, confirmed)
		leg.from.Eventually("the database confirms keys", func(context.Context) (string, error) {
			if load.Confirmed() < confirmed+20 {
				return "fewer than 20", nil
			}
			return "", nil
		})
		p.move(t, "data", "--target-node", leg.node, "--evict")
		confirmed = load.Ended()
		p.home.WaitOn(pod, leg.node)
		leg.to.WaitReady(pod)
		count, latest := leg.to.EtcdKeys(pod)
		// One may have been written that nobody was told of.
		if count < confirmed || count != latest || latest > confirmed+1 {
			user.Violated(t, "on %s there are %d keys up to %d, and %d were confirmed", leg.node, count, latest, confirmed)
		}
		t.Logf("on %s: %d keys, %d confirmed", leg.node, count, confirmed)
		confirmed = latest
		if now := p.claimUID("data"); now != uid {
			t.Errorf("the claim has the uid %s, and had %s", now, uid)
		}
		p.deleteMoves(t)
	}
}

// What one pod mounts moves together: two volumes in two clusters would fit no node.
func TestClaimsOfOnePodMoveTogether(t *testing.T) {
	p := newPair(t)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Claim("log", "liqo-reference", "64Mi")
	here := p.home.Cluster.Nodes()[0].Name
	pod := p.home.Set("user", "data", preferNodes([]string{here}, []string{p.node}), withClaim("log"))
	p.home.WaitOn(pod, here)
	p.home.Exec(pod, "echo of data > /data/file; echo of log > /log/file; sync")

	p.move(t, "data", "--with", "log", "--target-node", p.node, "--evict")
	p.home.WaitOn(pod, p.node)
	p.remote.WaitReady(pod)
	if got := p.remote.Exec(pod, "cat /data/file /log/file"); got != "of data\nof log" {
		user.Violated(t, "there is %q", got)
	}
	p.home.DeleteSet("user")
}

// All pods that share a volume are sent away, from every node, and come back to it in the other
// cluster. What each has written is there.
func TestMoveOfAVolumeThatPodsOnSeveralNodesShare(t *testing.T) {
	p := newPair(t)
	p.home.Claim("shared", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	var pods []string
	for at, node := range p.home.Cluster.Nodes() {
		name := fmt.Sprintf("user%d", at)
		pod := p.home.Set(name, "shared", preferNodes([]string{node.Name}, []string{p.node}), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Command = []string{"sh", "-c", strings.ReplaceAll(countScript, "/log", "/"+name)}
		})
		p.home.WaitOn(pod, node.Name)
		p.home.WaitReady(pod)
		pods = append(pods, pod)
	}
	p.move(t, "shared", "--target-node", p.node, "--evict")
	for at, pod := range pods {
		p.home.WaitOn(pod, p.node)
		p.remote.WaitReady(pod)
		p.countNumbersIn(p.remote, pod, fmt.Sprintf("user%d", at))
	}
}

// From one remote cluster to another data passes through home, and the relay has a kubeconfig of
// each. Behind both is the same cluster, in two namespaces.
func TestMoveFromOneRemoteClusterToAnother(t *testing.T) {
	t.Parallel()
	ensureShared(t)
	there := user.Cluster(t, "remote")
	p := &pair{t: t, node: sharedNode, cluster: sharedName, remote: user.NewNamespace(t, there)}
	other := &pair{t: t, cluster: p.remote.Name, node: "virtual-" + p.remote.Name}
	other.remote = user.NewNamespaceNamed(t, there, p.remote.Name+"-other")
	t.Cleanup(func() {
		p.wantNoTwins()
		other.wantNoTwins()
	})
	other.declare(mappedNamespaces(map[string]any{p.remote.Name: other.remote.Name}))
	t.Cleanup(other.undeclare)
	options := virtualNode(other.node, other.cluster)
	options.Namespace = func(home string) (string, bool) { return other.remote.Name, home == p.remote.Name }
	startFabric(t, options)
	if err := waitMarked(t.Context(), user.Cluster(t, "home"), other.node, other.cluster); err != nil {
		t.Fatal(err)
	}
	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), p.remote.Name)
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod := p.home.Set("counter", "data", preferNodes([]string{p.node}, []string{other.node}), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", countScript}
	})
	p.home.WaitOn(pod, p.node)
	p.remote.WaitReady(pod)
	before, uid := p.countNumbers(p.remote, pod), p.claimUID("data")

	p.move(t, "data", "--target-node", other.node, "--evict")
	p.home.WaitOn(pod, other.node)
	other.remote.WaitReady(pod)
	if there := p.countNumbers(other.remote, pod); there < before {
		user.Violated(t, "%d numbers had been written, and %d are there", before, there)
	}
	if now := p.claimUID("data"); now != uid {
		t.Errorf("the claim has the uid %s now, and had %s", now, uid)
	}
}

// Within one remote cluster a volume moves to another class and back while it is written to. Pods
// onVirtualNode find it under the name of the claim all the time.
func TestMoveWithinARemoteClusterAndBack(t *testing.T) {
	p := newPair(t)
	p.remote.Class(classWithoutCapacity(movedClass))
	p.home.Claim("data", "liqo-reference", "64Mi")
	pod := p.home.Set("counter", "data", preferNodes([]string{p.node}, []string{p.node}), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", countScript}
	})
	p.home.WaitOn(pod, p.node)
	p.remote.WaitReady(pod)
	uid, count := p.claimUID("data"), p.countNumbers(p.remote, pod)
	was := p.home.FollowTo(p.remote, "data")

	for _, leg := range []struct {
		class string
		move  func()
	}{
		{movedClass, func() {
			p.move(t, "data", "--target-node", p.node, "--storage-class", movedClass, "--evict")
		}},
		{*was.Twin.Spec.StorageClassName, func() {
			name, err := p.home.Kubectl("get", "volumemoves", "-o", "jsonpath={.items[0].metadata.name}")
			if err != nil {
				t.Fatal(err)
			}
			p.mustRun(t, "move", "undo", name, "-n", p.home.Name)
		}},
	} {
		leg.move()
		p.home.WaitOn(pod, p.node)
		p.remote.WaitReady(pod)
		now := p.countNumbers(p.remote, pod)
		if now < count {
			user.Violated(t, "in class %s there are %d numbers, and %d had been written", leg.class, now, count)
		}
		count = now
		if now := p.claimUID("data"); now != uid {
			t.Errorf("the claim has the uid %s, and had %s", now, uid)
		}
		found := p.home.FollowTo(p.remote, "data")
		if found.Twin.Name != "data" || *found.Twin.Spec.StorageClassName != leg.class || found.Real.Name == was.Real.Name {
			t.Errorf("the twin %s of class %s has the volume %s", found.Twin.Name, *found.Twin.Spec.StorageClassName, found.Real.Name)
		}
		was = found
	}
	p.deleteMoves(t)
}

// deleteMoves deletes all moves, and with that what is kept at their sources.
func (p *pair) deleteMoves(t *testing.T) {
	t.Helper()
	if out, err := p.home.Kubectl("delete", "volumemoves", "--all"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// createCounter starts one pod that counts on the claim, at home rather than there, and again wherever
// its data is when it is evicted.
func (p *pair) createCounter(name, claim string) (pod string) {
	here := []string{p.home.Cluster.Nodes()[0].Name}
	return p.home.Set(name, claim, preferNodes(here, []string{p.node}), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", countScript}
	})
}

// countNumbers counts what the pod has written, and fails if a number is missing.
func (p *pair) countNumbers(where *user.Namespace, pod string) int {
	p.t.Helper()
	return p.countNumbersIn(where, pod, "log")
}

func (p *pair) countNumbersIn(where *user.Namespace, pod, file string) int {
	p.t.Helper()
	var last int
	where.Eventually(pod+" has written", func(context.Context) (string, error) {
		out, err := where.Kubectl("exec", pod, "--", "sh", "-c", "head -n -1 "+user.DataPath+"/"+file)
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
			return "nothing yet", nil
		}
		return "", nil
	})
	return last
}

func (p *pair) claimUID(claim string) types.UID {
	p.t.Helper()
	found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(p.t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return found.UID
}

// move moves the volume of a claim, and waits for the end.
func (p *pair) move(t *testing.T, claim string, args ...string) string {
	t.Helper()
	return p.mustRun(t, append([]string{"move", "volume", claim, "--namespace", p.home.Name}, args...)...)
}

func (p *pair) mustRun(t *testing.T, args ...string) string {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*user.Patience)
	defer cancel()
	args = append(args, "--kubeconfig", p.home.Cluster.Kubeconfig())
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	t.Logf("liqo-csi %s: %v\n%s", strings.Join(args, " "), err, out)
	if err != nil {
		t.Fatal("it has failed")
	}
	return string(out)
}
