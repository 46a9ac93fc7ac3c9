package driver

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

// What an import writes on a PersistentVolume.
const (
	importRecord = "storage.liqo.io/import"
	adoptFor     = "storage.liqo.io/adopt-for"
	adopt        = "storage.liqo.io/adopt"
)

// runImport runs the command as an administrator would.
func runImport(t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	return runImportUntil(t.Context(), t, n, claim, args...)
}

// runImportUntil kills the command when ctx ends.
func runImportUntil(ctx context.Context, t *testing.T, n *user.Namespace, claim string, args ...string) (string, error) {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		return "", err
	}
	args = append([]string{"import", "pvc", n.Name + "/" + claim, "--kubeconfig", n.Cluster.Kubeconfig()}, args...)
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

func mustImport(t *testing.T, n *user.Namespace, claim string, args ...string) {
	t.Helper()
	if out, err := runImport(t, n, claim, args...); err != nil {
		t.Fatalf("import of %s: %v\n%s", claim, err, out)
	}
}

// filled is a claim of a real class that a pod has written to, and left.
func filled(t *testing.T, n *user.Namespace, name, class string, edits ...func(*corev1.PersistentVolumeClaim)) (sum string, real *corev1.PersistentVolume) {
	t.Helper()
	n.Claim(name, class, "64Mi", edits...)
	n.Pod("before", name)
	n.WaitReady("before")
	n.Exec("before", "mkdir /data/deep && dd if=/dev/urandom of=/data/deep/file bs=64k count=16 2>/dev/null && sync")
	sum = n.Exec("before", "md5sum /data/deep/file")
	real = n.WaitBound(name)
	n.DeletePod("before")
	waitRealDetached(n, real.Name)
	return sum, real
}

func waitRealDetached(n *user.Namespace, volume string) {
	n.Eventually("the volume "+volume+" is detached", func(ctx context.Context) (string, error) {
		all, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, one := range all.Items {
			if named := one.Spec.Source.PersistentVolumeName; named != nil && *named == volume {
				return "it is attached to " + one.Spec.NodeName, nil
			}
		}
		return "", nil
	})
}

// wantImported is that a claim is one of this driver, on the same real volume, which is as it was.
func wantImported(t *testing.T, n *user.Namespace, name string, real *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) user.Volume {
	t.Helper()
	found := n.WaitVolume(name)
	if found.Virtual.Spec.CSI == nil || found.Virtual.Spec.CSI.Driver != driver.CSIName {
		t.Errorf("the volume of the claim is not of this driver: %v", found.Virtual.Spec.PersistentVolumeSource)
	}
	if found.Real.UID != real.UID {
		user.Violated(t, "the real volume is %s, and was %s", found.Real.Name, real.Name)
	}
	wantPolicy(t, n, real.Name, policy)
	if _, wishes := claimOf(t, n, name).Annotations[adopt]; wishes {
		t.Errorf("the claim still asks for its volume: a copy of it would, too")
	}
	return found
}

// wantPolicy is that a volume has this reclaim policy and no record of an import.
func wantPolicy(t *testing.T, n *user.Namespace, name string, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	real, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if real.Spec.PersistentVolumeReclaimPolicy != policy {
		t.Errorf("the reclaim policy is %s, not %s", real.Spec.PersistentVolumeReclaimPolicy, policy)
	}
	for _, key := range []string{importRecord, adoptFor} {
		if _, left := real.Annotations[key]; left {
			t.Errorf("the annotation %s is left", key)
		}
	}
}

// wantAsBefore is that a claim has its real volume, and nothing is left of an import.
func wantAsBefore(t *testing.T, n *user.Namespace, name string, real *corev1.PersistentVolume) {
	t.Helper()
	if now := n.WaitBound(name); now.UID != real.UID {
		user.Violated(t, "the claim has the volume %s, and had %s", now.Name, real.Name)
	}
	claim := claimOf(t, n, name)
	if *claim.Spec.StorageClassName != real.Spec.StorageClassName {
		t.Errorf("the claim has the class %s", *claim.Spec.StorageClassName)
	}
	for key := range claim.Annotations {
		if strings.HasPrefix(key, "storage.liqo.io/") {
			t.Errorf("the claim has the annotation %s", key)
		}
	}
	wantPolicy(t, n, real.Name, real.Spec.PersistentVolumeReclaimPolicy)
}

func wantSum(t *testing.T, n *user.Namespace, pod, claim, sum string, edits ...func(*corev1.Pod)) {
	t.Helper()
	n.Pod(pod, claim, edits...)
	n.WaitReady(pod)
	if got := n.Exec(pod, "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "read %q, wrote %q", got, sum)
	}
}

func setPolicy(t *testing.T, n *user.Namespace, volume string, policy corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	patchVolume(t, n, volume, fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy))
}

func TestImportKeepsTheData(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"reference", "reference-attach", "reference-local", "local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			sum, real := filled(t, n, "data", class, func(claim *corev1.PersistentVolumeClaim) {
				claim.Labels = map[string]string{"team": "blue"}
			})
			if out, err := runImport(t, n, "data", "--class", "liqo-"+class, "--dry-run"); err != nil || !strings.Contains(out, "is possible (dry run)") {
				t.Fatalf("%v: %s", err, out)
			}
			wantAsBefore(t, n, "data", real)
			mustImport(t, n, "data", "--class", "liqo-"+class)
			found := wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
			if claimOf(t, n, "data").Labels["team"] != "blue" {
				t.Error("the label of the claim is lost")
			}
			wantSum(t, n, "after", "data", sum)
			n.Exec("after", "echo more > /data/more && sync")
			out, _ := look(t, n, "volumes", "--namespace", n.Name)
			if !strings.Contains(out, found.Twin.Name) {
				t.Errorf("the volume is not listed: %s", out)
			}
			// Again, there is nothing to do.
			mustImport(t, n, "data", "--class", "liqo-"+class)
			// It is deleted as any other.
			n.DeletePod("after")
			deleteClaim(t, n, "data")
			wantGone(t, n, found)
		})
	}
}

func TestImportOfAStaticVolume(t *testing.T) {
	n := home(t)
	recycleStatic(t, n)
	sum, real := filled(t, n, "data", "static-local")
	mustImport(t, n, "data", "--class", "liqo-static-local")
	wantImported(t, n, "data", real, real.Spec.PersistentVolumeReclaimPolicy)
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

func TestImportKeepsTheReclaimPolicy(t *testing.T) {
	t.Parallel()
	t.Run("of a volume that is retained", func(t *testing.T) {
		kept := discardAfter(t)
		n := home(t)
		sum, real := filled(t, n, "data", "reference")
		setPolicy(t, n, real.Name, corev1.PersistentVolumeReclaimRetain)
		mustImport(t, n, "data", "--class", "liqo-reference")
		*kept = wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimRetain)
		wantSum(t, n, "after", "data", sum)
		n.DeletePod("after")
		deleteClaim(t, n, "data")
	})
	t.Run("of a class that retains", func(t *testing.T) {
		kept := discardAfter(t)
		n := home(t)
		sum, real := filled(t, n, "data", "reference")
		mustImport(t, n, "data", "--class", "liqo-retain")
		*kept = wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimRetain)
		wantSum(t, n, "after", "data", sum)
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
	waitRealDetached(n, real.Name)
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

func TestImportTellsAllThatSpeaksAgainstIt(t *testing.T) {
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
			t.Errorf("%q is not told: %s", wanted, out)
		}
	}
	wantAsBefore(t, n, "data", real)
	n.DeletePod("user")
	waitRealDetached(n, real.Name)
	if out, err := runImport(t, n, "data", "--class", "liqo-reference-attach"); err == nil {
		user.ViolatedNow(t, "a claim that Helm manages was imported: %s", out)
	}
	mustImport(t, n, "data", "--class", "liqo-reference-attach", "--force-managed")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	deleteClaim(t, n, "data")
}

// A quota that has no room for the new claim is found before anything is deleted.
func TestImportIsTriedBeforeItBegins(t *testing.T) {
	n := home(t)
	_, real := filled(t, n, "data", "reference")
	n.StorageQuota("tight", "64Mi")
	out, err := runImport(t, n, "data", "--class", "liqo-reference")
	if err == nil || !strings.Contains(out, "exceeded quota") {
		t.Errorf("%v: %s", err, out)
	}
	wantAsBefore(t, n, "data", real)
}

func TestImportOfAStatefulSet(t *testing.T) {
	n := home(t)
	n.Apply(fmt.Sprintf(importedSet, images.BusyboxName))
	sums := map[string]string{}
	reals := map[string]*corev1.PersistentVolume{}
	for _, pod := range []string{"db-0", "db-1"} {
		n.WaitReady(pod)
		n.Exec(pod, "mkdir /data/deep && dd if=/dev/urandom of=/data/deep/file bs=64k count=8 2>/dev/null && sync")
		sums[pod] = n.Exec(pod, "md5sum /data/deep/file")
		reals["data-"+pod] = n.WaitBound("data-" + pod)
	}
	out, err := runImport(t, n, "data-db-1", "--class", "liqo-reference")
	if err == nil || !strings.Contains(out, "the StatefulSet db has a replica 1") {
		t.Fatalf("%v: %s", err, out)
	}
	scale := func(replicas string) {
		if _, err := n.Kubectl("scale", "statefulset", "db", "--replicas", replicas); err != nil {
			t.Fatal(err)
		}
	}
	scale("0")
	for claim, real := range reals {
		n.Eventually("the pods of the set are gone", func(ctx context.Context) (string, error) {
			pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
			if err != nil || len(pods.Items) > 0 {
				return "they are not", err
			}
			return "", nil
		})
		waitRealDetached(n, real.Name)
		mustImport(t, n, claim, "--class", "liqo-reference")
		wantImported(t, n, claim, real, corev1.PersistentVolumeReclaimDelete)
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

const importedSet = `
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
        storageClassName: reference
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 64Mi}}
`

func TestTwoImportsOfOneClaimAtOnce(t *testing.T) {
	n := home(t)
	sum, real := filled(t, n, "data", "reference")
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
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// Only the administrator's command permits the adoption: a user's wish is nothing.
func TestWishToAdoptGivesNobodyData(t *testing.T) {
	n := home(t)
	sum, real := filled(t, n, "data", "reference")
	thief := user.NewNamespace(t, n.Cluster)
	thief.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{
			adopt: real.Name, "volume.kubernetes.io/selected-node": n.Cluster.Nodes()[0].Name,
		}
	})
	thief.WaitEvent("data", "FailedPrecondition", "may be adopted by this claim")
	// Not even while the volume is being imported for somebody else.
	mustImport(t, n, "data", "--class", "liqo-reference")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	if claim := claimOf(t, thief, "data"); claim.Status.Phase == corev1.ClaimBound {
		user.Violated(t, "the claim of a stranger is bound")
	}
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
	deleteClaim(t, thief, "data")
}

// A pod that comes while its claim is imported waits for it.
func TestPodThatComesDuringAnImportWaitsForIt(t *testing.T) {
	n := homeAlone(t)
	sum, real := filled(t, n, "data", "reference")
	// Nobody selects a node or provisions meanwhile.
	restart := withoutControllers(t, n)
	done := make(chan error, 1)
	go func() {
		_, err := runImport(t, n, "data", "--class", "liqo-reference")
		done <- err
	}()
	waitMadeAnew(n, "data", real.Name)
	n.Pod("early", "data")
	restart()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n.WaitReady("early")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	if got := n.Exec("early", "md5sum /data/deep/file"); got != sum {
		user.Violated(t, "read %q, wrote %q", got, sum)
	}
	n.DeletePod("early")
	deleteClaim(t, n, "data")
}

// Before the end nothing but the volume's own reclaim policy keeps the data; it does.
func TestClaimDeletedBeforeItsImportEndsKeepsItsData(t *testing.T) {
	n := homeAlone(t)
	sum, real := filled(t, n, "data", "reference")
	restart := withoutControllers(t, n)
	class := []string{"--class", "liqo-reference"}
	// It gets as far as it can and is ended there; run again, it waits, however short its time is.
	interrupted(t, func(ctx context.Context) { _, _ = runImportUntil(ctx, t, n, "data", class...) }, func() { waitMadeAnew(n, "data", real.Name) })
	if out, err := runImport(t, n, "data", append(class, "--timeout", "5s")...); err == nil || !strings.Contains(out, "The data is safe") {
		t.Fatalf("an import ended without a controller: %v: %s", err, out)
	}
	if out, _ := look(t, n, "doctor"); !strings.Contains(out, "import pvc "+n.Name+"/data") {
		t.Errorf("doctor does not list the import: %s", out)
	}
	deleteClaim(t, n, "data")
	restart()
	now, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), real.Name, metav1.GetOptions{})
	if err != nil || now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Fatalf("%v: %v", err, now)
	}
	// It can be taken back, and imported again.
	if out, err := runImport(t, n, "data", "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantAsBefore(t, n, "data", real)
	wantSum(t, n, "middle", "data", sum)
	n.DeletePod("middle")
	waitRealDetached(n, real.Name)
	mustImport(t, n, "data", "--class", "liqo-reference")
	wantImported(t, n, "data", real, corev1.PersistentVolumeReclaimDelete)
	wantSum(t, n, "after", "data", sum)
	n.DeletePod("after")
	deleteClaim(t, n, "data")
}

// waitMadeAnew waits until an import has made the claim that is to get this volume.
func waitMadeAnew(n *user.Namespace, name, volume string) {
	n.Eventually("the claim is made anew", func(ctx context.Context) (string, error) {
		claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil || claim.Annotations[adopt] != volume {
			return "it is not", err
		}
		return "", nil
	})
}

// withoutControllers takes the driver's controllers away until restart is called.
func withoutControllers(t *testing.T, n *user.Namespace) (restart func()) {
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
	restarted := false
	restart = func() {
		if restarted {
			return
		}
		restarted = true
		if err := scale(context.Background(), before); err != nil && !apierrors.IsConflict(err) {
			t.Error(err)
		}
	}
	t.Cleanup(restart)
	n.Eventually("the controllers are gone", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		if err != nil || len(pods.Items) > 0 {
			return "they are still there", err
		}
		return "", nil
	})
	return restart
}
