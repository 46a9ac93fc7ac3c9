package storage

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/nodes"
)

// Driver is a configuration of the reference driver. Four of them run in parallel, because fsGroup
// policy, attachment and topology are settings of a driver in the whole cluster. Only Reference has
// a class of each kind; the others have what their setting needs.
type Driver struct {
	// Name is the CSI driver's name, Short the name of its Deployment.
	Name, Short string
	// FSGroupPolicy is that of the CSIDriver object.
	FSGroupPolicy string
	// Attach makes volumes require a VolumeAttachment.
	Attach bool
	// PublishesCapacity makes the scheduler use CSIStorageCapacity.
	PublishesCapacity bool
	// Flags are those of the driver, sidecars the names of its sidecars.
	Flags    []string
	sidecars []string
}

// The drivers. Omitted settings have the default of kubelet or of the sidecars.
var (
	// The volumes of Reference are accessible from every node, and need no attachment.
	Reference = Driver{
		Name: "reference.storage.test", Short: "reference", FSGroupPolicy: "ReadWriteOnceWithFSType",
		sidecars: []string{"csi-provisioner", "csi-resizer", "csi-snapshotter"},
	}
	// Attach stages only attached volumes, and has an attach limit.
	Attach = Driver{
		Name: "attach.reference.storage.test", Short: "reference-attach", FSGroupPolicy: "File", Attach: true,
		Flags:    []string{"--attach", "--max-volumes-per-node=24"},
		sidecars: []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"},
	}
	// Local keeps each volume on one node and publishes the free space of each node.
	Local = Driver{
		Name: "local.reference.storage.test", Short: "reference-local", FSGroupPolicy: "None", PublishesCapacity: true,
		Flags:    []string{"--topology=node-local", fmt.Sprintf("--capacity-bytes=%d", LocalCapacityBytes)},
		sidecars: []string{"csi-provisioner", "csi-resizer", "csi-snapshotter"},
	}
	// Group applies fsGroup itself (VOLUME_MOUNT_GROUP).
	Group = Driver{
		Name: "group.reference.storage.test", Short: "reference-group", FSGroupPolicy: "File",
		Flags:    []string{"--volume-mount-group"},
		sidecars: []string{"csi-provisioner"},
	}
)

// LocalCapacityBytes is the capacity of the driver Local on each node.
const LocalCapacityBytes = int64(20) << 30

// Drivers returns all drivers.
func Drivers() []Driver { return []Driver{Reference, Attach, Local, Group} }

// sidecarFlags returns the flags of a sidecar in addition to the common ones.
func (d Driver) sidecarFlags(sidecar string) []string {
	switch sidecar {
	case "csi-provisioner":
	case "csi-resizer":
		// The default, five minutes after an error, is longer than a test waits.
		return []string{"--retry-interval-max=10s"}
	case "csi-snapshotter":
		// The default resync of fifteen minutes, too, after which a snapshot is reconciled that was
		// deleted while it was created.
		return []string{"--resync-period=10s", "--retry-interval-max=10s"}
	default:
		return nil
	}
	// With the metadata of claims, faults and the call log can name them.
	flags := []string{"--extra-create-metadata"}
	if slices.Contains(d.sidecars, "csi-snapshotter") {
		// A snapshot is protected until this sweep after its restore was abandoned.
		flags = append(flags, "--snapshot-orphan-sweep-interval=10s")
	}
	if d.PublishesCapacity {
		flags = append(flags, "--strict-topology", "--enable-capacity", "--capacity-ownerref-level=2",
			"--capacity-poll-interval=10s", "--kube-api-capacity-qps=50", "--kube-api-capacity-burst=100")
	}
	return flags
}

// stateDir returns the driver's state directory on every node of a cluster.
func (d Driver) stateDir() string { return path.Join(nodes.SharedDir, "reference", d.Name) }

// StateDir returns the host's path of a driver's state: its records, its data, its faults and its
// call log.
func (d Driver) StateDir(cluster *clusters.Cluster) string {
	return filepath.Join(cluster.SharedDir(), "reference", d.Name)
}
