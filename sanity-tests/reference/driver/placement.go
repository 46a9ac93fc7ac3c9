package driver

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"storage.liqo.io/sanity-tests/reference/state"
)

// TopologyKey is the node label of a driver's node-local volumes.
func TopologyKey(driverName string) string { return "topology." + driverName + "/node" }

func (d *Driver) topologyOf(node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey(d.config.Name): node}}
}

// awaitBackend lets the slow class take its time. The backend goes on while
// nobody calls, so a caller that gives up early and comes again waits only for
// the rest.
func (d *Driver) awaitBackend(ctx context.Context, volume state.Volume) error {
	delay, err := time.ParseDuration(volume.Parameters[DelayParameter])
	if err != nil || delay == 0 {
		return nil
	}
	done, _ := d.slow.LoadOrStore(volume.ID, time.Now().Add(delay))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(done.(time.Time))):
		d.slow.Delete(volume.ID)
		return nil
	}
}

// reserve finds a place with enough space and writes the record of a volume
// that has no content yet.
func (d *Driver) reserve(volume state.Volume, from origin, requirements *csi.TopologyRequirement) (state.Volume, error) {
	nodes, err := d.candidates(volume, from, requirements)
	if err != nil {
		return volume, err
	}
	err = d.store.Transaction(func() error {
		// A reservation left by an interrupted call must not count against itself.
		if err := d.store.Volumes.Delete(volume.ID); err != nil {
			return err
		}
		for _, node := range nodes {
			free, limited, err := d.free(node)
			if err != nil {
				return err
			}
			if !limited || volume.Bytes <= free {
				volume.Node = node
				return d.store.Volumes.Put(volume.ID, volume)
			}
		}
		return exhaustedf("no space for %d bytes on the backend", volume.Bytes)
	})
	return volume, err
}

// candidates lists the nodes a volume may live on, best first. The empty name
// stands for a volume that all nodes reach.
func (d *Driver) candidates(volume state.Volume, from origin, requirements *csi.TopologyRequirement) ([]string, error) {
	if !d.config.NodeLocal || volume.Parameters[TopologyParameter] == "shared" {
		return []string{""}, nil
	}
	var nodes []string
	for _, topology := range append(requirements.GetPreferred(), requirements.GetRequisite()...) {
		if node := topology.GetSegments()[TopologyKey(d.config.Name)]; node != "" {
			nodes = append(nodes, node)
		}
	}
	if requirements == nil {
		known, err := d.store.Nodes.List()
		if err != nil {
			return nil, err
		}
		for _, node := range known {
			nodes = append(nodes, node.ID)
		}
	}
	var fitting []string
	for _, node := range nodes {
		if from.node == "" || node == from.node {
			fitting = append(fitting, node)
		}
	}
	switch {
	case len(nodes) == 0:
		return nil, exhaustedf("the required topology names no node of driver %s", d.config.Name)
	case len(fitting) == 0:
		return nil, exhaustedf("the source of volume %s lives on node %s, outside the required topology", volume.Name, from.node)
	}
	return fitting, nil
}

// free is the space left at a place; limited is false when there is no end to
// it.
func (d *Driver) free(node string) (bytes int64, limited bool, err error) {
	bytes, limited, err = d.faults.SpaceLeft()
	if err != nil || d.config.CapacityBytes == 0 {
		return bytes, limited, err
	}
	volumes, err := d.store.Volumes.List()
	if err != nil {
		return 0, false, err
	}
	left := d.config.CapacityBytes
	for _, volume := range volumes {
		if volume.Node == node {
			left -= volume.Bytes
		}
	}
	if !limited || left < bytes {
		bytes = left
	}
	return max(0, bytes), true, nil
}

// GetCapacity answers for one node when the topology names one, and otherwise
// adds up all places.
func (d *Driver) GetCapacity(_ context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	places := []string{""}
	if d.config.NodeLocal && request.GetParameters()[TopologyParameter] != "shared" {
		var err error
		places, err = d.candidates(state.Volume{}, origin{}, requirementOf(request.GetAccessibleTopology()))
		if err != nil && request.GetAccessibleTopology() == nil {
			return nil, coded(err, "capacity")
		}
	}
	response := &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}
	for _, place := range places {
		bytes, limited, err := d.free(place)
		if err != nil {
			return nil, coded(err, "capacity")
		}
		if !limited {
			return nil, coded(errors.New("this driver has no limit to report"), "capacity")
		}
		response.AvailableCapacity += bytes
		response.MaximumVolumeSize.Value = max(response.MaximumVolumeSize.Value, bytes)
	}
	return response, nil
}

func requirementOf(topology *csi.Topology) *csi.TopologyRequirement {
	if topology == nil {
		return nil
	}
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{topology}}
}
