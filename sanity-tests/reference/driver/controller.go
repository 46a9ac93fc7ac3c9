package driver

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

// ControllerGetCapabilities returns the capabilities that this driver was started with.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.config.Attach {
		types = append(types, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	}
	if d.config.CapacityBytes > 0 {
		types = append(types, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range types {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// CreateVolume reserves the space, creates the content, and only then lists the volume. A repeated
// call continues an interrupted one.
func (d *Driver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.GetName() == "" {
		return nil, invalidf("name is missing")
	}
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, invalidf("volume_capabilities are missing")
	}
	volume, err := d.parseVolume(request)
	if err != nil {
		return nil, err
	}
	leave, err := d.busy.enter(volume.ID)
	if err != nil {
		return nil, err
	}
	defer leave()

	existing, err := d.store.Volumes.Get(volume.ID)
	if err == nil && existing.Ready {
		if difference := differs(existing, volume, request); difference != "" {
			return nil, existsf("volume %s exists with another %s", volume.Name, difference)
		}
		return &csi.CreateVolumeResponse{Volume: d.describeVolume(existing)}, nil
	}
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, coded(err, "volume "+volume.Name)
	}
	origin, err := d.contentOrigin(volume)
	if err != nil {
		return nil, err
	}
	if volume.Bytes, err = chooseBytes(volume, request.GetCapacityRange(), origin.bytes); err != nil {
		return nil, err
	}
	if err := d.awaitBackend(ctx, volume); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	if volume, err = d.reserve(volume, origin, request.GetAccessibilityRequirements()); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	if volume, err = d.fill(ctx, volume, origin); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.CreateVolumeResponse{Volume: d.describeVolume(volume)}, nil
}

// differs returns what of an existing volume contradicts the request. It does not compare the
// topology: a repeated request may have another one, and the response has the actual one.
func differs(existing, wanted state.Volume, request *csi.CreateVolumeRequest) string {
	switch {
	case !inRange(existing.Bytes, request.GetCapacityRange()):
		return "size"
	case existing.Backing != wanted.Backing:
		return "backing"
	case !maps.Equal(existing.Parameters, wanted.Parameters):
		return "set of parameters"
	case existing.SourceVolume != wanted.SourceVolume || existing.SourceSnapshot != wanted.SourceSnapshot:
		return "source"
	}
	return ""
}

// origin is the source of a new volume's content; the zero value means that it is empty.
type origin struct {
	id        string
	bytes     int64
	backing   state.Backing
	node      string
	formatted bool
}

func (d *Driver) contentOrigin(volume state.Volume) (origin, error) {
	var from origin
	switch {
	case volume.SourceSnapshot != "":
		snapshot, err := d.readySnapshot(volume.SourceSnapshot)
		if err != nil {
			return from, err
		}
		from = origin{snapshot.ID, snapshot.Bytes, snapshot.Backing, snapshot.Node, snapshot.Formatted}
	case volume.SourceVolume != "":
		source, err := d.readyVolume(volume.SourceVolume)
		if err != nil {
			return from, err
		}
		from = origin{source.ID, source.Bytes, source.Backing, source.Node, source.Formatted}
	default:
		return from, nil
	}
	if from.backing != volume.Backing {
		return from, invalidf("volume %s: a %s volume cannot be made from a %s source", volume.Name, volume.Backing, from.backing)
	}
	return from, nil
}

// fill creates the content of a reserved volume and sets Ready. If it fails, it deletes the
// reservation.
func (d *Driver) fill(ctx context.Context, volume state.Volume, from origin) (state.Volume, error) {
	if err := d.makeContent(ctx, volume, from); err != nil {
		return volume, errors.Join(err, d.removeVolume(volume.ID))
	}
	return d.store.ChangeVolume(volume.ID, func(v *state.Volume) error {
		v.Ready = true
		v.Formatted = from.formatted
		v.Grow = from.formatted && v.Bytes > from.bytes
		volume = *v
		return nil
	})
}

func (d *Driver) makeContent(ctx context.Context, volume state.Volume, from origin) error {
	path := d.store.Data(volume.ID)
	if err := os.RemoveAll(path); err != nil { // left by an interrupted call
		return err
	}
	if from.id != "" {
		if err := d.copy(ctx, from, path); err != nil {
			return err
		}
	}
	if volume.Backing == state.Directory {
		return os.MkdirAll(path, 0o755)
	}
	return host.CreateImage(path, volume.Bytes)
}

// copy copies a volume or a snapshot. The copy of a filesystem is of one moment; directories and
// raw devices must not be written meanwhile.
func (d *Driver) copy(ctx context.Context, from origin, target string) error {
	if from.formatted {
		return host.CopyPointInTime(ctx, d.store.Data(from.id), string(from.backing), target)
	}
	return host.Copy(ctx, d.store.Data(from.id), target)
}

// removeVolume deletes the content first, so that no content is left without a record.
func (d *Driver) removeVolume(id string) error {
	if err := os.RemoveAll(d.store.Data(id)); err != nil {
		return err
	}
	return d.store.Transaction(func() error { return d.store.Volumes.Delete(id) })
}

// DeleteVolume fails while a node uses the volume, so that no data disappears under a running pod.
func (d *Driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := request.GetVolumeId()
	if id == "" {
		return nil, invalidf("volume_id is missing")
	}
	leave, err := d.busy.enter(id)
	if err != nil {
		return nil, err
	}
	defer leave()
	volume, err := d.store.ChangeVolume(id, func(v *state.Volume) error {
		if node := v.InUse(); node != "" {
			return preconditionf("volume %s is still in use on node %s", v.Name, node)
		}
		v.Ready = false // from now on the volume cannot be attached or staged
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err == nil {
		err = d.removeVolume(id)
	}
	d.slow.Delete(id)
	return &csi.DeleteVolumeResponse{}, coded(err, "volume "+volume.Name)
}

// ValidateVolumeCapabilities confirms what CreateVolume would accept.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, invalidf("volume_capabilities are missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := checkCapabilities(volume, request.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      request.GetVolumeContext(),
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
			MutableParameters:  request.GetMutableParameters(),
		},
	}, nil
}

// ControllerModifyVolume applies all changes or none.
func (d *Driver) ControllerModifyVolume(_ context.Context, request *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	if _, err := d.readyVolume(request.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkMutable(request.GetMutableParameters()); err != nil {
		return nil, err
	}
	_, err := d.store.ChangeVolume(request.GetVolumeId(), func(v *state.Volume) error {
		if v.Mutable == nil {
			v.Mutable = map[string]string{}
		}
		maps.Copy(v.Mutable, request.GetMutableParameters())
		return nil
	})
	return &csi.ControllerModifyVolumeResponse{}, coded(err, "volume "+request.GetVolumeId())
}

// ControllerGetVolume describes one volume.
func (d *Driver) ControllerGetVolume(_ context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: d.describeVolume(volume),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{
			PublishedNodeIds: slices.Sorted(maps.Keys(volume.Attachments)),
		},
	}, nil
}

// ListVolumes orders pages by id, so that volumes that are created or deleted between two pages do
// not shift others.
func (d *Driver) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if token := request.GetStartingToken(); token != "" && !d.store.Volumes.Valid(token) {
		return nil, abortedf("starting_token %q is not one of ours", token)
	}
	volumes, err := d.store.Volumes.List()
	if err != nil {
		return nil, coded(err, "list of volumes")
	}
	volumes = slices.DeleteFunc(volumes, func(v state.Volume) bool { return !v.Ready })
	page, next, err := pageOf(volumes, func(v state.Volume) string { return v.ID }, request.GetStartingToken(), request.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, volume := range page {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: d.describeVolume(volume)})
	}
	return response, nil
}

// pageOf returns a page of records ordered by id. The token is the id of the last record of the
// previous page.
func pageOf[T any](records []T, id func(T) string, token string, limit int32) (page []T, next string, err error) {
	if limit < 0 {
		return nil, "", invalidf("max_entries is negative")
	}
	records = slices.DeleteFunc(records, func(record T) bool { return id(record) <= token })
	if limit == 0 || len(records) <= int(limit) {
		return records, "", nil
	}
	return records[:limit], id(records[limit-1]), nil
}

// readyVolume returns a volume whose content is complete.
func (d *Driver) readyVolume(id string) (state.Volume, error) {
	volume, err := d.store.Volumes.Get(id)
	if err == nil && !volume.Ready {
		err = state.ErrNotFound
	}
	return volume, coded(err, "volume "+id)
}

func (d *Driver) describeVolume(volume state.Volume) *csi.Volume {
	described := &csi.Volume{
		VolumeId:      volume.ID,
		CapacityBytes: volume.Bytes,
		VolumeContext: d.volumeContext(volume),
	}
	if volume.Node != "" {
		described.AccessibleTopology = []*csi.Topology{d.topologyOf(volume.Node)}
	}
	switch {
	case volume.SourceSnapshot != "":
		described.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: volume.SourceSnapshot}}}
	case volume.SourceVolume != "":
		described.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: volume.SourceVolume}}}
	}
	return described
}

// volumeContext returns the context that requests to stage and publish must have.
func (d *Driver) volumeContext(volume state.Volume) map[string]string {
	return map[string]string{"volume": volume.ID, "backing": string(volume.Backing)}
}
