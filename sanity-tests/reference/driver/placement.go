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

// awaitBackend waits for the delay of the class. The delay continues between calls, so that a
// repeated call waits only for the remaining time.
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

// reserve selects a place with enough space, and writes the record of a volume without content.
func (d *Driver) reserve(volume state.Volume, from origin, requirements *csi.TopologyRequirement) (state.Volume, error) {
	nodes, err := d.candidates(volume, from, requirements)
	if err != nil {
		return volume, err
	}
	err = d.store.Transaction(func() error {
		// A reservation of an interrupted call must not be counted twice.
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

// candidates returns the nodes on which a volume may be, best first. The empty name means that all
// nodes can access it.
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

// free returns the free space in a place; limited is false if it is unlimited.
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

// GetCapacity returns the capacity of the node in the topology, or otherwise the sum of all places.
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
