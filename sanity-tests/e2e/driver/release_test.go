package driver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

// runRelease runs the command as an administrator would.
func runRelease(t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	return runReleaseUntil(t.Context(), t, n, claim, args...)
}

// runReleaseUntil kills the command when ctx ends.
func runReleaseUntil(ctx context.Context, t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		return "", err
	}
	args = append([]string{"release", "pvc", n.Name + "/" + claim, "--kubeconfig", n.Cluster.Kubeconfig()}, args...)
	if !slices.Contains(args, "--timeout") {
		args = append(args, "--timeout", "3m")
	}
	// None has a --timeout that is longer than user.Timeout.
	ctx, cancel := context.WithTimeout(ctx, 2*user.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	t.Logf("liqo-csi %s: %v\n%s", strings.Join(args[:3], " "), err, out)
	return string(out), err
}

func mustRelease(t *testing.T, n *user.Namespace, claim string, args ...string) {
	t.Helper()
	if out, err := runRelease(t, n, claim, args...); err != nil {
		t.Fatalf("release of %s: %v\n%s", claim, err, out)
	}
}

// virtual is a claim of the driver that a pod has written to, and left.
func virtual(t *testing.T, n *user.Namespace, name, class string) (sum string, found user.Volume) {
	t.Helper()
	sum, _ = filled(t, n, name, class)
	found = n.WaitVolume(name)
	waitRealDetached(n, found.Real.Name)
	return sum, found
}

// wantReleased is that a claim has the real volume, and nothing of the driver is left.
func wantReleased(t *testing.T, n *user.Namespace, name string, was user.Volume, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	now := n.WaitBound(name)
	if now.UID != was.Real.UID {
		user.Violated(t, "the claim has the volume %s, and not %s", now.Name, was.Real.Name)
	}
	claim := claimOf(t, n, name)
	if *claim.Spec.StorageClassName != was.Real.Spec.StorageClassName {
		t.Errorf("the claim has the class %s", *claim.Spec.StorageClassName)
	}
	for key := range claim.Annotations {
		if strings.HasPrefix(key, "storage.liqo.io/") {
			t.Errorf("the claim has the annotation %s", key)
		}
	}
	if now.Spec.PersistentVolumeReclaimPolicy != policy {
		t.Errorf("the reclaim policy is %s, not %s", now.Spec.PersistentVolumeReclaimPolicy, policy)
	}
	for key := range now.Annotations {
		if strings.HasPrefix(key, "storage.liqo.io/") {
			t.Errorf("the volume has the annotation %s", key)
		}
	}
	volumes := n.Client.CoreV1().PersistentVolumes()
	if _, err := volumes.Get(t.Context(), was.Virtual.Name, metav1.GetOptions{}); err == nil {
		user.Violated(t, "the virtual volume is left")
	}
	twins := n.Client.CoreV1().PersistentVolumeClaims(was.Twin.Namespace)
	if _, err := twins.Get(t.Context(), was.Twin.Name, metav1.GetOptions{}); err == nil {
		user.Violated(t, "the twin is left")
	}
}

func TestReleaseKeepsTheData(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"reference", "reference-attach", "reference-local", "local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			sum, was := virtual(t, n, "data", "liqo-"+class)
			if out, err := runRelease(t, n, "data", "--dry-run"); err != nil || !strings.Contains(out, "is possible (dry run)") {
				t.Fatalf("%v: %s", err, out)
			}
			mustRelease(t, n, "data")
			wantWoken(t, n, "data")
			wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
			wantSum(t, n, "after", "data", sum)
			// Again, there is nothing to do.
			if out, err := runRelease(t, n, "data"); err != nil || !strings.Contains(out, "no volume of this driver") {
				t.Errorf("%v: %s", err, out)
			}
			// And back.
			n.DeletePod("after")
			waitRealDetached(n, was.Real.Name)
			mustImport(t, n, "data", "--class", "liqo-"+class)
			wantSum(t, n, "again", "data", sum)
			n.DeletePod("again")
			deleteClaim(t, n, "data")
		})
	}
}

// wantWoken is that the driver wrote on a claim after it had made it: that makes Kubernetes look at it, and
// not only in the next round of kube-controller-manager, which comes every 15 seconds. Nothing else makes
// the command write on it; that it does so before it waits for Kubernetes is shown by its unit tests.
func wantWoken(t *testing.T, n *user.Namespace, name string) {
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
			break // what follows is being written
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
			who, _, _ := strings.Cut(request.UserAgent, "/")
			verbs = append(verbs, request.Verb+" by "+who)
		}
	}
	made := slices.Index(verbs, "delete by liqo-csi")
	if made < 0 || !slices.Contains(verbs[made:], "create by liqo-csi") {
		t.Fatalf("the claim was not made again: %q", verbs)
	}
	made += slices.Index(verbs[made:], "create by liqo-csi")
	if !slices.Contains(verbs[made:], "patch by liqo-csi") {
		t.Errorf("Kubernetes was not made to look at the claim: %q", verbs)
	}
}

func TestReleaseKeepsTheReclaimPolicy(t *testing.T) {
	n := home(t)
	sum, was := virtual(t, n, "data", "liqo-retain")
	mustRelease(t, n, "data")
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimRetain)
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	setPolicy(t, n, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	deleteClaim(t, n, "data")
}

func TestReleaseTellsAllThatSpeaksAgainstIt(t *testing.T) {
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
			t.Errorf("%q is not told: %s", wanted, out)
		}
	}
	if now := n.WaitVolume("data"); now.Real.UID != was.Real.UID {
		user.Violated(t, "the claim was changed")
	}
	n.DeletePod("user")
	deleteClaim(t, n, "data")
}

// Between two steps the claim is there and cannot be used; undone, it can.
func TestReleaseIsUndone(t *testing.T) {
	n := home(t)
	sum, was := virtual(t, n, "data", "liqo-reference")
	mark := `{"metadata":{"annotations":{"storage.liqo.io/releasing":"` + n.Name + `/data"}}}`
	if _, err := n.Kubectl("patch", "pvc", was.Twin.Name, "--namespace", was.Twin.Namespace, "--type", "merge", "--patch", mark); err != nil {
		t.Fatal(err)
	}
	if out, _ := look(t, n, "doctor"); !strings.Contains(out, "release pvc "+n.Name+"/data --undo") {
		t.Errorf("doctor does not list the release: %s", out)
	}
	// A pod that comes now waits, and has the release taken back.
	n.Pod("early", "data")
	out, err := runRelease(t, n, "data")
	if err == nil || !strings.Contains(out, "the pod early uses the claim") || !strings.Contains(out, "rolled back") {
		t.Errorf("%v: %s", err, out)
	}
	n.WaitReady("early")
	if got := n.Exec("early", "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "read %q, wrote %q", got, sum)
	}
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
	waitRealDetached(n, was.Virtual.Name)
	waitRealDetached(n, was.Real.Name)
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
	set := strings.Replace(importedSet, "storageClassName: reference", "storageClassName: liqo-reference", 1)
	n.Apply(fmt.Sprintf(set, images.BusyboxName))
	sums := map[string]string{}
	volumes := map[string]user.Volume{}
	for _, pod := range []string{"db-0", "db-1"} {
		n.WaitReady(pod)
		n.Exec(pod, "mkdir /data/deep && dd if=/dev/urandom of=/data/deep/file bs=64k count=8 2>/dev/null && sync")
		sums[pod] = n.Exec(pod, "md5sum /data/deep/file")
		volumes["data-"+pod] = n.WaitVolume("data-" + pod)
	}
	out, err := runRelease(t, n, "data-db-1")
	if err == nil || !strings.Contains(out, "the StatefulSet db has a replica 1") {
		t.Fatalf("%v: %s", err, out)
	}
	scale := func(replicas string) {
		if _, err := n.Kubectl("scale", "statefulset", "db", "--replicas", replicas); err != nil {
			t.Fatal(err)
		}
	}
	scale("0")
	n.Eventually("the pods of the set are gone", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return "they are not", err
		}
		return "", nil
	})
	for claim, was := range volumes {
		waitRealDetached(n, was.Virtual.Name)
		waitRealDetached(n, was.Real.Name)
		mustRelease(t, n, claim)
		wantReleased(t, n, claim, was, corev1.PersistentVolumeReclaimDelete)
	}
	scale("2")
	for pod, sum := range sums {
		n.WaitReady(pod)
		if got := n.Exec(pod, "md5sum /data/deep/file"); got != sum {
			user.Violated(t, "%s reads %q, wrote %q", pod, got, sum)
		}
	}
	if _, err := n.Kubectl("delete", "statefulset", "db"); err != nil {
		t.Fatal(err)
	}
}

// There and back again, and there once more: the volume and its data are the same.
func TestImportReleaseImport(t *testing.T) {
	n := home(t)
	sum, real := filled(t, n, "data", "reference-attach")
	mustImport(t, n, "data", "--class", "liqo-reference-attach")
	was := wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	mustRelease(t, n, "data")
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
	wantAsBefore(t, n, "data", real)
	mustImport(t, n, "data", "--class", "liqo-reference-attach")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// hold keeps a virtual volume that is deleted from going until it is let go.
func hold(t *testing.T, n *user.Namespace, volume string, held bool) {
	t.Helper()
	const finalizer = "sanity-tests.liqo.io/held"
	volumes := n.Client.CoreV1().PersistentVolumes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found, err := volumes.Get(t.Context(), volume, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Finalizers = slices.DeleteFunc(found.Finalizers, func(one string) bool { return one == finalizer })
		if held {
			found.Finalizers = append(found.Finalizers, finalizer)
		}
		_, err = volumes.Update(t.Context(), found, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func waitNoClaim(n *user.Namespace, name string) {
	n.Eventually("the claim "+name+" is gone", func(ctx context.Context) (string, error) {
		_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
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

// interrupted runs a command until something has been reached, and kills it then.
func interrupted(t *testing.T, command func(ctx context.Context), reached func()) {
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

// wantSameVolume wants the claim data to have this volume again, whose twin has the name that the
// claim of before gave it.
func wantSameVolume(t *testing.T, n *user.Namespace, was user.Volume) {
	t.Helper()
	if claim := claimOf(t, n, "data"); claim.Spec.VolumeName != was.Virtual.Name {
		user.Violated(t, "the claim has the volume %s, had %s", claim.Spec.VolumeName, was.Virtual.Name)
	}
	twin, err := n.Client.CoreV1().PersistentVolumeClaims(was.Twin.Namespace).Get(t.Context(), was.Twin.Name, metav1.GetOptions{})
	if err != nil || twin.UID != was.Twin.UID || twin.Spec.VolumeName != was.Real.Name {
		t.Errorf("the twin is another one: %v, %v", twin, err)
	}
}

// A pod that comes while there is no claim waits, and gets the data whichever way the release goes.
func TestPodThatComesDuringAReleaseIsServed(t *testing.T) {
	n := home(t)
	sum, was := virtual(t, n, "data", "liqo-reference-attach")
	hold(t, n, was.Virtual.Name, true)
	// It gets as far as it can and is ended there; run again, it waits, however short its time is.
	interrupted(t, func(ctx context.Context) { _, _ = runReleaseUntil(ctx, t, n, "data") }, func() { waitDeleting(n, was.Virtual.Name) })
	if out, err := runRelease(t, n, "data", "--timeout", "5s"); err == nil || !strings.Contains(out, "The data is safe") {
		t.Fatalf("%v: %s", err, out)
	}
	if out, _ := look(t, n, "doctor"); !strings.Contains(out, "release pvc "+n.Name+"/data --undo") {
		t.Errorf("doctor does not list the release: %s", out)
	}
	waitNoClaim(n, "data")
	n.Pod("early", "data")
	undone := make(chan error, 1)
	go func() {
		_, err := runRelease(t, n, "data", "--undo")
		undone <- err
	}()
	hold(t, n, was.Virtual.Name, false)
	if err := <-undone; err != nil {
		t.Fatal(err)
	}
	n.WaitReady("early")
	if got := n.Exec("early", "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "read %q, wrote %q", got, sum)
	}
	wantSameVolume(t, n, was)
	wantPolicy(t, n, was.Real.Name, corev1.PersistentVolumeReclaimDelete)
	wantPolicy(t, n, was.Virtual.Name, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("early")
	waitRealDetached(n, was.Virtual.Name)
	waitRealDetached(n, was.Real.Name)

	hold(t, n, was.Virtual.Name, true)
	released := make(chan error, 1)
	go func() {
		_, err := runRelease(t, n, "data")
		released <- err
	}()
	waitNoClaim(n, "data")
	n.Pod("late", "data")
	waitDeleting(n, was.Virtual.Name)
	hold(t, n, was.Virtual.Name, false)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	n.WaitReady("late")
	if got := n.Exec("late", "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "read %q, wrote %q", got, sum)
	}
	wantReleased(t, n, "data", was, corev1.PersistentVolumeReclaimDelete)
	n.DeletePod("late")
	deleteClaim(t, n, "data")
}
