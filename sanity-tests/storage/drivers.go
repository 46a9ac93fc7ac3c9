package storage

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/nodes"
)

// Driver is one way to run the reference driver. Four of them run side by side,
// because a driver's name carries its fsGroup policy, its need of attachment
// and its topology for a whole cluster. Only Reference has a class of each
// kind; the others exist for what sets them apart.
type Driver struct {
	// Name is the CSI driver's name, Short that of its Deployment.
	Name, Short string
	// FSGroupPolicy is that of the CSIDriver object.
	FSGroupPolicy string
	// Attach makes volumes need a VolumeAttachment.
	Attach bool
	// PublishesCapacity makes the scheduler look at CSIStorageCapacity.
	PublishesCapacity bool
	// Flags go to the driver itself, sidecars are those it runs with.
	Flags    []string
	sidecars []string
}

// The drivers. What is left out is kubelet's or the sidecars' default.
var (
	// Reference reaches its volumes from every node and needs no attachment.
	Reference = Driver{
		Name: "reference.storage.test", Short: "reference", FSGroupPolicy: "ReadWriteOnceWithFSType",
		sidecars: []string{"csi-provisioner", "csi-resizer", "csi-snapshotter"},
	}
	// Attach stages nothing that is not attached, and has an attach limit.
	Attach = Driver{
		Name: "attach.reference.storage.test", Short: "reference-attach", FSGroupPolicy: "File", Attach: true,
		Flags:    []string{"--attach", "--max-volumes-per-node=24"},
		sidecars: []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"},
	}
	// Local keeps each volume on one node and publishes what each node has left.
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

// LocalCapacityBytes is what the driver Local has on each node.
const LocalCapacityBytes = int64(20) << 30

// Drivers are all of them.
func Drivers() []Driver { return []Driver{Reference, Attach, Local, Group} }

// sidecarFlags are those beyond what all sidecars get.
func (d Driver) sidecarFlags(sidecar string) []string {
	switch sidecar {
	case "csi-provisioner":
	case "csi-resizer":
		// The stock five minutes after a refusal are longer than a test waits.
		return []string{"--retry-interval-max=10s"}
	case "csi-snapshotter":
		// So are fifteen, before one that was deleted while it was cut is looked at again.
		return []string{"--resync-period=10s", "--retry-interval-max=10s"}
	default:
		return nil
	}
	// Metadata lets fault switches and the call log name claims.
	flags := []string{"--extra-create-metadata"}
	if slices.Contains(d.sidecars, "csi-snapshotter") {
		// A snapshot whose restore was given up is held that long.
		flags = append(flags, "--snapshot-orphan-sweep-interval=10s")
	}
	if d.PublishesCapacity {
		flags = append(flags, "--strict-topology", "--enable-capacity", "--capacity-ownerref-level=2",
			"--capacity-poll-interval=10s", "--kube-api-capacity-qps=50", "--kube-api-capacity-burst=100")
	}
	return flags
}

// stateDir is the driver's state on every node of a cluster.
func (d Driver) stateDir() string { return path.Join(nodes.SharedDir, "reference", d.Name) }

// StateDir is where a driver's state is on the host: its records, its data, its
// fault switches and its call log.
func (d Driver) StateDir(cluster *clusters.Cluster) string {
	return filepath.Join(cluster.SharedDir(), "reference", d.Name)
}
