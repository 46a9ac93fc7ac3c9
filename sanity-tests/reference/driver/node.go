package driver

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

// NodeGetInfo returns the id and the topology of this node.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	response := &csi.NodeGetInfoResponse{NodeId: d.config.NodeID, MaxVolumesPerNode: d.config.MaxVolumesPerNode}
	if d.config.NodeLocal {
		response.AccessibleTopology = d.topologyOf(d.config.NodeID)
	}
	return response, nil
}

// NodeGetCapabilities returns the capabilities that this driver was started with.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.config.VolumeMountGroup {
		types = append(types, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range types {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// NodeStageVolume checks the whole request, records the stage, and then mounts. It keeps existing
// mounts.
func (d *Driver) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetStagingTargetPath() == "":
		return nil, invalidf("staging_target_path is missing")
	case request.GetVolumeCapability() == nil:
		return nil, invalidf("volume_capability is missing")
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
	if err := d.checkStage(volume, request); err != nil {
		return nil, err
	}
	stage := state.Stage{
		Path:     request.GetStagingTargetPath(),
		ReadOnly: readerOnly(request.GetVolumeCapability()) || volume.Attachments[d.config.NodeID].ReadOnly,
	}
	_, again := volume.Stages[d.config.NodeID]
	if volume, err = d.recordStage(volume.ID, stage); err != nil {
		return nil, coded(err, "volume "+request.GetVolumeId())
	}
	options := request.GetVolumeCapability().GetMount().GetMountFlags()
	if stage.ReadOnly {
		options = append(options, "ro")
	}
	if err := d.stage(ctx, volume, stage, options); err != nil {
		if !again {
			// No pod uses it yet, so it must not block other nodes.
			err = errors.Join(err, d.dropStage(volume, stage.Path))
		}
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *Driver) checkStage(volume state.Volume, request *csi.NodeStageVolumeRequest) error {
	if err := d.checkUse(volume, request.GetVolumeCapability(), request.GetVolumeContext(), request.GetPublishContext()); err != nil {
		return err
	}
	return checkSecret(volume, StageSecretParameter, request.GetSecrets())
}

// checkUse rejects requests without the contexts that earlier calls returned.
func (d *Driver) checkUse(volume state.Volume, capability *csi.VolumeCapability, volumeContext, publishContext map[string]string) error {
	if err := checkCapability(volume, capability); err != nil {
		return err
	}
	for key, value := range d.volumeContext(volume) {
		if volumeContext[key] != value {
			return invalidf("volume %s: volume_context[%q] is %q, not %q as CreateVolume answered", volume.Name, key, volumeContext[key], value)
		}
	}
	if volume.Node != "" && volume.Node != d.config.NodeID {
		return preconditionf("volume %s lives on node %s, this is node %s", volume.Name, volume.Node, d.config.NodeID)
	}
	if !d.config.Attach {
		return nil
	}
	attachment, attached := volume.Attachments[d.config.NodeID]
	switch {
	case !attached:
		return preconditionf("volume %s is not attached to node %s", volume.Name, d.config.NodeID)
	case publishContext[attachmentKey] != attachment.Token:
		return preconditionf("volume %s: publish_context[%q] is not of its present attachment to node %s", volume.Name, attachmentKey, d.config.NodeID)
	}
	return nil
}

func checkSecret(volume state.Volume, parameter string, secrets map[string]string) error {
	if wanted := volume.Parameters[parameter]; wanted != "" && secrets[SecretKey] != wanted {
		return invalidf("volume %s: the secret that parameter %s asks for is missing or wrong", volume.Name, parameter)
	}
	return nil
}

// recordStage records the stage before anything is mounted, unless another node has mounted the same
// filesystem image.
func (d *Driver) recordStage(id string, stage state.Stage) (state.Volume, error) {
	return d.store.ChangeVolume(id, func(v *state.Volume) error {
		if !v.Ready {
			return state.ErrNotFound
		}
		for node, other := range v.Stages {
			if node == d.config.NodeID {
				if other.Path != stage.Path {
					return preconditionf("volume %s is staged at %s", v.Name, other.Path)
				}
				stage.Device = other.Device
				continue
			}
			if v.Backing.IsFilesystemImage() && !(other.ReadOnly && stage.ReadOnly) {
				return preconditionf("volume %s is staged on node %s, and its filesystem allows one node only", v.Name, node)
			}
		}
		if v.Stages == nil {
			v.Stages = map[string]state.Stage{}
		}
		v.Stages[d.config.NodeID] = stage
		return nil
	})
}

func (d *Driver) stage(ctx context.Context, volume state.Volume, stage state.Stage, options []string) error {
	mounted, err := host.IsMounted(stage.Path)
	if err != nil {
		return err
	}
	switch volume.Backing {
	case state.Directory:
		if mounted {
			return nil
		}
		return host.BindMount(d.store.Data(volume.ID), stage.Path, options)
	case state.Raw:
		stage.Device, err = host.AttachLoop(d.store.Data(volume.ID))
	default:
		if mounted {
			return nil
		}
		stage.Device, err = d.stageImage(ctx, volume, stage, options)
	}
	if err != nil {
		return err
	}
	_, err = d.store.ChangeVolume(volume.ID, func(v *state.Volume) error {
		v.Stages[d.config.NodeID] = stage
		v.Formatted = v.Backing.IsFilesystemImage()
		v.Grow = v.Grow && stage.ReadOnly
		return nil
	})
	return err
}

// stageImage formats a new image, mounts it, and expands the filesystem to its image if that was
// left to this stage: ext4 before the mount, xfs after it, as their tools require.
func (d *Driver) stageImage(ctx context.Context, volume state.Volume, stage state.Stage, options []string) (device string, err error) {
	image := d.store.Data(volume.ID)
	grow := volume.Grow && !stage.ReadOnly
	switch {
	case !volume.Formatted:
		err = host.Format(ctx, image, string(volume.Backing))
	case grow && volume.Backing == state.Ext4:
		err = host.GrowUnmounted(ctx, image)
	}
	if err != nil {
		return "", err
	}
	// The device is never read-only, only the mount: filesystems must be able
	// to replay their journals.
	if stage.Device, err = host.AttachLoop(image); err != nil {
		return "", err
	}
	if err := mountImage(volume, stage, options); err != nil {
		return "", err
	}
	if grow && volume.Backing == state.XFS {
		err = growStaged(ctx, volume, stage)
	}
	return stage.Device, err
}

func mountImage(volume state.Volume, stage state.Stage, options []string) error {
	if volume.Backing == state.XFS {
		// A copy has the UUID of its source, which may be mounted as well.
		options = append(options, "nouuid")
	}
	return host.MountDevice(stage.Device, stage.Path, string(volume.Backing), options)
}

// NodeUnstageVolume undoes a stage, also of a volume without a record.
func (d *Driver) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetStagingTargetPath() == "":
		return nil, invalidf("staging_target_path is missing")
	}
	leave, err := d.busy.enter(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer leave()
	volume, err := d.store.Volumes.Get(request.GetVolumeId())
	if err != nil {
		volume = state.Volume{ID: request.GetVolumeId(), Name: request.GetVolumeId(), Backing: state.Directory}
	}
	if err := d.dropStage(volume, request.GetStagingTargetPath()); err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// dropStage unmounts, deletes the record of the stage, and detaches the loop device if no other
// node uses it.
func (d *Driver) dropStage(volume state.Volume, path string) error {
	if err := host.Unmount(path); err != nil {
		return err
	}
	return d.store.Transaction(func() error {
		current, err := d.store.Volumes.Get(volume.ID)
		if err != nil {
			return nil
		}
		delete(current.Stages, d.config.NodeID)
		if len(current.Stages) == 0 && current.Backing != state.Directory {
			if err := host.DetachLoop(d.store.Data(volume.ID)); err != nil {
				return err
			}
		}
		return d.store.Volumes.Put(current.ID, current)
	})
}

func readerOnly(capability *csi.VolumeCapability) bool {
	return strings.HasSuffix(capability.GetAccessMode().GetMode().String(), "READER_ONLY")
}
