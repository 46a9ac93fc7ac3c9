package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

// NodePublishVolume mounts a staged volume at a target path.
func (d *Driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetTargetPath() == "":
		return nil, invalidf("target_path is missing")
	case request.GetVolumeCapability() == nil:
		return nil, invalidf("volume_capability is missing")
	case request.GetStagingTargetPath() == "":
		return nil, preconditionf("staging_target_path is missing")
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
	stage, err := d.checkPublish(volume, request)
	if err != nil {
		return nil, err
	}
	if err := d.recordPublish(volume.ID, request); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	if err := publish(volume, stage, request); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *Driver) checkPublish(volume state.Volume, request *csi.NodePublishVolumeRequest) (state.Stage, error) {
	stage, staged := volume.Stages[d.config.NodeID]
	if !staged || stage.Path != request.GetStagingTargetPath() {
		return stage, preconditionf("volume %s is not staged at %s on node %s", volume.Name, request.GetStagingTargetPath(), d.config.NodeID)
	}
	if err := d.checkUse(volume, request.GetVolumeCapability(), request.GetVolumeContext(), request.GetPublishContext()); err != nil {
		return stage, err
	}
	return stage, checkSecret(volume, PublishSecretParameter, request.GetSecrets())
}

// recordPublish records the target, unless the volume is published for a single writer elsewhere on
// this node.
func (d *Driver) recordPublish(id string, request *csi.NodePublishVolumeRequest) error {
	wanted := state.Publish{
		AccessMode: request.GetVolumeCapability().GetAccessMode().GetMode().String(),
		ReadOnly:   request.GetReadonly(),
	}
	single := csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER.String()
	_, err := d.store.ChangeVolume(id, func(v *state.Volume) error {
		if v.Publishes == nil {
			v.Publishes = map[string]map[string]state.Publish{}
		}
		targets := v.Publishes[d.config.NodeID]
		if targets == nil {
			targets = map[string]state.Publish{}
			v.Publishes[d.config.NodeID] = targets
		}
		for path, other := range targets {
			if path == request.GetTargetPath() {
				if other != wanted {
					return existsf("volume %s is published at %s in another way", v.Name, path)
				}
			} else if other.AccessMode == single || wanted.AccessMode == single {
				return preconditionf("volume %s is for a single writer and already published at %s", v.Name, path)
			}
		}
		targets[request.GetTargetPath()] = wanted
		return nil
	})
	return err
}

func publish(volume state.Volume, stage state.Stage, request *csi.NodePublishVolumeRequest) error {
	target := request.GetTargetPath()
	mounted, err := host.IsMounted(target)
	if err != nil {
		return err
	}
	if !mounted {
		source := stage.Path
		if volume.Backing == state.Raw {
			source = stage.Device
			err = createFile(target)
		} else {
			err = os.MkdirAll(target, 0o750)
		}
		if err != nil {
			return err
		}
		var options []string
		if request.GetReadonly() || stage.ReadOnly {
			options = []string{"ro"}
		}
		if err := host.BindMount(source, target, options); err != nil {
			return err
		}
	}
	return applyMountGroup(stage, request)
}

func createFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// applyMountGroup changes the group of the files, which kubelet leaves to drivers with
// VOLUME_MOUNT_GROUP.
func applyMountGroup(stage state.Stage, request *csi.NodePublishVolumeRequest) error {
	group := request.GetVolumeCapability().GetMount().GetVolumeMountGroup()
	if group == "" || stage.ReadOnly || request.GetReadonly() {
		return nil
	}
	id, err := strconv.Atoi(group)
	if err != nil {
		return invalidf("volume_mount_group %q is no group id", group)
	}
	return host.ChangeGroup(stage.Path, id)
}

// NodeUnpublishVolume undoes a publish, also of a volume without a record.
func (d *Driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetTargetPath() == "":
		return nil, invalidf("target_path is missing")
	}
	leave, err := d.busy.enter(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := unpublish(request.GetTargetPath()); err != nil {
		return nil, coded(err, "volume "+request.GetVolumeId())
	}
	_, err = d.store.ChangeVolume(request.GetVolumeId(), func(v *state.Volume) error {
		delete(v.Publishes[d.config.NodeID], request.GetTargetPath())
		return nil
	})
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, coded(err, "volume "+request.GetVolumeId())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unpublish unmounts the target and deletes the empty mount point; it can never delete data.
func unpublish(target string) error {
	if err := host.Unmount(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
