package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

// ControllerExpandVolume expands the backend, also if the volume is in use, unless its class does
// not allow that. Images are also expanded on the node; a directory has only a number.
func (d *Driver) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	if request.GetCapacityRange() == nil {
		return nil, invalidf("capacity_range is missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	leave, err := d.busy.enter(volume.ID)
	if err != nil {
		return nil, err
	}
	defer leave()
	bytes, err := chooseBytes(volume, request.GetCapacityRange(), 0)
	if err != nil {
		return nil, err
	}
	volume, err = d.store.ChangeVolume(volume.ID, func(v *state.Volume) error { return d.enlarge(v, bytes, request) })
	if err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes:         volume.Bytes,
		NodeExpansionRequired: volume.Backing != state.Directory,
	}, nil
}

func (d *Driver) enlarge(volume *state.Volume, bytes int64, request *csi.ControllerExpandVolumeRequest) error {
	if bytes <= volume.Bytes {
		if limit := request.GetCapacityRange().GetLimitBytes(); limit > 0 && volume.Bytes > limit {
			return rangef("volume %s has %d bytes already and cannot shrink", volume.Name, volume.Bytes)
		}
		return nil
	}
	if node := volume.InUse(); node != "" && volume.Parameters[GrowParameter] == "offline" {
		return preconditionf("volume %s is in use on node %s and grows only while it is not", volume.Name, node)
	}
	free, limited, err := d.free(volume.Node)
	if err != nil {
		return err
	}
	if limited && bytes-volume.Bytes > free {
		return exhaustedf("no space to grow volume %s to %d bytes on the backend", volume.Name, bytes)
	}
	if volume.Backing != state.Directory {
		if err := os.Truncate(d.store.Data(volume.ID), bytes); err != nil {
			return err
		}
	}
	volume.Bytes = bytes
	// Expanding a mounted ext4 may not be permitted.
	volume.Grow = volume.Grow || volume.Backing == state.Ext4 && volume.Formatted && len(volume.Stages) == 0
	return nil
}

// NodeExpandVolume expands a staged volume to the size that the controller has recorded.
func (d *Driver) NodeExpandVolume(ctx context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	if request.GetVolumePath() == "" {
		return nil, invalidf("volume_path is missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	leave, err := d.busy.enter(volume.ID)
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, err := os.Stat(request.GetVolumePath()); errors.Is(err, fs.ErrNotExist) {
		return nil, notFoundf("volume %s is not at %s", volume.Name, request.GetVolumePath())
	}
	stage, staged := volume.Stages[d.config.NodeID]
	switch {
	case !staged:
		return nil, preconditionf("volume %s is not staged on node %s", volume.Name, d.config.NodeID)
	case request.GetCapacityRange().GetRequiredBytes() > volume.Bytes:
		return nil, rangef("volume %s has %d bytes: expand it on the controller first", volume.Name, volume.Bytes)
	}
	if err := growStaged(ctx, volume, stage); err != nil {
		return nil, coded(errors.Join(err, d.growLater(volume.ID, err)), "volume "+volume.Name)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: volume.Bytes}, nil
}

func growStaged(ctx context.Context, volume state.Volume, stage state.Stage) error {
	if volume.Backing == state.Directory {
		return nil
	}
	if err := host.GrowLoop(stage.Device); err != nil {
		return err
	}
	if volume.Backing == state.Raw || stage.ReadOnly {
		return nil
	}
	return host.GrowMounted(ctx, stage.Device, stage.Path, string(volume.Backing))
}

// growLater leaves to the next stage an expansion that this machine does not permit now.
func (d *Driver) growLater(id string, reason error) error {
	if !errors.Is(reason, host.ErrOffline) {
		return nil
	}
	_, err := d.store.ChangeVolume(id, func(v *state.Volume) error { v.Grow = true; return nil })
	return err
}
