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

// snapshotGroup is the API group of snapshots.
const snapshotGroup = "snapshot.storage.k8s.io"

// Resources of snapshots.
var (
	Snapshots        = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	SnapshotContents = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
	SnapshotClasses  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotclasses"}
)

// Stock is a number of volumes of one class that operations are tried on. No pod ever
// has one of them.
type Stock struct {
	Race
	Dynamic       dynamic.Interface
	SnapshotClass string
}

// Operation is done to volumes that are there.
type Operation struct {
	Name string
	// Goal is how many times as long as on the real class alone it may take.
	Goal float64
	// OfSnapshots needs a driver that takes snapshots.
	OfSnapshots bool
	// Hold does it once with each of these claims of the stock, all at once. Every round
	// is of something new: a larger size, another snapshot.
	Hold func(stock Stock, ctx context.Context, claims []string, round int) (Heat, error)
}

// Operations are all of them, in their order: what is restored are the snapshots taken
// in the same round.
var Operations = []Operation{
	{Name: "expansion", Goal: 2, Hold: Stock.Expand},
	{Name: "snapshot", Goal: 2, OfSnapshots: true, Hold: Stock.Snapshot},
	{Name: "restore", Goal: 2, OfSnapshots: true, Hold: Stock.Restore},
}

// Claims are the names of those that have the volumes.
func (s Stock) Claims() []string { return s.names() }

// Fill makes the volumes and waits until all are bound.
func (s Stock) Fill(ctx context.Context) error {
	bound, err := watchBound(ctx, s.Client, s.Namespace)
	if err != nil {
		return err
	}
	defer bound.stop()
	if _, err := hold(ctx, s.names(), bound, newStopwatch(), s.post); err != nil {
		return fmt.Errorf("class %s: %w", s.Class, err)
	}
	return nil
}

// sizes are those of claims, by how often they have grown.
var sizes = []resource.Quantity{resource.MustParse("1Mi"), resource.MustParse("2Mi"), resource.MustParse("3Mi")}

// Expand asks for the next size; a claim has grown when its status says so.
func (s Stock) Expand(ctx context.Context, claims []string, round int) (Heat, error) {
	size := sizes[round]
	grown, err := watchClaims(ctx, s.Client, s.Namespace, "claims grown", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		if !slices.Contains(claims, claim.Name) {
			return false, ""
		}
		has := claim.Status.Capacity[corev1.ResourceStorage]
		return has.Cmp(size) >= 0, complaints(claim)
	})
	if err != nil {
		return Heat{}, err
	}
	defer grown.stop()
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size.String())
	return hold(ctx, claims, grown, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// complaints are what the conditions of a claim say.
func complaints(claim *corev1.PersistentVolumeClaim) string {
	for _, condition := range claim.Status.Conditions {
		if condition.Message != "" {
			return fmt.Sprintf("%s: %s", condition.Type, condition.Message)
		}
	}
	return ""
}

// Snapshot takes one of each claim; it is there when it is ready to use.
func (s Stock) Snapshot(ctx context.Context, claims []string, round int) (Heat, error) {
	of := derived("snapshot", claims, round)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(s.Dynamic, 0, s.Namespace, nil)
	ready, err := watchFor(ctx, "snapshots ready to use", factory, factory.ForResource(Snapshots).Informer(), func(snapshot *unstructured.Unstructured) (bool, string) {
		if _, ours := of[snapshot.GetName()]; !ours {
			return false, ""
		}
		ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
		trouble, _, _ := unstructured.NestedString(snapshot.Object, "status", "error", "message")
		return ready, trouble
	})
	if err != nil {
		return Heat{}, err
	}
	defer ready.stop()
	return hold(ctx, slices.Sorted(maps.Keys(of)), ready, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Dynamic.Resource(Snapshots).Namespace(s.Namespace).Create(ctx, s.snapshot(name, of[name]), metav1.CreateOptions{})
		return err
	})
}

func (s Stock) snapshot(name, claim string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Snapshots.GroupVersion().String(), "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"volumeSnapshotClassName": s.SnapshotClass,
			"source":                  map[string]any{"persistentVolumeClaimName": claim},
		},
	}}
}

// Restore makes a claim from the snapshot that was taken of each in this round.
func (s Stock) Restore(ctx context.Context, claims []string, round int) (Heat, error) {
	of := derived("restored", claims, round)
	bound, err := watchClaims(ctx, s.Client, s.Namespace, "restored claims bound", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		_, ours := of[claim.Name]
		return ours && claim.Status.Phase == corev1.ClaimBound, ""
	})
	if err != nil {
		return Heat{}, err
	}
	defer bound.stop()
	return hold(ctx, slices.Sorted(maps.Keys(of)), bound, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, s.restored(name, derivedName("snapshot", of[name], round)), metav1.CreateOptions{})
		return err
	})
}

// restored is as large as claims ever get, and so as any snapshot of one.
func (s Stock) restored(name, snapshot string) *corev1.PersistentVolumeClaim {
	group := snapshotGroup
	claim := s.claim(name)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = sizes[len(sizes)-1]
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot}
	return claim
}

// derived names what a round makes of each claim.
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
