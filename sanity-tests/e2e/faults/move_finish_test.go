package faults

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

var movedFiles = flag.Int("moved-files", 2000, "number of files in the moves whose controller dies between the commit and the removal of the journal")

// rootTime is the time of the root of these volumes. The removal of the journal changes it, and the mover restores it.
var rootTime = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// The controller is killed after its commit, before the journal is removed from the new volume: the next one removes it.
func (w *walk) moveFinishedByTheNext(t *testing.T, b *remoteSetup) {
	target := b.killAtCommit(t, false)
	b.waitMoveWithin(t, "Retaining")
	if left := journals(t, target); len(left) > 0 {
		t.Errorf("the journal is left: %v", left)
	}
	wantMovedFiles(t, target, true)
	b.endFinishedMove(t)
}

// The same, and the mover of the target is killed too. The move continues, with complete data, and the journal may be left.
func (w *walk) moveFinishedWithoutMover(t *testing.T, b *remoteSetup) {
	target := b.killAtCommit(t, true)
	b.waitMoveWithin(t, "Retaining")
	t.Logf("what is left of the journal: %v", journals(t, target))
	wantMovedFiles(t, target, false)
	b.endFinishedMove(t)
}

// killAtCommit moves files to the other cluster, and kills the controller, and the mover of the target if told so, as soon
// as the move is committed. It returns the folder of the new volume.
func (b *remoteSetup) killAtCommit(t *testing.T, moverToo bool) (target string) {
	t.Helper()
	b.createWritten(t)
	b.home.DeletePod("writer")
	createMovedFiles(t, storage.BackendOf(b.home.Cluster, storage.Reference).Data(b.home.WaitVolume("data").Real.Spec.CSI.VolumeHandle))
	began := time.Now()
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, cutover: {mode: Manual, maxDowntime: 2h}")
	b.waitMoveWithin(t, "Ready")
	t.Logf("%d files: copied after %s", *movedFiles, time.Since(began).Round(time.Second))
	target = b.targetFolder()
	mover := b.targetMover(t)
	installed, err := bench.Find(t.Context(), b.home.Client)
	if err != nil {
		t.Fatal(err)
	}
	// The only replica: a wait would be too slow then.
	controllers, err := installed.Processes(bench.Controller)
	if err != nil || len(controllers) != 1 {
		t.Fatalf("there are %d controllers: %v", len(controllers), err)
	}
	waitCommitted := b.watchCommit(t)
	b.home.PatchMove(moveName, `{"cutover":{"requested":true}}`)
	waitCommitted()
	err = syscall.Kill(controllers[0].PID, syscall.SIGKILL)
	if moverToo {
		err = errors.Join(err, killContainer(mover))
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(journals(t, target)) == 0 {
		t.Error("the journal was removed before: this does not test what it should")
	}
	return target
}

// watchCommit watches the move. The returned function returns as soon as it is committed.
func (b *remoteSetup) watchCommit(t *testing.T) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), moveLimit())
	t.Cleanup(cancel)
	events, err := b.home.Client.Discovery().RESTClient().Get().
		AbsPath("/apis/storage.liqo.io/v1alpha1/namespaces", b.home.Name, "volumemoves").Param("watch", "true").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer events.Close()
		for decoder := json.NewDecoder(events); ; {
			var event struct {
				Object struct {
					Status struct{ Stage struct{ Name string } }
				}
			}
			if err := decoder.Decode(&event); err != nil {
				t.Fatalf("watch the move until it is committed: %v", err)
			}
			switch event.Object.Status.Stage.Name {
			case "Committed":
				return
			case "Returning", "Retaining":
				t.Fatalf("the commit was missed: the move is %s", event.Object.Status.Stage.Name)
			}
		}
	}
}

func (b *remoteSetup) endFinishedMove(t *testing.T) {
	t.Helper()
	b.readRemotely(t)
	b.home.PatchMove(moveName, `{"retainSource":"1s"}`)
	b.home.WaitMove(moveName, "Done")
	b.waitOneTwinEach()
	b.discard()
}

// moveLimit is for passes over all files.
func moveLimit() time.Duration { return user.Timeout + time.Duration(*movedFiles/200)*time.Second }

// waitMoveWithin is WaitMove with time for all files.
func (b *remoteSetup) waitMoveWithin(t *testing.T, phases ...string) {
	t.Helper()
	last := "unknown"
	for end := time.Now().Add(moveLimit()); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		phase, status, err := b.home.MoveStatus(t.Context(), moveName)
		if slices.Contains(phases, phase) {
			return
		}
		if last = status; err != nil {
			last = err.Error()
		}
		if slices.Contains([]string{"Done", "Cancelled", "Failed"}, phase) {
			break
		}
	}
	t.Fatalf("the move is not %v: %s", phases, last)
}

// targetMover returns the id of the container of the target's mover.
func (b *remoteSetup) targetMover(t *testing.T) (container string) {
	t.Helper()
	found, err := b.remote.Client.CoreV1().Pods(b.remote.Name).List(t.Context(), metav1.ListOptions{LabelSelector: "storage.liqo.io/move-side=target"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range found.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if _, id, running := strings.Cut(status.ContainerID, "://"); running && status.State.Running != nil {
				return id
			}
		}
	}
	t.Fatalf("no mover of the target runs among %d pods", len(found.Items))
	return ""
}

// targetFolder returns the host's path of the new volume while it is copied.
func (b *remoteSetup) targetFolder() (folder string) {
	b.home.Eventually("the new volume is bound", func(ctx context.Context) (string, error) {
		move, err := b.home.Object(ctx, "volumemove", moveName)
		if err != nil {
			return "", err
		}
		claims, _, _ := unstructured.NestedSlice(move.Object, "status", "claims")
		if len(claims) != 1 {
			return fmt.Sprintf("the status has %d claims", len(claims)), nil
		}
		claim, _ := claims[0].(map[string]any)
		name, _, _ := unstructured.NestedString(claim, "target", "name")
		namespace, _, _ := unstructured.NestedString(claim, "target", "namespace")
		twin, err := b.remote.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		real, err := b.remote.Client.CoreV1().PersistentVolumes().Get(ctx, twin.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		folder = storage.BackendOf(b.remote.Cluster, storage.Reference).Data(real.Spec.CSI.VolumeHandle)
		return "", nil
	})
	return folder
}

func journals(t *testing.T, root string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(root, ".liqo-move-*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// movedFile returns the name of a file, which has its number as content.
func movedFile(root string, number int) string {
	return filepath.Join(root, "many", strconv.Itoa(number/1000), strconv.Itoa(number))
}

func createMovedFiles(t *testing.T, root string) {
	t.Helper()
	for number := range *movedFiles {
		name := movedFile(root, number)
		if number%1000 == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(name, []byte(strconv.Itoa(number)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(root, rootTime, rootTime); err != nil {
		t.Fatal(err)
	}
}

// wantMovedFiles checks that the new volume has all files and no others and, with the journal removed, the root's time.
func wantMovedFiles(t *testing.T, root string, isComplete bool) {
	t.Helper()
	for number := range *movedFiles {
		if text, err := os.ReadFile(movedFile(root, number)); err != nil || string(text) != strconv.Itoa(number) {
			user.Violated(t, "file %d has %q: %v", number, text, err)
			return
		}
	}
	count := 0
	err := filepath.WalkDir(filepath.Join(root, "many"), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			count++
		}
		return err
	})
	if err != nil || count != *movedFiles {
		user.Violated(t, "the new volume has %d files, not %d: %v", count, *movedFiles, err)
	}
	info, err := os.Stat(root)
	if err != nil {
		t.Fatal(err)
	}
	if isComplete && !info.ModTime().Equal(rootTime) {
		user.Violated(t, "the root has the time %s, not %s", info.ModTime(), rootTime)
	}
	if !isComplete {
		t.Logf("the root has the time %s, and had %s", info.ModTime(), rootTime)
	}
}
