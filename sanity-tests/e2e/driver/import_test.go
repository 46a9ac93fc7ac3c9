package driver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

// Annotations that an import sets on a PersistentVolume and, the last, on a claim.
const (
	importRecord = "storage.liqo.io/import"
	adoptFor     = "storage.liqo.io/adopt-for"
	adopt        = "storage.liqo.io/adopt"
)

func runImport(t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	return runTransfer(t.Context(), t, n, "import", "pvc", claim, args...)
}

func mustImport(t *testing.T, n *user.Namespace, claim string, args ...string) {
	t.Helper()
	if out, err := runImport(t, n, claim, args...); err != nil {
		t.Fatalf("import of %s: %v\n%s", claim, err, out)
	}
}

// createClaimWithData creates a claim with a file in its volume, which is detached.
func createClaimWithData(t *testing.T, n *user.Namespace, name, class string, edits ...func(*corev1.PersistentVolumeClaim)) (sum string, real *corev1.PersistentVolume) {
	t.Helper()
	n.Claim(name, class, "64Mi", edits...)
	n.Pod("before", name)
	n.WaitReady("before")
	sum = writeFile(n, "before")
	real = n.WaitBound(name)
	n.DeletePod("before")
	waitDetached(n, real.Name)
	return sum, real
}

// wantImported checks that a claim has a volume of this driver for the same real volume, and returns it.
func wantImported(t *testing.T, n *user.Namespace, name string, real *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) user.Volume {
	t.Helper()
	found := n.WaitVolume(name)
	if found.Virtual.Spec.CSI == nil || found.Virtual.Spec.CSI.Driver != driver.CSIName {
		t.Errorf("the volume of the claim is not one of this driver: %v", found.Virtual.Spec.PersistentVolumeSource)
	}
	if found.Real.UID != real.UID {
		user.Violated(t, "the real volume is %s, and was %s", found.Real.Name, real.Name)
	}
	wantReclaimPolicy(t, n, real.Name, policy)
	if _, found := n.GetClaim(name).Annotations[adopt]; found {
		t.Errorf("the claim still has the annotation %s, with which a copy of it would request the volume", adopt)
	}
	return found
}

// wantReclaimPolicy checks that a PersistentVolume has this reclaim policy and no annotations of an import.
func wantReclaimPolicy(t *testing.T, n *user.Namespace, name string, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	real, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if real.Spec.PersistentVolumeReclaimPolicy != policy {
		t.Errorf("the reclaim policy is %s, not %s", real.Spec.PersistentVolumeReclaimPolicy, policy)
	}
	for _, key := range []string{importRecord, adoptFor} {
		if _, found := real.Annotations[key]; found {
			t.Errorf("the annotation %s was not removed", key)
		}
	}
}

// wantUnchanged checks that a claim has its real volume, and nothing is left of an import.
func wantUnchanged(t *testing.T, n *user.Namespace, name string, real *corev1.PersistentVolume) {
	t.Helper()
	if now := n.WaitBound(name); now.UID != real.UID {
		user.Violated(t, "the claim has the volume %s, and had %s", now.Name, real.Name)
	}
	claim := n.GetClaim(name)
	if *claim.Spec.StorageClassName != real.Spec.StorageClassName {
		t.Errorf("the class of the claim is %s", *claim.Spec.StorageClassName)
	}
	for key := range claim.Annotations {
		if strings.HasPrefix(key, "storage.liqo.io/") {
			t.Errorf("the claim has the annotation %s", key)
		}
	}
	wantReclaimPolicy(t, n, real.Name, real.Spec.PersistentVolumeReclaimPolicy)
}

// wantFileInNewPod starts a pod with the claim, and compares the file in its volume.
func wantFileInNewPod(t *testing.T, n *user.Namespace, pod, claim, sum string) {
	t.Helper()
	n.Pod(pod, claim)
	wantFile(t, n, pod, sum)
}

// writeFile writes a file to the volume of a pod, and returns its checksum.
func writeFile(n *user.Namespace, pod string) (sum string) {
	n.Exec(pod, "mkdir /data/deep && dd if=/dev/urandom of=/data/deep/file bs=64k count=16 2>/dev/null && sync")
	return n.Exec(pod, "md5sum /data/deep/file")
}

// wantFile waits until a pod is ready, and compares the file in its volume.
func wantFile(t *testing.T, n *user.Namespace, pod, sum string) {
	t.Helper()
	n.WaitReady(pod)
	if got := n.Exec(pod, "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "%s reads %q, want %q", pod, got, sum)
	}
}

func TestImportKeepsTheData(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"reference", "reference-attach", "reference-local", "local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			sum, real := createClaimWithData(t, n, "data", class, func(claim *corev1.PersistentVolumeClaim) {
				claim.Labels = map[string]string{"team": "blue"}
			})
			if out, err := runImport(t, n, "data", "--class", "liqo-"+class, "--dry-run"); err != nil || !strings.Contains(out, "is possible (dry run)") {
				t.Fatalf("%v: %s", err, out)
			}
			wantUnchanged(t, n, "data", real)
			mustImport(t, n, "data", "--class", "liqo-"+class)
			found := wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
			if n.GetClaim("data").Labels["team"] != "blue" {
				t.Error("the claim has lost its label")
			}
			wantFileInNewPod(t, n, "after", "data", sum)
			n.Exec("after", "echo more > /data/more && sync")
			out, _ := liqoCSI(t, n, "volumes", "--namespace", n.Name)
			if !strings.Contains(out, found.Twin.Name) {
				t.Errorf("the volume is not listed: %s", out)
			}
			// The command is idempotent.
			mustImport(t, n, "data", "--class", "liqo-"+class)
			n.DeletePod("after")
			deleteClaim(t, n, "data")
			waitVolumeDeleted(t, n, found)
		})
	}
}

func TestImportOfAStaticVolume(t *testing.T) {
	n := home(t)
	recycleStatic(t, n)
	sum, real := createClaimWithData(t, n, "data", "static-local")
	mustImport(t, n, "data", "--class", "liqo-static-local")
	wantImported(t, n, "data", real, real.Spec.PersistentVolumeReclaimPolicy)
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

func TestImportKeepsTheReclaimPolicy(t *testing.T) {
	t.Parallel()
	t.Run("of a volume that is retained", func(t *testing.T) {
		kept := deleteAtEnd(t)
		n := home(t)
		sum, real := createClaimWithData(t, n, "data", "reference")
		setReclaimPolicy(t, n, real.Name, corev1.PersistentVolumeReclaimRetain)
		mustImport(t, n, "data", "--class", "liqo-reference")
		*kept = wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimRetain)
		wantFileInNewPod(t, n, "after", "data", sum)
		n.DeletePod("after")
		deleteClaim(t, n, "data")
	})
	t.Run("of a class that retains", func(t *testing.T) {
		kept := deleteAtEnd(t)
		n := home(t)
		sum, real := createClaimWithData(t, n, "data", "reference")
		mustImport(t, n, "data", "--class", "liqo-retain")
		*kept = wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimRetain)
		wantFileInNewPod(t, n, "after", "data", sum)
		n.DeletePod("after")
		deleteClaim(t, n, "data")
	})
}

func TestImportOfABlockVolume(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference", "64Mi", user.Block)
	n.Pod("before", "data", user.WithDevice)
	n.WaitReady("before")
	n.Exec("before", "echo kept | dd of=/data bs=512 count=1 conv=sync,fsync")
	real := n.WaitBound("data")
	n.DeletePod("before")
	waitDetached(n, real.Name)
	mustImport(t, n, "data", "--class", "liqo-reference")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	n.Pod("after", "data", user.WithDevice)
	n.WaitReady("after")
	if got := n.Exec("after", "head -c 4 /data"); got != "kept" {
		user.Violated(t, "read %q", got)
	}
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

func TestImportListsEveryBlocker(t *testing.T) {
	n := home(t)
	n.Claim("data", "reference-attach", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"meta.helm.sh/release-name": "shop"}
	})
	n.Pod("user", "data")
	n.WaitReady("user")
	real := n.WaitBound("data")
	out, err := runImport(t, n, "data", "--class", "reference")
	if err == nil {
		user.ViolatedNow(t, "a claim in use was imported")
	}
	for _, wanted := range []string{"the pod user uses the claim", "is attached to the node", "Helm manages the claim", "not one of this driver"} {
		if !strings.Contains(out, wanted) {
			t.Errorf("the output does not have %q: %s", wanted, out)
		}
	}
	wantUnchanged(t, n, "data", real)
	n.DeletePod("user")
	waitDetached(n, real.Name)
	if out, err := runImport(t, n, "data", "--class", "liqo-reference-attach"); err == nil {
		user.ViolatedNow(t, "a claim that Helm manages was imported: %s", out)
	}
	mustImport(t, n, "data", "--class", "liqo-reference-attach", "--force-managed")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	deleteClaim(t, n, "data")
}

// If the quota does not allow the new claim, nothing is deleted.
func TestImportStartsWithADryRun(t *testing.T) {
	n := home(t)
	_, real := createClaimWithData(t, n, "data", "reference")
	n.StorageQuota("small", "64Mi")
	out, err := runImport(t, n, "data", "--class", "liqo-reference")
	if err == nil || !strings.Contains(out, "exceeded quota") {
		t.Errorf("%v: %s", err, out)
	}
	wantUnchanged(t, n, "data", real)
}

func TestImportOfAStatefulSet(t *testing.T) {
	n := home(t)
	sums := createSet(n, "reference")
	reals := map[string]*corev1.PersistentVolume{}
	for pod := range sums {
		reals["data-"+pod] = n.WaitBound("data-" + pod)
	}
	out, err := runImport(t, n, "data-db-1", "--class", "liqo-reference")
	if err == nil || !strings.Contains(out, "the StatefulSet db has a replica 1") {
		t.Fatalf("%v: %s", err, out)
	}
	scaleSet(t, n, "0")
	for claim, real := range reals {
		waitDetached(n, real.Name)
		mustImport(t, n, claim, "--class", "liqo-reference")
		wantImported(t, n, claim, real, corev1.PersistentVolumeReclaimDelete)
	}
	scaleSet(t, n, "2")
	for pod, sum := range sums {
		wantFile(t, n, pod, sum)
	}
	if _, err := n.Kubectl("delete", "statefulset", "db"); err != nil {
		t.Fatal(err)
	}
}

// createSet creates the StatefulSet db with a file in each volume, and returns the checksums by pod.
func createSet(n *user.Namespace, class string) map[string]string {
	n.Apply(fmt.Sprintf(statefulSet, images.BusyboxName, class))
	sums := map[string]string{}
	for _, pod := range []string{"db-0", "db-1"} {
		n.WaitReady(pod)
		sums[pod] = writeFile(n, pod)
	}
	return sums
}

// scaleSet scales the StatefulSet db and, to 0, waits until its pods are deleted.
func scaleSet(t *testing.T, n *user.Namespace, replicas string) {
	t.Helper()
	if _, err := n.Kubectl("scale", "statefulset", "db", "--replicas", replicas); err != nil {
		t.Fatal(err)
	}
	if replicas != "0" {
		return
	}
	n.Eventually("the pods of the set are deleted", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return "they still exist", err
		}
		return "", nil
	})
}

const statefulSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: %s
          imagePullPolicy: IfNotPresent
          command: [sleep, "2147483647"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: %s
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 64Mi}}
`

func TestConcurrentImportsOfOneClaim(t *testing.T) {
	n := home(t)
	sum, real := createClaimWithData(t, n, "data", "reference")
	outcomes := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := runImport(t, n, "data", "--class", "liqo-reference")
			outcomes <- err
		}()
	}
	for range 2 {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// The annotation of a claim grants no access to a volume. Only the administrator's command does.
func TestAdoptAnnotationGrantsNoAccess(t *testing.T) {
	n := home(t)
	sum, real := createClaimWithData(t, n, "data", "reference")
	other := user.NewNamespace(t, n.Cluster)
	other.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{
			adopt: real.Name, "volume.kubernetes.io/selected-node": n.Cluster.Nodes()[0].Name,
		}
	})
	other.WaitEvent("data", "FailedPrecondition", "may be adopted by this claim")
	// Also not while the volume is imported for another claim.
	mustImport(t, n, "data", "--class", "liqo-reference")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	if claim := other.GetClaim("data"); claim.Status.Phase == corev1.ClaimBound {
		user.Violated(t, "the other claim is bound")
	}
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
	deleteClaim(t, other, "data")
}

// A pod that is created during the import of its claim starts after it.
func TestPodCreatedDuringAnImportWaitsForIt(t *testing.T) {
	n := homeSerial(t)
	sum, real := createClaimWithData(t, n, "data", "reference")
	// No node is selected and no volume provisioned.
	restart := stopControllers(t, n)
	done := make(chan error, 1)
	go func() {
		_, err := runImport(t, n, "data", "--class", "liqo-reference")
		done <- err
	}()
	waitRecreated(n, "data", real.Name)
	n.Pod("early", "data")
	restart()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n.WaitReady("early")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantFile(t, n, "early", sum)
	n.DeletePod("early")
	deleteClaim(t, n, "data")
}

// During the import the reclaim policy of the real volume retains the data.
func TestClaimDeletedDuringItsImportKeepsItsData(t *testing.T) {
	n := homeSerial(t)
	sum, real := createClaimWithData(t, n, "data", "reference")
	restart := stopControllers(t, n)
	class := []string{"--class", "liqo-reference"}
	// The first command is killed when it cannot continue. The second reaches its timeout.
	interruptAt(t, func(ctx context.Context) { _, _ = runTransfer(ctx, t, n, "import", "pvc", "data", class...) }, func() { waitRecreated(n, "data", real.Name) })
	if out, err := runImport(t, n, "data", append(class, "--timeout", "5s")...); err == nil || !strings.Contains(out, "The data is safe") {
		t.Fatalf("an import ended without a controller: %v: %s", err, out)
	}
	if out, _ := liqoCSI(t, n, "doctor"); !strings.Contains(out, "import pvc "+n.Name+"/data") {
		t.Errorf("doctor does not list the import: %s", out)
	}
	deleteClaim(t, n, "data")
	restart()
	now, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), real.Name, metav1.GetOptions{})
	if err != nil || now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Fatalf("%v: %v", err, now)
	}
	// It can be undone and repeated.
	if out, err := runImport(t, n, "data", "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantUnchanged(t, n, "data", real)
	wantFileInNewPod(t, n, "middle", "data", sum)
	n.DeletePod("middle")
	waitDetached(n, real.Name)
	mustImport(t, n, "data", "--class", "liqo-reference")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantFileInNewPod(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// waitRecreated waits until an import has recreated the claim for this volume.
func waitRecreated(n *user.Namespace, name, volume string) {
	n.Eventually("the claim is recreated", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil || claim.Annotations[adopt] != volume {
			return "it is not", err
		}
		return "", nil
	})
}

// stopControllers stops the driver's controllers until restart is called.
func stopControllers(t *testing.T, n *user.Namespace) (restart func()) {
	t.Helper()
	deployments := n.Client.AppsV1().Deployments(chart.Namespace)
	list, err := deployments.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v: %d Deployments of the controller", err, len(list.Items))
	}
	controller := list.Items[0]
	scale := func(ctx context.Context, replicas int32) error {
		found, err := deployments.GetScale(ctx, controller.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.Replicas = replicas
		_, err = deployments.UpdateScale(ctx, controller.Name, found, metav1.UpdateOptions{})
		return err
	}
	before := *controller.Spec.Replicas
	if err := scale(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	restart = sync.OnceFunc(func() {
		if err := scale(context.Background(), before); err != nil && !apierrors.IsConflict(err) {
			t.Error(err)
		}
	})
	t.Cleanup(restart)
	n.Eventually("the pods of the controller are deleted", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		if err != nil || len(pods.Items) > 0 {
			return "they still exist", err
		}
		return "", nil
	})
	return restart
}
