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

// NodeGetVolumeStats requires a path at which the volume is mounted. Kubelet uses its own path for
// block volumes, so that path need only exist.
func (d *Driver) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, invalidf("volume_id is missing")
	case request.GetVolumePath() == "":
		return nil, invalidf("volume_path is missing")
	}
	volume, err := d.readyVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	path := request.GetVolumePath()
	_, published := volume.Publishes[d.config.NodeID][path]
	staged := volume.Stages[d.config.NodeID].Path == path
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || volume.Backing != state.Raw && !published && !staged {
		return nil, notFoundf("volume %s is not at %s", volume.Name, path)
	}
	usage, err := measure(volume, path)
	if err != nil {
		return nil, coded(err, "volume "+volume.Name)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

func measure(volume state.Volume, path string) ([]*csi.VolumeUsage, error) {
	if volume.Backing == state.Raw {
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: volume.Bytes}}, nil
	}
	usage, err := host.FilesystemUsage(path)
	if volume.Backing == state.Directory {
		usage, err = host.DirectoryUsage(path, volume.Bytes)
	}
	if err != nil {
		return nil, err
	}
	return []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: usage.TotalBytes, Used: usage.UsedBytes, Available: usage.FreeBytes},
		{Unit: csi.VolumeUsage_INODES, Total: usage.TotalInodes, Used: usage.UsedInodes, Available: usage.FreeInodes},
	}, nil
}
