package faults

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

var movedFiles = flag.Int("moved-files", 2000, "number of files in the moves whose controller dies between the commit and the removal of the journal")

// rootTime is the time of the root of these volumes. The removal of the journal changes it, and the mover restores it.
var rootTime = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// The controller crashes after its commit, before the journal is removed from the new volume: the next one removes it.
func (w *walk) moveFinishedByTheNext(t *testing.T, b *remoteSetup) {
	target := w.crashAtCommit(t, b, nil)
	b.waitMoveWithin(t, "Retaining")
	if left := journals(t, target); len(left) > 0 {
		t.Errorf("the journal is left: %v", left)
	}
	wantMovedFiles(t, target, true)
	b.endFinishedMove(t)
}

// The same, and the mover of the target is killed before the next controller runs. The move continues, with complete data,
// and the journal may be left.
func (w *walk) moveFinishedWithoutMover(t *testing.T, b *remoteSetup) {
	target := w.crashAtCommit(t, b, func() { b.killTargetMover(t) })
	b.waitMoveWithin(t, "Retaining")
	t.Logf("what is left of the journal: %v", journals(t, target))
	wantMovedFiles(t, target, false)
	b.endFinishedMove(t)
}

// crashAtCommit moves files to the other cluster. The controller crashes at each write of the status from the drain on,
// until the move is committed; then it calls then at once. It returns the folder of the new volume.
func (w *walk) crashAtCommit(t *testing.T, b *remoteSetup, then func()) (target string) {
	t.Helper()
	b.createWritten(t)
	b.home.DeletePod("writer")
	createMovedFiles(t, storage.BackendOf(b.home.Cluster, storage.Reference).Data(b.home.WaitVolume("data").Real.Spec.CSI.VolumeHandle))
	b.home.Move(moveName, "data", "target: {nodeName: "+b.id+"}, cutover: {mode: Manual}")
	b.waitMoveWithin(t, "Ready")
	target = b.targetFolder()
	b.home.PatchMove(moveName, `{"cutover":{"requested":true,"maxDowntime":"2h"}}`)
	b.waitMoveWithin(t, "Draining", "Finishing")
	for crashes := 1; ; crashes++ {
		controller := w.crashController(t, b.home, []string{"after-move-status"})
		b.waitFileEmpty(t, controller.file)
		stage := b.moveStage(t)
		if stage == "Committed" {
			if then != nil {
				then()
			}
			if len(journals(t, target)) == 0 {
				t.Error("the journal was removed before: this does not test what it should")
			}
			w.waitCrashed(t, b.home, controller)
			t.Logf("%d files: committed at crash %d", *movedFiles, crashes)
			return target
		}
		if !slices.Contains([]string{"Draining", "Finishing", "Verifying", "Gating"}, stage) {
			t.Fatalf("after crash %d the stage is %s: the commit was missed", crashes, stage)
		}
		w.waitCrashed(t, b.home, controller)
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

// moveStage is the stage in the status of the move.
func (b *remoteSetup) moveStage(t *testing.T) (stage string) {
	t.Helper()
	b.home.Eventually("the stage of the move is known", func(ctx context.Context) (string, error) {
		move, err := b.home.Object(ctx, "volumemove", moveName)
		stage = user.Text(move, "status", "stage", "name")
		return "", err
	})
	return stage
}

// waitFileEmpty waits until a process has crashed at all points of a file.
func (b *remoteSetup) waitFileEmpty(t *testing.T, file string) {
	t.Helper()
	for end := time.Now().Add(user.Timeout); ; time.Sleep(20 * time.Millisecond) {
		left, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(left)) == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the process has not crashed: %q, %v", left, err)
		}
	}
}

// waitMoveWithin is WaitMove with time for all files.
func (b *remoteSetup) waitMoveWithin(t *testing.T, phases ...string) {
	t.Helper()
	limit := user.Timeout + time.Duration(*movedFiles/200)*time.Second
	last := "unknown"
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
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

// killTargetMover kills the process of the target's mover, and deletes its pod.
func (b *remoteSetup) killTargetMover(t *testing.T) {
	t.Helper()
	pods := b.remote.Client.CoreV1().Pods(b.remote.Name)
	found, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "storage.liqo.io/move-side=target"})
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, pod := range found.Items {
		for _, container := range pod.Status.ContainerStatuses {
			if _, id, running := strings.Cut(container.ContainerID, "://"); running && container.State.Running != nil {
				if err := killContainer(id); err != nil {
					t.Error(err)
				}
				killed++
			}
		}
	}
	if killed == 0 {
		t.Fatal("no mover of the target runs")
	}
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
