package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/state"
)

// attachmentKey is the key of the attachment's token in the publish context.
const attachmentKey = "attachment"

// ControllerPublishVolume attaches the volume to a node. It checks in the order of the request:
// fields, volume, node, conflicts.
func (d *Driver) ControllerPublishVolume(_ context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !d.config.Attach {
		return d.UnimplementedControllerServer.ControllerPublishVolume(context.Background(), request)
	}
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetNodeId() == "":
		return nil, invalidf("node_id is missing")
	case request.GetVolumeCapability() == nil:
		return nil, invalidf("volume_capability is missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	node, err := d.store.Nodes.Get(d.store.Nodes.ID(request.GetNodeId()))
	if err != nil {
		return nil, coded(err, "node "+request.GetNodeId())
	}
	if err := checkCapability(volume, request.GetVolumeCapability()); err != nil {
		return nil, err
	}
	wanted := state.Attachment{
		Token:      rand.Text(),
		ReadOnly:   request.GetReadonly(),
		AccessMode: request.GetVolumeCapability().GetAccessMode().GetMode().String(),
	}
	attachment, err := d.attach(volume.ID, node, wanted)
	if err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{attachmentKey: attachment.Token}}, nil
}

func (d *Driver) attach(id string, node state.Node, wanted state.Attachment) (state.Attachment, error) {
	attached, err := d.attachedTo(node.ID)
	if err != nil {
		return wanted, err
	}
	_, err = d.store.ChangeVolume(id, func(v *state.Volume) error {
		if existing, ok := v.Attachments[node.ID]; ok {
			if existing.ReadOnly != wanted.ReadOnly || existing.AccessMode != wanted.AccessMode {
				return existsf("volume %s is attached to node %s in another way", v.Name, node.ID)
			}
			wanted = existing
			return nil
		}
		if !v.Ready {
			return state.ErrNotFound
		}
		if v.Node != "" && v.Node != node.ID {
			return preconditionf("volume %s lives on node %s and cannot be attached to node %s", v.Name, v.Node, node.ID)
		}
		for other, attachment := range v.Attachments {
			if singleNode(attachment.AccessMode) || singleNode(wanted.AccessMode) {
				return preconditionf("volume %s is attached to node %s and cannot go to node %s as well", v.Name, other, node.ID)
			}
		}
		if node.MaxVolumes > 0 && attached >= node.MaxVolumes {
			return exhaustedf("node %s has its %d volumes", node.ID, node.MaxVolumes)
		}
		if v.Attachments == nil {
			v.Attachments = map[string]state.Attachment{}
		}
		v.Attachments[node.ID] = wanted
		return nil
	})
	return wanted, err
}

// attachedTo counts the volumes that are attached to a node.
func (d *Driver) attachedTo(node string) (int64, error) {
	volumes, err := d.store.Volumes.List()
	if err != nil {
		return 0, err
	}
	var count int64
	for _, volume := range volumes {
		if _, ok := volume.Attachments[node]; ok {
			count++
		}
	}
	return count, nil
}

func singleNode(mode string) bool {
	switch csi.VolumeCapability_AccessMode_Mode(csi.VolumeCapability_AccessMode_Mode_value[mode]) {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return false
	}
	return true
}

// ControllerUnpublishVolume detaches the volume from one node, or from all.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !d.config.Attach {
		return d.UnimplementedControllerServer.ControllerUnpublishVolume(context.Background(), request)
	}
	if request.GetVolumeId() == "" {
		return nil, invalidf("volume_id is missing")
	}
	_, err := d.store.ChangeVolume(request.GetVolumeId(), func(v *state.Volume) error {
		maps.DeleteFunc(v.Attachments, func(node string, _ state.Attachment) bool {
			return request.GetNodeId() == "" || node == request.GetNodeId()
		})
		return nil
	})
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, coded(err, "volume "+request.GetVolumeId())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
