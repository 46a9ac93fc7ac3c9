package driver

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"storage.liqo.io/sanity-tests/reference/state"
)

// CreateSnapshot copies the whole volume before it answers, so a snapshot is
// always ready to use.
func (d *Driver) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switch {
	case request.GetName() == "":
		return nil, invalidf("name is missing")
	case request.GetSourceVolumeId() == "":
		return nil, invalidf("source_volume_id is missing")
	}
	for key := range request.GetParameters() {
		if !isProvisionerKey(key) {
			return nil, invalidf("unknown parameter %q", key)
		}
	}
	id := d.store.Snapshots.ID(request.GetName())
	leave, err := d.busy.enter(id)
	if err != nil {
		return nil, err
	}
	defer leave()

	existing, err := d.store.Snapshots.Get(id)
	if err == nil && existing.Volume != request.GetSourceVolumeId() {
		return nil, existsf("snapshot %s exists, of volume %s", existing.Name, existing.Volume)
	}
	if err == nil && existing.Ready {
		return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(existing)}, nil
	}
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, coded(err, "snapshot "+request.GetName())
	}
	source, err := d.readyVolume(request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	snapshot := state.Snapshot{
		ID: id, Name: request.GetName(), Volume: source.ID, Bytes: source.Bytes, Backing: source.Backing,
		Node: source.Node, Formatted: source.Formatted, Created: time.Now().UTC(),
	}
	if err := d.takeSnapshot(ctx, &snapshot); err != nil {
		return nil, coded(err, "snapshot "+snapshot.Name)
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(snapshot)}, nil
}

// takeSnapshot writes the record before the copy, so that no copy is without one, and again after
// it.
func (d *Driver) takeSnapshot(ctx context.Context, snapshot *state.Snapshot) error {
	left, limited, err := d.faults.SpaceLeft()
	if err != nil {
		return err
	}
	if limited && snapshot.Bytes > left {
		return exhaustedf("no space for a snapshot of %d bytes on the backend", snapshot.Bytes)
	}
	put := func() error {
		return d.store.Transaction(func() error { return d.store.Snapshots.Put(snapshot.ID, *snapshot) })
	}
	if err := put(); err != nil {
		return err
	}
	path := d.store.Data(snapshot.ID)
	if err = os.RemoveAll(path); err == nil { // left by an interrupted call
		err = d.copy(ctx, origin{snapshot.Volume, snapshot.Bytes, snapshot.Backing, snapshot.Node, snapshot.Formatted}, path)
	}
	if err != nil {
		return errors.Join(err, d.removeSnapshot(snapshot.ID))
	}
	snapshot.Ready = true
	return put()
}

// DeleteSnapshot succeeds at any time, because volumes created from the snapshot are copies.
func (d *Driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := request.GetSnapshotId()
	if id == "" {
		return nil, invalidf("snapshot_id is missing")
	}
	leave, err := d.busy.enter(id)
	if err != nil {
		return nil, err
	}
	defer leave()
	if d.store.Snapshots.Valid(id) {
		err = d.removeSnapshot(id)
	}
	return &csi.DeleteSnapshotResponse{}, coded(err, "snapshot "+id)
}

func (d *Driver) removeSnapshot(id string) error {
	if err := os.RemoveAll(d.store.Data(id)); err != nil {
		return err
	}
	return d.store.Transaction(func() error { return d.store.Snapshots.Delete(id) })
}

// GetSnapshot describes one snapshot.
func (d *Driver) GetSnapshot(_ context.Context, request *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, invalidf("snapshot_id is missing")
	}
	snapshot, err := d.readySnapshot(request.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: describeSnapshot(snapshot)}, nil
}

// ListSnapshots filters before it divides into pages.
func (d *Driver) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if token := request.GetStartingToken(); token != "" && !d.store.Snapshots.Valid(token) {
		return nil, abortedf("starting_token %q is not one of ours", token)
	}
	snapshots, err := d.store.Snapshots.List()
	if err != nil {
		return nil, coded(err, "list of snapshots")
	}
	snapshots = slices.DeleteFunc(snapshots, func(s state.Snapshot) bool {
		return !s.Ready ||
			request.GetSnapshotId() != "" && s.ID != request.GetSnapshotId() ||
			request.GetSourceVolumeId() != "" && s.Volume != request.GetSourceVolumeId()
	})
	page, next, err := pageOf(snapshots, func(s state.Snapshot) string { return s.ID }, request.GetStartingToken(), request.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	response := &csi.ListSnapshotsResponse{NextToken: next}
	for _, snapshot := range page {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(snapshot)})
	}
	return response, nil
}

func (d *Driver) readySnapshot(id string) (state.Snapshot, error) {
	snapshot, err := d.store.Snapshots.Get(id)
	if err == nil && !snapshot.Ready {
		err = state.ErrNotFound
	}
	return snapshot, coded(err, "snapshot "+id)
}

func describeSnapshot(snapshot state.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId:     snapshot.ID,
		SourceVolumeId: snapshot.Volume,
		SizeBytes:      snapshot.Bytes,
		CreationTime:   timestamppb.New(snapshot.Created),
		ReadyToUse:     snapshot.Ready,
	}
}
