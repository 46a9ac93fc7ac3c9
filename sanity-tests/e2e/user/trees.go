package user

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/sample"
	"storage.liqo.io/sanity-tests/trees"
)

// maxDifferences is how many differences of trees are logged.
const maxDifferences = 40

// VolumePath returns the host's path of the volume of a pod, which has no other. Tests use it for what no command in a
// pod can create or read.
func (n *Namespace) VolumePath(pod string) string {
	n.t.Helper()
	found := n.WaitReady(pod)
	node, err := n.Cluster.Node(found.Spec.NodeName)
	if err != nil {
		n.t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(node.KubeletRoot(), "pods", string(found.UID), "volumes/kubernetes.io~csi/*/mount"))
	if err != nil {
		n.t.Fatal(err)
	}
	table, err := machine.Mounts()
	if err != nil || len(paths) != 1 || !table.Has(paths[0]) {
		n.t.Fatalf("the volume of pod %s on node %s: mounted at %v, %v", pod, node.Name, paths, err)
	}
	return paths[0]
}

// GrowTree generates a tree in the volume of a pod. Its seed is that of the run.
func (n *Namespace) GrowTree(pod string, options trees.Options) trees.Manifest {
	n.t.Helper()
	options.Seed = sample.Seed()
	n.t.Logf("the tree follows from the seed: %s=%d repeats it", sample.SeedVariable, options.Seed)
	if err := trees.Grow(n.VolumePath(pod), options); err != nil {
		n.t.Fatalf("generate the tree: %v", err)
	}
	tree := n.readTree(pod)
	n.t.Logf("the tree has %d names; extended attributes of %d are lost with consent, and flags of %d", len(tree),
		tree.Count(trees.ExtendedAttributes), tree.Count(trees.InodeFlags))
	return tree
}

// WantTree checks that the volume of a pod has exactly this tree.
func (n *Namespace) WantTree(pod string, want trees.Manifest) {
	n.t.Helper()
	found := trees.Diff(want, n.readTree(pod))
	if len(found) > 0 {
		Violated(n.t, "the tree in the volume of pod %s in cluster %s has %d differences:\n%s", pod, n.Cluster.Name(), len(found),
			strings.Join(found[:min(len(found), maxDifferences)], "\n"))
	}
}

func (n *Namespace) readTree(pod string) trees.Manifest {
	n.t.Helper()
	tree, err := trees.Read(n.VolumePath(pod))
	if err != nil {
		n.t.Fatalf("read the tree of pod %s in cluster %s: %v", pod, n.Cluster.Name(), err)
	}
	return tree
}

// RefuseTooDeepPath creates a path that cannot be copied, waits until the move reports it, and deletes it. The time of
// the volume's root is restored.
func (n *Namespace) RefuseTooDeepPath(pod string, move func()) {
	n.t.Helper()
	root := n.VolumePath(pod)
	var before unix.Stat_t
	if err := unix.Stat(root, &before); err != nil {
		n.t.Fatal(err)
	}
	first, err := trees.GrowTooDeep(root)
	if err != nil {
		n.t.Fatalf("create a path that is too long: %v", err)
	}
	move()
	n.waitMoveSays("move", ".status.waitingFor", "File name too long")
	if err := os.RemoveAll(filepath.Join(root, first)); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, root, []unix.Timespec{before.Atim, before.Mtim}, 0); err != nil {
		n.t.Fatal(err)
	}
}

// AcceptLosses consents to the losses of a move, one by one, when the move waits for it. Until the last one, the pod
// runs and its tree is unchanged.
func (n *Namespace) AcceptLosses(move, pod string, tree trees.Manifest) {
	n.t.Helper()
	before := n.WaitReady(pod)
	for at, loss := range trees.Losses {
		n.waitMoveSays(move, ".status.waitingFor", "add "+string(loss)+" to spec.acceptLoss")
		if now := n.WaitReady(pod); now.UID != before.UID {
			Violated(n.t, "pod %s was evicted before consent to the loss of %s", pod, loss)
		}
		n.waitMoveSays(move, ".status.lossy", fmt.Sprintf("extended attributes of %d names", tree.Count(trees.ExtendedAttributes)))
		n.waitMoveSays(move, ".status.lossy", fmt.Sprintf("inode flags of %d names", tree.Count(trees.InodeFlags)))
		n.WantTree(pod, tree)
		n.PatchMove(move, fmt.Sprintf(`{"acceptLoss":["%s"]}`, joined(trees.Losses[:at+1])))
	}
}

func joined(losses []trees.Loss) string {
	var names []string
	for _, loss := range losses {
		names = append(names, string(loss))
	}
	return strings.Join(names, `","`)
}

// waitMoveSays waits until a field of a move has this text.
func (n *Namespace) waitMoveSays(move, field, text string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("%s of the move %s has %q", field, move, text), func(context.Context) (string, error) {
		found, err := n.Kubectl("get", "volumemove", move, "-o", "jsonpath={.status.phase} {"+field+"}")
		if strings.Contains(found, text) {
			return "", err
		}
		return "it is " + found, err
	})
}
