package driver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

func runSnapshotImport(t *testing.T, n *user.Namespace, snapshot string, args ...string) (string, error) {
	t.Helper()
	return runTransfer(t.Context(), t, n, "import", "snapshot", snapshot, args...)
}

// createRealSnapshot creates a claim of a real class with random data, and the snapshot backup of it.
func createRealSnapshot(t *testing.T, n *user.Namespace, class string) (sum string, found user.Snapshot) {
	t.Helper()
	startPod(n, "writer", "data", class)
	sum = fillRandom(n, "writer", false)
	n.Snapshot("backup", "data", class)
	return sum, getRealSnapshot(t, n)
}

// getRealSnapshot returns the snapshot backup of a real class and its content.
func getRealSnapshot(t *testing.T, n *user.Namespace) user.Snapshot {
	t.Helper()
	found, err := n.GetSnapshot(t.Context(), "backup")
	if err != nil || found.Content == nil {
		t.Fatalf("objects of the snapshot: %+v, %v", found, err)
	}
	return found
}

func TestImportOfASnapshotKeepsTheData(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]string{"directory": "reference", "on one node": "reference-local"} {
		t.Run(name, func(t *testing.T) {
			n := home(t)
			want, before := createRealSnapshot(t, n, class)
			if out, err := runSnapshotImport(t, n, "backup", "--dry-run"); err != nil || !strings.Contains(out, "nothing was changed") {
				t.Fatalf("the dry run: %v\n%s", err, out)
			}
			if now := getRealSnapshot(t, n); now.Object.Metadata.UID != before.Object.Metadata.UID || now.Content.Spec.DeletionPolicy != "Delete" {
				user.ViolatedNow(t, "the dry run changed something: %+v", now)
			}
			if out, err := runSnapshotImport(t, n, "backup"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			imported := n.WantImportedSnapshot("backup")
			if imported.Content.Spec.Driver != driver.CSIName || imported.Real.Spec.Driver != before.Content.Spec.Driver {
				t.Errorf("the driver of the snapshot is %s, that of its twin %s", imported.Content.Spec.Driver, imported.Real.Spec.Driver)
			}
			if imported.Real.Status.Handle != before.Content.Status.Handle {
				user.Violated(t, "the handle of the data is %s, and was %s", imported.Real.Status.Handle, before.Content.Status.Handle)
			}
			left, err := user.SnapshotContent(t.Context(), n.Client, before.Content.Metadata.Name)
			if err != nil || left != nil {
				t.Errorf("the old content was not deleted: %+v, %v", left, err)
			}
			// The command is idempotent.
			if out, err := runSnapshotImport(t, n, "backup"); err != nil {
				t.Errorf("%v: %s", err, out)
			}

			n.Claim("restored", "liqo-"+class, "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
			n.Pod("reader", "restored")
			n.WaitReady("reader")
			if got := checksum(n, "reader", false); got != want {
				user.Violated(t, "the checksum is %s, want %s", got, want)
			}
			n.DeleteSnapshot("backup")
			n.WaitSnapshotDeleted(imported, n.Client, chart.StorageNamespace)
			if class == "reference" {
				wantNoSnapshotData(t, n, imported)
			}
		})
	}
}

func TestImportOfASnapshotListsEveryBlocker(t *testing.T) {
	n := home(t)
	_, before := createRealSnapshot(t, n, "reference")
	if _, err := n.Kubectl("annotate", "volumesnapshot", "backup", "meta.helm.sh/release-name=web"); err != nil {
		t.Fatal(err)
	}
	// A claim that is still Pending.
	n.Claim("copy", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	out, err := runSnapshotImport(t, n, "backup")
	if err == nil {
		user.ViolatedNow(t, "the snapshot was imported")
	}
	for _, word := range []string{"Helm", "--force-managed", "copy"} {
		if !strings.Contains(out, word) {
			t.Errorf("the output does not have %q", word)
		}
	}
	if now := getRealSnapshot(t, n); now.Object.Metadata.UID != before.Object.Metadata.UID || len(now.Content.Metadata.Annotations["storage.liqo.io/import-snapshot"]) > 0 {
		user.Violated(t, "the snapshot was changed: %+v", now)
	}
	if out, err := runSnapshotImport(t, n, "none"); err == nil || !strings.Contains(out, "no such VolumeSnapshot") {
		t.Errorf("%v: %s", err, out)
	}
	startPod(n, "user", "virtual", "liqo-reference")
	n.Snapshot("virtual", "virtual", snapshotClass)
	if out, err := runSnapshotImport(t, n, "virtual"); err == nil || !strings.Contains(out, "of this driver") {
		t.Errorf("%v: %s", err, out)
	}
}

// startSnapshotImport does the first write of an import.
func startSnapshotImport(t *testing.T, n *user.Namespace, before user.Snapshot) {
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

// wantSnapshotUnchanged checks that nothing is left of an import.
func wantSnapshotUnchanged(t *testing.T, n *user.Namespace, before user.Snapshot) {
	t.Helper()
	now := getRealSnapshot(t, n)
	if now.Object.Metadata.UID != before.Object.Metadata.UID || now.Content.Spec.DeletionPolicy != before.Content.Spec.DeletionPolicy {
		t.Errorf("the snapshot was changed: %+v", now)
	}
	for _, object := range []*user.SnapshotObject{now.Object, now.Content} {
		for key := range object.Metadata.Annotations {
			if strings.HasPrefix(key, "storage.liqo.io/") {
				t.Errorf("the annotation %s was not removed from %s", key, object.Metadata.Name)
			}
		}
	}
	if others := otherContents(t, n, before); len(others) > 0 {
		user.Violated(t, "other contents have the same handle: %v", others)
	}
}

// otherContents returns the other contents with the same handle.
func otherContents(t *testing.T, n *user.Namespace, of user.Snapshot) []string {
	t.Helper()
	same := fmt.Sprintf(`jsonpath={.items[?(@.spec.source.snapshotHandle==%q)].metadata.name}`, of.Content.Status.Handle)
	out, err := n.Kubectl("get", "volumesnapshotcontents", "-o", same)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return name == of.Content.Metadata.Name })
}

// If the API server refuses the new snapshot, an import does not start, and is rolled back if it was started.
func TestRefusedImportOfASnapshotChangesNothing(t *testing.T) {
	n := home(t)
	_, before := createRealSnapshot(t, n, "reference")
	n.Quota("snapshots", "count/volumesnapshots.snapshot.storage.k8s.io", "1")
	if out, err := runSnapshotImport(t, n, "backup"); err == nil || !strings.Contains(out, "exceeded quota") {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotUnchanged(t, n, before)

	startSnapshotImport(t, n, before)
	out, err := runSnapshotImport(t, n, "backup")
	if err == nil || !strings.Contains(out, "exceeded quota") || !strings.Contains(out, "rolled back") {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotUnchanged(t, n, before)

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

// The old content is deleted during the import. The undo must not delete the other content then, because nothing else
// refers to the data.
func TestUndoOfASnapshotImportKeepsTheLastContent(t *testing.T) {
	n := home(t)
	_, before := createRealSnapshot(t, n, "reference")
	// The import cannot continue while the twin is not ready.
	removeFault := n.AddFault(storage.Reference, storage.Fault{
		RPC: "ListSnapshots", Match: before.Content.Status.Handle, Code: "Unavailable", Message: "not now",
	})
	var second string
	n.Eventually("the twin of the snapshot is created", func(context.Context) (string, error) {
		out, err := runSnapshotImport(t, n, "backup", "--timeout", "0s")
		if err == nil || !strings.Contains(out, "run the same command again") {
			t.Fatalf("%v: %s", err, out)
		}
		others := otherContents(t, n, before)
		if len(others) != 1 || !strings.Contains(out, "its twin") {
			return fmt.Sprintf("other contents: %v; %s", others, out), nil
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
			t.Fatal("the import was undone")
		}
		for _, word := range []string{before.Content.Spec.Driver, before.Content.Status.Handle, second} {
			if !strings.Contains(out, word) {
				t.Errorf("the output does not have %q", word)
			}
		}
		for _, name := range []string{before.Content.Metadata.Name, second} {
			found, err := user.SnapshotContent(t.Context(), n.Client, name)
			if err != nil || found == nil && name == second || found != nil && found.Spec.DeletionPolicy != "Retain" {
				t.Errorf("the content %s: %+v, %v", name, found, err)
			}
		}
	}

	removeFault()
	// With the snapshot the old content is deleted, and with the last content the data.
	data := storage.BackendOf(n.Cluster, storage.Reference).Data(before.Content.Status.Handle)
	n.DeleteSnapshot("backup")
	n.WaitDeleted("volumesnapshotcontent", before.Content.Metadata.Name)
	if _, err := os.Stat(data); err != nil {
		user.Violated(t, "the data was deleted: %v", err)
	}
	for _, args := range [][]string{
		{"patch", "volumesnapshotcontent", second, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`},
		{"delete", "volumesnapshot", "-n", chart.StorageNamespace, second},
		// The snapshot-controller has only deleted it if it saw the policy in time.
		{"delete", "volumesnapshotcontent", second, "--wait=false", "--ignore-not-found"},
	} {
		if _, err := n.Kubectl(args...); err != nil {
			t.Fatal(err)
		}
	}
	n.WaitDeleted("volumesnapshotcontent", second)
	wantNoSnapshotData(t, n, user.Snapshot{Real: before.Content})
}

// doctor reports an import that cannot finish, for example without csi-snapshotter, and it can be undone.
func TestImportOfASnapshotIsUndone(t *testing.T) {
	n := home(t)
	_, before := createRealSnapshot(t, n, "reference")
	startSnapshotImport(t, n, before)
	if out, _ := liqoCSI(t, n, "doctor"); !strings.Contains(out, "liqo-csi import snapshot "+n.Name+"/backup") {
		t.Errorf("doctor does not report the import:\n%s", out)
	}
	if out, err := runSnapshotImport(t, n, "backup", "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantSnapshotUnchanged(t, n, before)
	n.DeleteSnapshot("backup")
	n.WaitDeleted("volumesnapshotcontent", before.Content.Metadata.Name)
}
