package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
)

const snapshotGroup = "snapshot.storage.k8s.io"

var (
	Snapshots        = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	SnapshotContents = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
	SnapshotClasses  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotclasses"}
)

// VolumeSet is a number of volumes of one class on which operations are measured. No pod uses them.
type VolumeSet struct {
	Batch
	Dynamic       dynamic.Interface
	SnapshotClass string
}

// Operation is performed on existing volumes.
type Operation struct {
	Name string
	// Goal is the maximum of the ratio to the real class alone.
	Goal float64
	// NeedsSnapshots: the driver must support snapshots.
	NeedsSnapshots bool
	// Run performs it once on each of these claims, all at once. The round selects the next size,
	// or the name of the snapshot.
	Run func(volumes VolumeSet, ctx context.Context, claims []string, round int) (Result, error)
}

// Operations are in this order because the third restores the snapshots of the second.
var Operations = []Operation{
	{Name: "expansion", Goal: 2, Run: VolumeSet.Expand},
	{Name: "snapshot", Goal: 2, NeedsSnapshots: true, Run: VolumeSet.Snapshot},
	{Name: "restore", Goal: 2, NeedsSnapshots: true, Run: VolumeSet.Restore},
}

// Provision creates the claims and waits until all are Bound.
func (s VolumeSet) Provision(ctx context.Context) error {
	bound, err := watchBound(ctx, s.Client, s.Namespace)
	if err != nil {
		return err
	}
	defer bound.stop()
	if _, err := measure(ctx, s.Claims(), bound, newStopwatch(), s.post); err != nil {
		return fmt.Errorf("class %s: %w", s.Class, err)
	}
	return nil
}

// sizes of the claims, by round; round 0 is their creation.
var sizes = []resource.Quantity{resource.MustParse("1Mi"), resource.MustParse("2Mi"), resource.MustParse("3Mi")}

// Expand requests the next size and waits until it is in the status of each claim.
func (s VolumeSet) Expand(ctx context.Context, claims []string, round int) (Result, error) {
	size := sizes[round]
	expanded, err := watchClaims(ctx, s.Client, s.Namespace, "claims expanded", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		if !slices.Contains(claims, claim.Name) {
			return false, ""
		}
		capacity := claim.Status.Capacity[corev1.ResourceStorage]
		return capacity.Cmp(size) >= 0, conditionMessage(claim)
	})
	if err != nil {
		return Result{}, err
	}
	defer expanded.stop()
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size.String())
	return measure(ctx, claims, expanded, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func conditionMessage(claim *corev1.PersistentVolumeClaim) string {
	for _, condition := range claim.Status.Conditions {
		if condition.Message != "" {
			return fmt.Sprintf("%s: %s", condition.Type, condition.Message)
		}
	}
	return ""
}

// Snapshot creates a VolumeSnapshot of each claim and waits until all are ready to use.
func (s VolumeSet) Snapshot(ctx context.Context, claims []string, round int) (Result, error) {
	of := derived("snapshot", claims, round)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(s.Dynamic, 0, s.Namespace, nil)
	ready, err := watchFor(ctx, "snapshots ready to use", factory, factory.ForResource(Snapshots).Informer(), func(snapshot *unstructured.Unstructured) (bool, string) {
		if _, found := of[snapshot.GetName()]; !found {
			return false, ""
		}
		ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
		message, _, _ := unstructured.NestedString(snapshot.Object, "status", "error", "message")
		return ready, message
	})
	if err != nil {
		return Result{}, err
	}
	defer ready.stop()
	return measure(ctx, slices.Sorted(maps.Keys(of)), ready, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Dynamic.Resource(Snapshots).Namespace(s.Namespace).Create(ctx, s.snapshot(name, of[name]), metav1.CreateOptions{})
		return err
	})
}

func (s VolumeSet) snapshot(name, claim string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Snapshots.GroupVersion().String(), "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"volumeSnapshotClassName": s.SnapshotClass,
			"source":                  map[string]any{"persistentVolumeClaimName": claim},
		},
	}}
}

// Restore creates a claim from each snapshot of this round and waits until all are Bound.
func (s VolumeSet) Restore(ctx context.Context, claims []string, round int) (Result, error) {
	of := derived("restored", claims, round)
	bound, err := watchClaims(ctx, s.Client, s.Namespace, "restored claims bound", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		_, found := of[claim.Name]
		return found && claim.Status.Phase == corev1.ClaimBound, ""
	})
	if err != nil {
		return Result{}, err
	}
	defer bound.stop()
	return measure(ctx, slices.Sorted(maps.Keys(of)), bound, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, s.restored(name, derivedName("snapshot", of[name], round)), metav1.CreateOptions{})
		return err
	})
}

// restored has the largest size, because a restored volume may not be smaller than its snapshot.
func (s VolumeSet) restored(name, snapshot string) *corev1.PersistentVolumeClaim {
	group := snapshotGroup
	claim := s.claim(name)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = sizes[len(sizes)-1]
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot}
	return claim
}

// derived maps the names of the objects that a round creates to the claims they are created from.
func derived(what string, claims []string, round int) map[string]string {
	from := map[string]string{}
	for _, claim := range claims {
		from[derivedName(what, claim, round)] = claim
	}
	return from
}

func derivedName(what, claim string, round int) string {
	return fmt.Sprintf("%s-%d-of-%s", what, round, claim)
}
