package driver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func runRelease(t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	return runTransfer(t.Context(), t, n, "release", "pvc", claim, args...)
}

func mustRelease(t *testing.T, n *user.Namespace, claim string, args ...string) {
	t.Helper()
	if out, err := runRelease(t, n, claim, args...); err != nil {
		t.Fatalf("release of %s: %v\n%s", claim, err, out)
	}
}

// createVolumeWithData is createClaimWithData for a virtual class.
func createVolumeWithData(t *testing.T, n *user.Namespace, name, class string) (sum string, found user.Volume) {
	t.Helper()
	sum, _ = createClaimWithData(t, n, name, class)
	found = n.WaitVolume(name)
	waitDetached(n, found.Real.Name)
	return sum, found
}

// wantReleased checks that a claim has the real volume, and nothing of the driver is left.
func wantReleased(t *testing.T, n *user.Namespace, name string, was user.Volume, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	now := n.WaitBound(name)
	if now.UID != was.Real.UID {
		user.Violated(t, "the claim has the volume %s, want %s", now.Name, was.Real.Name)
	}
	claim := n.GetClaim(name)
	if *claim.Spec.StorageClassName != was.Real.Spec.StorageClassName {
		t.Errorf("the class of the claim is %s", *claim.Spec.StorageClassName)
	}
	if now.Spec.PersistentVolumeReclaimPolicy != policy {
		t.Errorf("the reclaim policy is %s, not %s", now.Spec.PersistentVolumeReclaimPolicy, policy)
	}
	for _, annotations := range []map[string]string{claim.Annotations, now.Annotations} {
		for key := range annotations {
			if strings.HasPrefix(key, "storage.liqo.io/") {
				t.Errorf("the claim or its volume has the annotation %s", key)
			}
		}
	}
	volumes := n.Client.CoreV1().PersistentVolumes()
	if _, err := volumes.Get(t.Context(), was.Virtual.Name, metav1.GetOptions{}); err == nil {
		user.Violated(t, "the virtual volume was not deleted")
	}
	twins := n.Client.CoreV1().PersistentVolumeClaims(was.Twin.Namespace)
	if _, err := twins.Get(t.Context(), was.Twin.Name, metav1.GetOptions{}); err == nil {
		user.Violated(t, "the twin was not deleted")
	}
}

func TestReleaseKeepsTheData(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"reference", "reference-attach", "reference-local", "local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			sum, was := createVolumeWithData(t, n, "data", "liqo-"+class)
			if out, err := runRelease(t, n, "data", "--dry-run"); err != nil || !strings.Contains(out, "is possible (dry run)") {
				t.Fatalf("%v: %s", err, out)
			}
			mustRelease(t, n, "data")
			wantClaimPatched(t, n, "data")
			wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
			wantFileInNewPod(t, n, "after", "data", sum)
			// The command is idempotent.
			if out, err := runRelease(t, n, "data"); err != nil || !strings.Contains(out, "no volume of this driver") {
				t.Errorf("%v: %s", err, out)
			}
			n.DeletePod("after")
			waitDetached(n, was.Real.Name)
			mustImport(t, n, "data", "--class", "liqo-"+class)
			wantFileInNewPod(t, n, "imported", "data", sum)
			n.DeletePod("imported")
			deleteClaim(t, n, "data")
		})
	}
}

// wantClaimPatched checks in the audit log that the command patched the claim which it created. With this event
// kube-controller-manager binds the claim at once, and not at its next resync after up to 15 seconds. Unit tests check
// that the command does not wait before.
func wantClaimPatched(t *testing.T, n *user.Namespace, name string) {
	t.Helper()
	log, err := os.Open(n.Cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var verbs []string
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // an incomplete line
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(line, []byte(n.Name)) {
			continue
		}
		var request struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Namespace, Name string }
			ResponseStatus  struct{ Code int }
		}
		if err := json.Unmarshal(line, &request); err != nil {
			t.Fatal(err)
		}
		of := request.ObjectRef
		isWrite := slices.Contains([]string{"create", "patch", "update", "delete"}, request.Verb) && request.ResponseStatus.Code < 300
		if isWrite && of.Resource == "persistentvolumeclaims" && of.Namespace == n.Name && of.Name == name {
			client, _, _ := strings.Cut(request.UserAgent, "/")
			verbs = append(verbs, request.Verb+" by "+client)
		}
	}
	index := slices.Index(verbs, "delete by liqo-csi")
	if index < 0 || !slices.Contains(verbs[index:], "create by liqo-csi") {
		t.Fatalf("the claim was not recreated: %q", verbs)
	}
	index += slices.Index(verbs[index:], "create by liqo-csi")
	if !slices.Contains(verbs[index:], "patch by liqo-csi") {
		t.Errorf("the claim was not patched after its creation: %q", verbs)
	}
}

func TestReleaseKeepsTheReclaimPolicy(t *testing.T) {
	n := home(t)
	sum, was := createVolumeWithData(t, n, "data", "liqo-retain")
	mustRelease(t, n, "data")
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimRetain)
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	setReclaimPolicy(t, n, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	deleteClaim(t, n, "data")
}

func TestReleaseListsEveryBlocker(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference-attach", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"meta.helm.sh/release-name": "shop"}
	})
	n.Pod("user", "data")
	n.WaitReady("user")
	was := n.WaitVolume("data")
	out, err := runRelease(t, n, "data")
	if err == nil {
		user.ViolatedNow(t, "a claim in use was released")
	}
	for _, wanted := range []string{
		"the pod user uses the claim", "Helm manages the claim",
		"the PersistentVolume " + was.Virtual.Name + " is attached", "the PersistentVolume " + was.Real.Name + " is attached",
	} {
		if !strings.Contains(out, wanted) {
			t.Errorf("the output does not have %q: %s", wanted, out)
		}
	}
	if now := n.WaitVolume("data"); now.Real.UID != was.Real.UID {
		user.Violated(t, "the claim was changed")
	}
	n.DeletePod("user")
	deleteClaim(t, n, "data")
}

// The claim cannot be used during a release, and can when the release is undone.
func TestReleaseIsUndone(t *testing.T) {
	n := home(t)
	sum, was := createVolumeWithData(t, n, "data", "liqo-reference")
	mark := `{"metadata":{"annotations":{"storage.liqo.io/releasing":"` + n.Name + `/data"}}}`
	if _, err := n.Kubectl("patch", "pvc", was.Twin.Name, "--namespace", was.Twin.Namespace, "--type", "merge", "--patch", mark); err != nil {
		t.Fatal(err)
	}
	if out, _ := liqoCSI(t, n, "doctor"); !strings.Contains(out, "release pvc "+n.Name+"/data --undo") {
		t.Errorf("doctor does not list the release: %s", out)
	}
	// A pod that is created now waits, and the release is rolled back for it.
	n.Pod("early", "data")
	out, err := runRelease(t, n, "data")
	if err == nil || !strings.Contains(out, "the pod early uses the claim") || !strings.Contains(out, "rolled back") {
		t.Errorf("%v: %s", err, out)
	}
	wantFile(t, n, "early", sum)
	wantSameVolume(t, n, was)
	n.DeletePod("early")
	deleteClaim(t, n, "data")
}

func TestReleaseOfABlockVolume(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi", user.Block)
	n.Pod("before", "data", user.WithDevice)
	n.WaitReady("before")
	n.Exec("before", "echo kept | dd of=/data bs=512 count=1 conv=sync,fsync")
	was := n.WaitVolume("data")
	n.DeletePod("before")
	waitDetached(n, was.Virtual.Name, was.Real.Name)
	mustRelease(t, n, "data")
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
	n.Pod("after", "data", user.WithDevice)
	n.WaitReady("after")
	if got := n.Exec("after", "head -c 4 /data"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

func TestReleaseOfAStatefulSet(t *testing.T) {
	n := home(t)
	sums := createSet(n, "liqo-reference")
	volumes := map[string]user.Volume{}
	for pod := range sums {
		volumes["data-"+pod] = n.WaitVolume("data-" + pod)
	}
	out, err := runRelease(t, n, "data-db-1")
	if err == nil || !strings.Contains(out, "the StatefulSet db has a replica 1") {
		t.Fatalf("%v: %s", err, out)
	}
	scaleSet(t, n, "0")
	for claim, was := range volumes {
		waitDetached(n, was.Virtual.Name, was.Real.Name)
		mustRelease(t, n, claim)
		wantReleased(t, n, claim, was, corev1.PersistentVolumeReclaimDelete)
	}
	scaleSet(t, n, "2")
	for pod, sum := range sums {
		wantFile(t, n, pod, sum)
	}
	if _, err := n.Kubectl("delete", "statefulset", "db"); err != nil {
		t.Fatal(err)
	}
}

// The real volume and its data remain the same.
func TestImportReleaseImport(t *testing.T) {
	n := home(t)
	sum, real := createClaimWithData(t, n, "data", "reference-attach")
	mustImport(t, n, "data", "--class", "liqo-reference-attach")
	was := wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	mustRelease(t, n, "data")
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
	wantUnchanged(t, n, "data", real)
	mustImport(t, n, "data", "--class", "liqo-reference-attach")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// setFinalizer adds or removes a finalizer of a PersistentVolume.
func setFinalizer(t *testing.T, n *user.Namespace, volume string, present bool) {
	t.Helper()
	const finalizer = "sanity-tests.liqo.io/test"
	volumes := n.Client.CoreV1().PersistentVolumes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found, err := volumes.Get(t.Context(), volume, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Finalizers = slices.DeleteFunc(found.Finalizers, func(one string) bool { return one == finalizer })
		if present {
			found.Finalizers = append(found.Finalizers, finalizer)
		}
		_, err = volumes.Update(t.Context(), found, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// waitDeleting waits until a PersistentVolume is being deleted.
func waitDeleting(n *user.Namespace, volume string) {
	n.Eventually("the virtual volume is being deleted", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if err != nil || found.DeletionTimestamp == nil {
			return "it is not", err
		}
		return "", nil
	})
}

// interruptAt runs a command and kills it when reached returns.
func interruptAt(t *testing.T, command func(ctx context.Context), reached func()) {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		command(ctx)
	}()
	defer func() {
		kill()
		<-ended
	}()
	reached()
}

// wantSameVolume checks that the claim data has this volume again. The twin has the name that comes from the old claim.
func wantSameVolume(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	if claim := n.GetClaim("data"); claim.Spec.VolumeName != was.Virtual.Name {
		user.Violated(t, "the claim has the volume %s, and had %s", claim.Spec.VolumeName, was.Virtual.Name)
	}
	twin, err := n.Client.CoreV1().PersistentVolumeClaims(was.Twin.Namespace).Get(t.Context(), was.Twin.Name, metav1.GetOptions{})
	if err != nil || twin.UID != was.Twin.UID || twin.Spec.VolumeName != was.Real.Name {
		t.Errorf("the twin was replaced: %v, %v", twin, err)
	}
}

// A pod that is created while its claim does not exist gets the data, whether the release is undone or finished.
func TestPodCreatedDuringAReleaseStarts(t *testing.T) {
	n := home(t)
	sum, was := createVolumeWithData(t, n, "data", "liqo-reference-attach")
	setFinalizer(t, n, was.Virtual.Name, true)
	// The first command is killed when it cannot continue. The second reaches its timeout.
	interruptAt(t, func(ctx context.Context) { _, _ = runTransfer(ctx, t, n, "release", "pvc", "data") }, func() { waitDeleting(n, was.Virtual.Name) })
	if out, err := runRelease(t, n, "data", "--timeout", "5s"); err == nil || !strings.Contains(out, "The data is safe") {
		t.Fatalf("%v: %s", err, out)
	}
	if out, _ := liqoCSI(t, n, "doctor"); !strings.Contains(out, "release pvc "+n.Name+"/data --undo") {
		t.Errorf("doctor does not list the release: %s", out)
	}
	n.WaitDeleted("pvc", "data")
	n.Pod("early", "data")
	undone := make(chan error, 1)
	go func() {
		_, err := runRelease(t, n, "data", "--undo")
		undone <- err
	}()
	setFinalizer(t, n, was.Virtual.Name, false)
	if err := <-undone; err != nil {
		t.Fatal(err)
	}
	wantFile(t, n, "early", sum)
	wantSameVolume(t, n, was)
	wantReclaimPolicy(t, n, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	wantReclaimPolicy(t, n, was.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("early")
	waitDetached(n, was.Virtual.Name, was.Real.Name)

	setFinalizer(t, n, was.Virtual.Name, true)
	released := make(chan error, 1)
	go func() {
		_, err := runRelease(t, n, "data")
		released <- err
	}()
	n.WaitDeleted("pvc", "data")
	n.Pod("late", "data")
	waitDeleting(n, was.Virtual.Name)
	setFinalizer(t, n, was.Virtual.Name, false)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	wantFile(t, n, "late", sum)
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("late")
	deleteClaim(t, n, "data")
}
