package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

func TestOperationsRunInOrder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	volumes := newVolumeSet(3)
	go complete(ctx, volumes)
	if err := volumes.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	for round := 1; round <= 2; round++ {
		for _, operation := range Operations {
			result, err := operation.Run(volumes, ctx, volumes.Claims(), round)
			if err != nil {
				t.Fatalf("%s, round %d: %v", operation.Name, round, err)
			}
			if len(result.Each) != volumes.Count || result.Total <= 0 {
				t.Errorf("%s, round %d: got %v", operation.Name, round, result)
			}
		}
	}
	claims, err := volumes.Client.CoreV1().PersistentVolumeClaims(volumes.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restored := 0
	for _, claim := range claims.Items {
		if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; size.String() != "3Mi" {
			t.Errorf("%s requests %s", claim.Name, size.String())
		}
		if source := claim.Spec.DataSource; source != nil {
			restored++
			snapshot, err := volumes.Dynamic.Resource(Snapshots).Namespace(volumes.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
			if err != nil {
				t.Errorf("claim %s has no snapshot: %v", claim.Name, err)
			} else if of, _, _ := unstructured.NestedString(snapshot.Object, "spec", "source", "persistentVolumeClaimName"); !strings.HasSuffix(claim.Name, of) {
				t.Errorf("claim %s is restored from a snapshot of claim %s", claim.Name, of)
			}
		}
	}
	if restored != 2*volumes.Count {
		t.Errorf("%d claims were restored", restored)
	}
}

func TestErrorOfASnapshotIsReported(t *testing.T) {
	volumes := newVolumeSet(1)
	snapshot := volumes.snapshot("snapshot-1-of-claim-0000", "claim-0000")
	status := map[string]any{"error": map[string]any{"message": "the backend is full"}}
	if err := unstructured.SetNestedMap(snapshot.Object, status, "status"); err != nil {
		t.Fatal(err)
	}
	if _, err := volumes.Dynamic.Resource(Snapshots).Namespace(volumes.Namespace).Create(t.Context(), snapshot, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := volumes.Snapshot(t.Context(), []string{"claim-0000"}, 1)
	if err == nil || !strings.Contains(err.Error(), "already exists; the backend is full") {
		t.Errorf("got %v", err)
	}
}

func TestSnapshotClassMustBeOfTheDriver(t *testing.T) {
	volumes := newVolumeSet(1)
	for name, want := range map[string]string{
		"reference": "",
		"liqo":      "there is no VolumeSnapshotClass liqo",
		"other":     "VolumeSnapshotClass other is of the driver other.test, not of reference.storage.test",
	} {
		if got, err := NoSnapshotClass(t.Context(), volumes.Dynamic, name, "reference.storage.test"); err != nil || got != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestSnapshotsNeedCSISnapshotter(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, want := range map[string]string{
		"csi-resizer":     "the driver's controller has no csi-snapshotter (chart: controller.snapshotter.enabled)",
		"csi-snapshotter": "",
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "controller", Namespace: "liqo"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: name, State: running}}
		if got, err := NoSnapshotter(t.Context(), fake.NewClientset(pod), "liqo", ""); err != nil || got != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestReportOfAnOperationHasRatiosAndWrites(t *testing.T) {
	series := func(milliseconds int, calls map[string]Calls) (s Series) {
		each := time.Duration(milliseconds) * time.Millisecond
		s.Add(Result{Each: []time.Duration{each, each}, Total: each}, calls)
		return s
	}
	real := series(20, map[string]Calls{"csi-resizer": {Writes: 6}, "bench": {Writes: 2}})
	virtual := series(50, map[string]Calls{"csi-resizer": {Writes: 12}, Agent: {Writes: 3, Reads: 9}})
	row := OperationRow{
		Operation: "expansion", RealClass: "reference", AtOnce: 2, Samples: 2, Goal: 2,
		Real: real.Times(), RealWrites: real.Writes(), Virtual: virtual.Times(), VirtualWrites: virtual.Writes(),
	}
	if want := map[string]float64{"csi-resizer": 3}; !maps.Equal(row.RealWrites, want) {
		t.Errorf("got %v, want %v", row.RealWrites, want)
	}
	if want := map[string]float64{"csi-resizer": 6, Agent: 1.5}; !maps.Equal(row.VirtualWrites, want) {
		t.Errorf("got %v, want %v", row.VirtualWrites, want)
	}
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Operation":"expansion"`, `"P50Ratio":2.5`, `"P99Ratio":2.5`, `"Met":false`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	var table bytes.Buffer
	if err := (OperationsReport{Rows: []OperationRow{row}, Skipped: []string{"snapshot: no class"}}).Print(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" 2.50  2.0 missed ", "not measured: snapshot: no class"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}

func newVolumeSet(count int) VolumeSet {
	class := func(name, driver string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": SnapshotClasses.GroupVersion().String(), "kind": "VolumeSnapshotClass",
			"metadata": map[string]any{"name": name}, "driver": driver,
		}}
	}
	lists := map[schema.GroupVersionResource]string{Snapshots: "VolumeSnapshotList", SnapshotClasses: "VolumeSnapshotClassList"}
	return VolumeSet{
		Batch: Batch{Client: fake.NewClientset(), Namespace: "bench", Class: "reference", Node: "home-1", Count: count},
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists,
			class("reference", "reference.storage.test"), class("other", "other.test")),
		SnapshotClass: "reference",
	}
}

// complete binds all claims and makes all snapshots ready, repeatedly: the fake clients lose events
// between a list and the watch after it.
func complete(ctx context.Context, volumes VolumeSet) {
	for ctx.Err() == nil {
		completeClaims(ctx, volumes)
		completeSnapshots(ctx, volumes.Dynamic.Resource(Snapshots).Namespace(volumes.Namespace))
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func completeClaims(ctx context.Context, volumes VolumeSet) {
	client := volumes.Client.CoreV1().PersistentVolumeClaims(volumes.Namespace)
	claims, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, claim := range claims.Items {
		status := corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: claim.Spec.Resources.Requests}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err == nil {
			_, _ = client.Patch(ctx, claim.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "status")
		}
	}
}

func completeSnapshots(ctx context.Context, client dynamic.ResourceInterface) {
	snapshots, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, snapshot := range snapshots.Items {
		_, _ = client.Patch(ctx, snapshot.GetName(), "application/merge-patch+json", []byte(`{"status":{"readyToUse":true}}`), metav1.PatchOptions{})
	}
}
