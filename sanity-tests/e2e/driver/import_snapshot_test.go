package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

// runSnapshotImport runs the command as an administrator would.
func runSnapshotImport(t *testing.T, n *user.Namespace, snapshot string, args ...string) (string, error) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"import", "snapshot", n.Name + "/" + snapshot, "--kubeconfig", n.Cluster.Kubeconfig()}, args...)
	if !slices.Contains(args, "--timeout") {
		args = append(args, "--timeout", "3m")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*user.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	t.Logf("liqo-csi %s: %v\n%s", strings.Join(args[:3], " "), err, out)
	return string(out), err
}

// realSnapshot is a snapshot of a claim of a real class, of what a pod has written.
func realSnapshot(t *testing.T, n *user.Namespace, class string) (sum string, found user.Snapshot) {
	t.Helper()
	n.Claim("data", class, "64Mi")
	n.Pod("writer", "data")
	n.WaitReady("writer")
	sum = scramble(n, "writer", false)
	n.Snapshot("backup", "data", class)
	return sum, behindReal(t, n)
}

// behindReal is a snapshot of a real class with its content.
func behindReal(t *testing.T, n *user.Namespace) user.Snapshot {
	t.Helper()
	found, err := n.GetSnapshot(t.Context(), "backup")
	if err != nil || found.Content == nil {
		t.Fatalf("what stands behind the snapshot: %+v, %v", found, err)
	}
	return found
}

func TestImportOfASnapshotKeepsTheData(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]string{"directory": "reference", "on one node": "reference-local"} {
		t.Run(name, func(t *testing.T) {
			n := home(t)
			want, before := realSnapshot(t, n, class)
			if out, err := runSnapshotImport(t, n, "backup", "--dry-run"); err != nil || !strings.Contains(out, "nothing was changed") {
				t.Fatalf("the dry run: %v\n%s", err, out)
			}
			if now := behindReal(t, n); now.Object.Metadata.UID != before.Object.Metadata.UID || now.Content.Spec.DeletionPolicy != "Delete" {
				user.ViolatedNow(t, "the dry run changed something: %+v", now)
			}
			if out, err := runSnapshotImport(t, n, "backup"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			imported := n.WantImportedSnapshot("backup")
			if imported.Content.Spec.Driver != driver.CSIName || imported.Real.Spec.Driver != before.Content.Spec.Driver {
				t.Errorf("the snapshot is of %s, its twin of %s", imported.Content.Spec.Driver, imported.Real.Spec.Driver)
			}
			if imported.Real.Status.Handle != before.Content.Status.Handle {
				user.Violated(t, "the data is %s, and was %s", imported.Real.Status.Handle, before.Content.Status.Handle)
			}
			left, err := user.SnapshotContent(t.Context(), n.Client, before.Content.Metadata.Name)
			if err != nil || left != nil {
				t.Errorf("the content of before is left: %+v, %v", left, err)
			}
			// Again, it is done already.
			if out, err := runSnapshotImport(t, n, "backup"); err != nil {
				t.Errorf("%v: %s", err, out)
			}

			n.Claim("restored", "liqo-"+class, "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
			n.Pod("reader", "restored")
			n.WaitReady("reader")
			if got := checksum(n, "reader", false); got != want {
				user.Violated(t, "the bytes are %s, want %s", got, want)
			}
			n.DeleteSnapshot("backup")
			n.WaitSnapshotDeleted(imported, n.Client, chart.StorageNamespace)
			if class == "reference" {
				wantNoSnapshotData(t, n, imported)
			}
		})
	}
}

func TestImportOfASnapshotTellsAllThatSpeaksAgainstIt(t *testing.T) {
	n := home(t)
	_, before := realSnapshot(t, n, "reference")
	if _, err := n.Kubectl("annotate", "volumesnapshot", "backup", "meta.helm.sh/release-name=web"); err != nil {
		t.Fatal(err)
	}
	// A claim of it that no pod has ever wanted.
	n.Claim("copy", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	out, err := runSnapshotImport(t, n, "backup")
	if err == nil {
		user.ViolatedNow(t, "it was imported")
	}
	for _, word := range []string{"Helm", "--force-managed", "copy"} {
		if !strings.Contains(out, word) {
			t.Errorf("%q is not told", word)
		}
	}
	if now := behindReal(t, n); now.Object.Metadata.UID != before.Object.Metadata.UID || len(now.Content.Metadata.Annotations["storage.liqo.io/import-snapshot"]) > 0 {
		user.Violated(t, "something was changed: %+v", now)
	}
	if out, err := runSnapshotImport(t, n, "none"); err == nil || !strings.Contains(out, "no such VolumeSnapshot") {
		t.Errorf("%v: %s", err, out)
	}
	n.Claim("ours", "liqo-reference", "64Mi")
	n.Pod("user", "ours")
	n.WaitReady("user")
	n.Snapshot("of-ours", "ours", snapshotClass)
	if out, err := runSnapshotImport(t, n, "of-ours"); err == nil || !strings.Contains(out, "of this driver") {
		t.Errorf("%v: %s", err, out)
	}
}

// markSnapshotImport begins an import, as a command does that is killed after its first write.
func markSnapshotImport(t *testing.T, n *user.Namespace, before user.Snapshot) {
	t.Helper()
	namespace, err := n.Client.CoreV1().Namespaces().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf(`{"version":1,"namespace":%q,"namespaceUid":%q,"name":"backup","uid":%q,"class":%q,"policy":"Delete"}`,
		n.Name, namespace.UID, before.Object.Metadata.UID, snapshotClass)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"storage.liqo.io/import-snapshot":%q}},"spec":{"deletionPolicy":"Retain"}}`, record)
	if _, err := n.Kubectl("patch", "volumesnapshotcontent", before.Content.Metadata.Name, "--type=merge", "-p", patch); err != nil {
		t.Fatal(err)
	}
}

// wantSnapshotAsBefore fails if anything of an import is there.
func wantSnapshotAsBefore(t *testing.T, n *user.Namespace, before user.Snapshot) {
	t.Helper()
	now := behindReal(t, n)
	if now.Object.Metadata.UID != before.Object.Metadata.UID || now.Content.Spec.DeletionPolicy != before.Content.Spec.DeletionPolicy {
		t.Errorf("it is not as before: %+v", now)
	}
	for _, object := range []*user.SnapshotObject{now.Object, now.Content} {
		for key := range object.Metadata.Annotations {
			if strings.HasPrefix(key, "storage.liqo.io/") {
				t.Errorf("the annotation %s is left on %s", key, object.Metadata.Name)
			}
		}
	}
	if others := otherContents(t, n, before); len(others) > 0 {
		user.Violated(t, "there are other contents of the data: %v", others)
	}
}

// otherContents are the contents that lead to the same data.
func otherContents(t *testing.T, n *user.Namespace, of user.Snapshot) []string {
	t.Helper()
	same := fmt.Sprintf(`jsonpath={.items[?(@.spec.source.snapshotHandle==%q)].metadata.name}`, of.Content.Status.Handle)
	out, err := n.Kubectl("get", "volumesnapshotcontents", "-o", same)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return name == of.Content.Metadata.Name })
}

// What the API server would not take is told before anything is written, and takes an import back
// that has begun.
func TestImportOfASnapshotThatIsNotAcceptedChangesNothing(t *testing.T) {
	n := home(t)
	_, before := realSnapshot(t, n, "reference")
	n.Quota("snapshots", "count/volumesnapshots.snapshot.storage.k8s.io", "1")
	if out, err := runSnapshotImport(t, n, "backup"); err == nil || !strings.Contains(out, "exceeded quota") {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotAsBefore(t, n, before)

	markSnapshotImport(t, n, before)
	out, err := runSnapshotImport(t, n, "backup")
	if err == nil || !strings.Contains(out, "exceeded quota") || !strings.Contains(out, "rolled back") {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotAsBefore(t, n, before)

	if _, err := n.Kubectl("delete", "resourcequota", "snapshots"); err != nil {
		t.Fatal(err)
	}
	if out, err := runSnapshotImport(t, n, "backup"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	imported := n.WantImportedSnapshot("backup")
	n.DeleteSnapshot("backup")
	n.WaitSnapshotDeleted(imported, n.Client, chart.StorageNamespace)
}

// The content of before is deleted by somebody while the import is under way: an undo that went on
// would leave the data without anything that leads to it.
func TestUndoOfASnapshotsImportKeepsWhatLeadsToTheData(t *testing.T) {
	n := home(t)
	_, before := realSnapshot(t, n, "reference")
	// The twin never becomes ready, so that the import gets no further than that.
	remove, err := storage.BackendOf(n.Cluster, storage.Reference).AddFault(storage.Fault{
		RPC: "ListSnapshots", Match: before.Content.Status.Handle, Code: "Unavailable", Message: "not now",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remove() })
	var second string
	n.Eventually("the twin of the snapshot to be created", func(context.Context) (string, error) {
		out, err := runSnapshotImport(t, n, "backup", "--timeout", "0s")
		if err == nil || !strings.Contains(out, "run the same command again") {
			t.Fatalf("%v: %s", err, out)
		}
		others := otherContents(t, n, before)
		if len(others) != 1 || !strings.Contains(out, "its twin") {
			return fmt.Sprintf("other contents of the data: %v; %s", others, out), nil
		}
		second = others[0]
		return "", nil
	})
	if _, err := n.Kubectl("delete", "volumesnapshotcontent", before.Content.Metadata.Name, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := runSnapshotImport(t, n, "backup", "--undo")
		if err == nil {
			t.Fatal("it is undone")
		}
		for _, word := range []string{before.Content.Spec.Driver, before.Content.Status.Handle, second} {
			if !strings.Contains(out, word) {
				t.Errorf("%q is not told", word)
			}
		}
		for _, name := range []string{before.Content.Metadata.Name, second} {
			found, err := user.SnapshotContent(t.Context(), n.Client, name)
			if err != nil || found == nil && name == second || found != nil && found.Spec.DeletionPolicy != "Retain" {
				t.Errorf("the content %s: %+v, %v", name, found, err)
			}
		}
	}

	if err := remove(); err != nil {
		t.Fatal(err)
	}
	// The snapshot goes with that content, and the data stays until its last content is deleted.
	data := storage.BackendOf(n.Cluster, storage.Reference).Data(before.Content.Status.Handle)
	n.DeleteSnapshot("backup")
	n.Eventually("the content of before is gone", func(ctx context.Context) (string, error) {
		left, err := user.SnapshotContent(ctx, n.Client, before.Content.Metadata.Name)
		if err != nil || left != nil {
			return "it is there", err
		}
		return "", nil
	})
	if _, err := os.Stat(data); err != nil {
		user.Violated(t, "the data: %v", err)
	}
	for _, args := range [][]string{
		{"patch", "volumesnapshotcontent", second, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`},
		{"delete", "volumesnapshot", "-n", chart.StorageNamespace, second},
		// Whether the snapshot-controller does that has to do with when it saw the policy.
		{"delete", "volumesnapshotcontent", second, "--wait=false", "--ignore-not-found"},
	} {
		if _, err := n.Kubectl(args...); err != nil {
			t.Fatal(err)
		}
	}
	n.Eventually("the last content is gone", func(ctx context.Context) (string, error) {
		left, err := user.SnapshotContent(ctx, n.Client, second)
		if err != nil || left != nil {
			return "it is there", err
		}
		return "", nil
	})
	wantNoSnapshotData(t, n, user.Snapshot{Real: before.Content})
}

// An import that waits for a twin that never gets ready, as where csi-snapshotter is gone, is
// named by doctor and can be undone.
func TestImportOfASnapshotIsUndone(t *testing.T) {
	n := home(t)
	_, before := realSnapshot(t, n, "reference")
	content := before.Content.Metadata.Name
	markSnapshotImport(t, n, before)
	if out, _ := look(t, n, "doctor"); !strings.Contains(out, "liqo-csi import snapshot "+n.Name+"/backup") {
		t.Errorf("doctor does not name the import:\n%s", out)
	}
	if out, err := runSnapshotImport(t, n, "backup", "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotAsBefore(t, n, before)
	n.DeleteSnapshot("backup")
	n.Eventually("the snapshot goes with its content", func(ctx context.Context) (string, error) {
		left, err := user.SnapshotContent(ctx, n.Client, content)
		if err != nil || left != nil {
			return "the content is there", err
		}
		return "", nil
	})
}
