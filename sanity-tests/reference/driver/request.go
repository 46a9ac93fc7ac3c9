package driver

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/state"
)

// Parameters of a StorageClass. Others are rejected.
const (
	// BackingParameter is directory (the default), ext4 or xfs.
	BackingParameter = "backing"
	// DelayParameter delays the creation of each volume by this time.
	DelayParameter = "delay"
	// TopologyParameter is shared or node-local; the default is the driver's setting.
	TopologyParameter = "topology"
	// RoundParameter is a number of mebibytes: sizes are multiples of it.
	RoundParameter = "roundToMebibytes"
	// GrowParameter is online (the default), or offline: no expansion while the volume is in use.
	GrowParameter = "grow"
	// StageSecretParameter and PublishSecretParameter hold the password that
	// the secret of NodeStage and NodePublish must carry under SecretKey.
	StageSecretParameter   = "requireStageSecret"
	PublishSecretParameter = "requirePublishSecret"

	SecretKey = "password"

	provisionerPrefix = "csi.storage.k8s.io/"
	claimNameKey      = provisionerPrefix + "pvc/name"
	claimNamespaceKey = provisionerPrefix + "pvc/namespace"
)

// Keys of a VolumeAttributesClass; values are positive whole numbers.
var mutableKeys = []string{"iops", "throughput"}

const (
	mebibyte     = int64(1) << 20
	defaultBytes = int64(1) << 30
	maximumBytes = int64(1) << 44 // what ext4 takes with its default features
)

// Minimum image sizes of their mkfs.
var minimumBytes = map[state.Backing]int64{state.Ext4: 8 * mebibyte, state.XFS: 300 * mebibyte, state.Raw: mebibyte, state.Directory: 1}

// parseVolume returns the record of the requested volume, without node, size or content.
func (d *Driver) parseVolume(request *csi.CreateVolumeRequest) (state.Volume, error) {
	volume := state.Volume{
		ID:         d.store.Volumes.ID(request.GetName()),
		Name:       request.GetName(),
		Claim:      claimName(request.GetParameters()),
		Backing:    state.Directory,
		Parameters: map[string]string{},
		Mutable:    maps.Clone(request.GetMutableParameters()),
	}
	for key, value := range request.GetParameters() {
		if isProvisionerKey(key) {
			continue // parameters that the provisioner adds, and not the class
		}
		if err := checkParameter(key, value); err != nil {
			return volume, err
		}
		volume.Parameters[key] = value
	}
	if volume.Parameters[TopologyParameter] == "node-local" && !d.config.NodeLocal {
		return volume, invalidf("parameter topology: driver %s has no node-local volumes", d.config.Name)
	}
	if backing := volume.Parameters[BackingParameter]; backing != "" {
		volume.Backing = state.Backing(backing)
	}
	if err := checkMutable(volume.Mutable); err != nil {
		return volume, err
	}
	// A block volume does not depend on the filesystem of its class.
	if wantsBlock(request.GetVolumeCapabilities()) {
		volume.Backing = state.Raw
	}
	if err := checkCapabilities(volume, request.GetVolumeCapabilities()); err != nil {
		return volume, err
	}
	source := request.GetVolumeContentSource()
	volume.SourceVolume = source.GetVolume().GetVolumeId()
	volume.SourceSnapshot = source.GetSnapshot().GetSnapshotId()
	if source != nil && volume.SourceVolume == "" && volume.SourceSnapshot == "" {
		return volume, invalidf("volume_content_source names neither a volume nor a snapshot")
	}
	return volume, nil
}

func isProvisionerKey(key string) bool { return strings.HasPrefix(key, provisionerPrefix) }

func checkParameter(key, value string) error {
	valid := false
	switch key {
	case BackingParameter:
		valid = slices.Contains([]string{"directory", "ext4", "xfs"}, value)
	case TopologyParameter:
		valid = value == "shared" || value == "node-local"
	case DelayParameter:
		delay, err := time.ParseDuration(value)
		valid = err == nil && delay >= 0
	case RoundParameter:
		step, err := strconv.ParseInt(value, 10, 64)
		valid = err == nil && step > 0 && step <= maximumBytes/mebibyte
	case GrowParameter:
		valid = value == "online" || value == "offline"
	case StageSecretParameter, PublishSecretParameter:
		valid = value != ""
	default:
		return invalidf("unknown parameter %q", key)
	}
	if !valid {
		return invalidf("parameter %s: %q makes no sense", key, value)
	}
	return nil
}

func checkMutable(parameters map[string]string) error {
	for key, value := range parameters {
		if !slices.Contains(mutableKeys, key) {
			return invalidf("unknown mutable parameter %q: use %s", key, strings.Join(mutableKeys, ", "))
		}
		if number, err := strconv.ParseInt(value, 10, 64); err != nil || number <= 0 {
			return invalidf("mutable parameter %s: %q is no positive number", key, value)
		}
	}
	return nil
}

func wantsBlock(capabilities []*csi.VolumeCapability) bool {
	return len(capabilities) > 0 && capabilities[0].GetBlock() != nil
}

// checkCapabilities returns why a volume cannot be used as requested, if so.
func checkCapabilities(volume state.Volume, capabilities []*csi.VolumeCapability) error {
	for _, capability := range capabilities {
		if err := checkCapability(volume, capability); err != nil {
			return err
		}
	}
	return nil
}

func checkCapability(volume state.Volume, capability *csi.VolumeCapability) error {
	switch {
	case capability.GetBlock() != nil && volume.Backing != state.Raw:
		return invalidf("volume %s is a filesystem, not a block device", volume.Name)
	case capability.GetBlock() == nil && capability.GetMount() == nil:
		return invalidf("volume capability has no access type")
	case capability.GetMount() != nil && volume.Backing == state.Raw:
		return invalidf("volume %s is a block device, not a filesystem", volume.Name)
	}
	// A directory is in the machine's own filesystem, whatever type is requested.
	filesystem := capability.GetMount().GetFsType()
	if volume.Backing.IsFilesystemImage() && filesystem != "" && filesystem != string(volume.Backing) {
		return invalidf("volume %s is made of %s, not %s", volume.Name, volume.Backing, filesystem)
	}
	switch mode := capability.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return invalidf("volume capability has no access mode")
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		if volume.Backing.IsFilesystemImage() {
			return invalidf("volume %s: %s can be written on one node only, not %s", volume.Name, volume.Backing, mode)
		}
	}
	return nil
}

// chooseBytes returns a size within the range, and at least that of the content.
func chooseBytes(volume state.Volume, capacity *csi.CapacityRange, content int64) (int64, error) {
	required, limit := capacity.GetRequiredBytes(), capacity.GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && limit < required {
		return 0, invalidf("capacity range from %d to %d makes no sense", required, limit)
	}
	bytes := required
	if bytes == 0 {
		bytes = defaultBytes
		if content > 0 {
			bytes = content
		}
		if limit > 0 {
			bytes = min(bytes, limit)
		}
	}
	if required > 0 && bytes < content || limit > 0 && limit < content {
		return 0, rangef("%d bytes are too few for a source of %d bytes", bytes, content)
	}
	minimum := minimumBytes[volume.Backing]
	bytes = roundUp(max(bytes, minimum), volume.Parameters[RoundParameter])
	if limit > 0 && bytes > limit || bytes > maximumBytes {
		return 0, rangef("%s volumes have %d to %d bytes, asked for %d to %d", volume.Backing, minimum, maximumBytes, required, limit)
	}
	return bytes, nil
}

// roundUp returns the next multiple of this number of mebibytes, or the same size without a number.
func roundUp(bytes int64, mebibytes string) int64 {
	step, err := strconv.ParseInt(mebibytes, 10, 64)
	if err != nil {
		return bytes
	}
	step *= mebibyte
	return (bytes + step - 1) / step * step
}

func inRange(bytes int64, capacity *csi.CapacityRange) bool {
	return bytes >= capacity.GetRequiredBytes() && (capacity.GetLimitBytes() == 0 || bytes <= capacity.GetLimitBytes())
}

func claimName(parameters map[string]string) string {
	if parameters[claimNameKey] == "" {
		return ""
	}
	return parameters[claimNamespaceKey] + "/" + parameters[claimNameKey]
}
