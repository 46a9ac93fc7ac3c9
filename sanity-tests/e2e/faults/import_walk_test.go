package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// transferCommand runs `liqo-csi import` or `liqo-csi release`, which crashes at one point per run.
type transferCommand struct {
	n       *user.Namespace
	program string
	// verb are the arguments before the object.
	verb []string
	// name of the object in its namespace.
	name string
	// orders is the folder with its crash orders.
	orders string
}

func newTransferCommand(t *testing.T, n *user.Namespace, verb ...string) *transferCommand {
	t.Helper()
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &transferCommand{n: n, program: program, verb: verb, name: "data", orders: t.TempDir()}
}

func (c *transferCommand) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = slices.Concat(c.verb, []string{c.n.Name + "/" + c.name, "--kubeconfig", c.n.Cluster.Kubeconfig()}, args)
	ctx, cancel := context.WithTimeout(t.Context(), 2*user.Timeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.program, args...)
	command.Env = append(os.Environ(), "LIQO_CSI_CRASH_ORDERS="+c.orders)
	out, err := command.CombinedOutput()
	t.Logf("liqo-csi %s: %v\n%s", strings.Join(args[:len(c.verb)+1], " "), err, out)
	return string(out), err
}

func (c *transferCommand) file() string { return filepath.Join(c.orders, "crash-at") }

// pending returns the points at which it has not crashed yet.
func (c *transferCommand) pending(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(c.file())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// crashes runs the command until it has crashed at all of these points.
func (c *transferCommand) crashes(t *testing.T, w *walk, points []string, args ...string) {
	t.Helper()
	if err := os.WriteFile(c.file(), []byte(strings.Join(points, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for len(c.pending(t)) > 0 {
		before := len(c.pending(t))
		out, err := c.run(t, args...)
		if now := len(c.pending(t)); now == before {
			t.Fatalf("it did not crash at one of %v: %v\n%s", c.pending(t), err, out)
		}
	}
	w.hit = append(w.hit, points...)
}

func (c *transferCommand) succeeds(t *testing.T, args ...string) {
	t.Helper()
	if out, err := c.run(t, args...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// createRealClaim creates a claim of a real class with data, and returns its volume, detached.
func createRealClaim(t *testing.T, n *user.Namespace) *corev1.PersistentVolume {
	t.Helper()
	n.Claim("data", "reference", "64Mi")
	n.Pod("before", "data")
	n.WaitReady("before")
	write(n, "before", n.Name)
	real := n.WaitBound("data")
	n.DeletePod("before")
	waitDetached(n, real.Name)
	return real
}

func (w *walk) imported(t *testing.T, n *user.Namespace) {
	real := createRealClaim(t, n)
	controller := w.crashController(t, n, bothSides("adopt-reserve", "settle-claim", "settle-volume"))
	command := newTransferCommand(t, n, "import", "pvc")
	command.crashes(t, w, bothSides("import-mark", "import-delete", "import-make"), "--class", "liqo-reference")
	command.succeeds(t, "--class", "liqo-reference")
	w.waitCrashed(t, n, controller)
	found := n.WaitVolume("data")
	if found.Real.UID != real.UID || found.Real.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
		user.Violated(t, "the real volume is %s (%s), it was %s (%s)", found.Real.Name, found.Real.Spec.PersistentVolumeReclaimPolicy,
			real.Name, real.Spec.PersistentVolumeReclaimPolicy)
	}
	n.Pod("after", "data")
	n.WaitReady("after")
	read(t, n, "after", n.Name)
	discard(n, "after", "data")
}

// The controller is scaled down, so that each import stops at the crash point.
func (w *walk) importUndone(t *testing.T, n *user.Namespace) {
	real := createRealClaim(t, n)
	restart := scaleDownController(t, n)
	defer restart()
	command := newTransferCommand(t, n, "import", "pvc")
	class := []string{"--class", "liqo-reference"}
	undoAfter := func(point string, undo ...string) {
		t.Helper()
		command.crashes(t, w, []string{point}, class...)
		if len(undo) > 0 {
			command.crashes(t, w, bothSides(undo...), "--undo")
		}
		command.succeeds(t, "--undo")
		wantRestored(t, n, real)
	}
	undoAfter("before-import-mark")
	undoAfter("after-import-mark", "undo-forbid", "undo-touch", "undo-restore", "undo-untouch")
	undoAfter("before-import-delete")
	undoAfter("after-import-delete", "undo-give-back", "undo-remake", "undo-wake")
	undoAfter("before-import-make")
	undoAfter("after-import-make", "undo-delete")

	// With a twin, as if the controller had crashed after creating it.
	command.crashes(t, w, []string{"after-import-make"}, class...)
	simulateAdoption(t, n, real.Name)
	command.crashes(t, w, bothSides("undo-twin"), "--undo")
	command.succeeds(t, "--undo")
	wantRestored(t, n, real)

	// Another client creates the claim before the command does.
	command.crashes(t, w, []string{"after-import-delete"}, class...)
	waitNoClaim(n)
	n.Claim("data", "reference", "64Mi")
	command.crashes(t, w, bothSides("undo-give-back"), "--undo")
	command.succeeds(t, "--undo")
	wantRestored(t, n, real)

	// The selected node is removed from the new claim; then the controller runs again.
	command.crashes(t, w, []string{"after-import-make"}, class...)
	if _, err := n.Kubectl("annotate", "pvc", "data", "volume.kubernetes.io/selected-node-"); err != nil {
		t.Fatal(err)
	}
	command.crashes(t, w, bothSides("import-select"), class...)
	restart()
	command.succeeds(t, class...)
	n.Pod("after", "data")
	n.WaitReady("after")
	read(t, n, "after", n.Name)
	discard(n, "after", "data")
}

func wantRestored(t *testing.T, n *user.Namespace, real *corev1.PersistentVolume) {
	t.Helper()
	now := n.WaitBound("data")
	if now.UID != real.UID || now.Spec.PersistentVolumeReclaimPolicy != real.Spec.PersistentVolumeReclaimPolicy {
		user.ViolatedNow(t, "the claim has the volume %s (%s), it had %s", now.Name, now.Spec.PersistentVolumeReclaimPolicy, real.Name)
	}
	for _, key := range []string{"import", "adopt-for"} {
		if _, left := now.Annotations["storage.liqo.io/"+key]; left {
			t.Fatalf("the annotation %s is left on the volume", key)
		}
	}
	claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key := range claim.Annotations {
		if strings.HasPrefix(key, "storage.liqo.io/") {
			t.Fatalf("the annotation %s is left on the claim", key)
		}
	}
}

func waitNoClaim(n *user.Namespace) {
	n.Eventually("the claim is deleted", func(ctx context.Context) (string, error) {
		_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it exists", err
	})
}

// simulateAdoption does the first steps of CreateVolume: it sets the claimRef and creates the twin.
func simulateAdoption(t *testing.T, n *user.Namespace, volume string) {
	t.Helper()
	core := n.Client.CoreV1()
	claim, err := core.PersistentVolumeClaims(n.Name).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uid := string(claim.UID)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"claimRef": map[string]any{
		"namespace": chart.StorageNamespace, "name": uid, "uid": nil, "resourceVersion": nil,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	real, err := core.PersistentVolumes().Patch(t.Context(), volume, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	home, err := core.Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	twin := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:       uid,
			Finalizers: []string{"storage.liqo.io/twin"},
			Labels: map[string]string{
				"app.kubernetes.io/managed-by": driver.CSIName, "storage.liqo.io/home-cluster": string(home.UID),
				"storage.liqo.io/volume": "pvc-" + uid,
			},
			Annotations: map[string]string{"storage.liqo.io/claim-uid": uid, "storage.liqo.io/adopted": volume},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &real.Spec.StorageClassName,
			AccessModes:      claim.Spec.AccessModes,
			Resources:        claim.Spec.Resources,
			VolumeName:       volume,
		},
	}
	twins := core.PersistentVolumeClaims(chart.StorageNamespace)
	if _, err := twins.Create(t.Context(), twin, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the twin is bound", func(ctx context.Context) (string, error) {
		found, err := twins.Get(ctx, uid, metav1.GetOptions{})
		if err != nil || found.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("it is %s", found.Status.Phase), err
		}
		return "", nil
	})
}

// scaleDownController scales the driver's controller down until restart is called.
func scaleDownController(t *testing.T, n *user.Namespace) (restart func()) {
	t.Helper()
	deployments := n.Client.AppsV1().Deployments(chart.Namespace)
	list, err := deployments.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v: %d Deployments of the controller", err, len(list.Items))
	}
	name, before := list.Items[0].Name, *list.Items[0].Spec.Replicas
	scale := func(ctx context.Context, replicas int32) error {
		found, err := deployments.GetScale(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.Replicas = replicas
		_, err = deployments.UpdateScale(ctx, name, found, metav1.UpdateOptions{})
		return err
	}
	if err := scale(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	n.Eventually("the pods of the controller are deleted", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Sprintf("%d are left", len(pods.Items)), err
		}
		return "", nil
	})
	restarted := false
	return func() {
		if restarted {
			return
		}
		restarted = true
		if err := scale(context.Background(), before); err != nil {
			t.Error(err)
		}
	}
}

// The command crashes around each of its writes: first of an import that is undone, then of one that is
// completed.
func (w *walk) snapshotImported(t *testing.T, n *user.Namespace) {
	n.Claim("data", "reference", "64Mi")
	n.Pod("writer", "data")
	n.WaitReady("writer")
	write(n, "writer", n.Name)
	n.Snapshot("backup", "data", "reference")
	before, err := n.GetSnapshot(t.Context(), "backup")
	if err != nil || before.Content == nil {
		t.Fatalf("%+v, %v", before, err)
	}
	command := newTransferCommand(t, n, "import", "snapshot")
	command.name = "backup"

	command.crashes(t, w, []string{"before-snapshot-import-delete"})
	// Another client changes the policy of the twin's content.
	ofTwin := fmt.Sprintf(`jsonpath={.items[?(@.spec.source.snapshotHandle==%q)].metadata.name}`, before.Content.Status.Handle)
	second, err := n.Kubectl("get", "volumesnapshotcontents", "-o", ofTwin)
	if err != nil || second == "" {
		t.Fatalf("the content of the twin is %q, %v", second, err)
	}
	if _, err := n.Kubectl("patch", "volumesnapshotcontent", strings.TrimSpace(second), "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`); err != nil {
		t.Fatal(err)
	}
	command.crashes(t, w, bothSides("snapshot-import-retain"))
	command.crashes(t, w, bothSides("snapshot-undo-touch", "snapshot-undo-twin", "snapshot-undo-content", "snapshot-undo-restore", "snapshot-undo-untouch"), "--undo")
	command.succeeds(t, "--undo")
	now, err := n.GetSnapshot(t.Context(), "backup")
	if err != nil {
		t.Fatal(err)
	}
	if now.Content == nil || now.Object.Metadata.UID != before.Object.Metadata.UID || now.Content.Spec.DeletionPolicy != "Delete" {
		user.ViolatedNow(t, "it is not restored: %+v", now)
	}

	command.crashes(t, w, bothSides("snapshot-import-mark", "snapshot-import-content", "snapshot-import-twin"))
	command.crashes(t, w, []string{"after-snapshot-import-delete"})
	command.crashes(t, w, bothSides("snapshot-import-user-content", "snapshot-import-make", "snapshot-import-forget"))
	command.succeeds(t)
	imported := n.WantImportedSnapshot("backup")
	if imported.Real.Status.Handle != before.Content.Status.Handle {
		user.Violated(t, "the handle is %s, it was %s", imported.Real.Status.Handle, before.Content.Status.Handle)
	}
	n.Claim("restored", "liqo-reference", "64Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.Pod("reader", "restored")
	n.WaitReady("reader")
	read(t, n, "reader", n.Name)
	n.DeleteSnapshot("backup")
	n.WaitSnapshotDeleted(imported, n.Client, chart.StorageNamespace)
	discard(n, "reader", "restored")
	discard(n, "writer", "data")
}
