package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"storage.liqo.io/sanity-tests/reference/state"
)

// CallLogFile is the name of the call log below a state directory.
const CallLogFile = "calls.log"

// Call is one line of the call log: a call to the driver and its result. It has the keys of
// contexts and the names of secrets, not their values.
type Call struct {
	Time           time.Time `json:"time"`
	Driver         string    `json:"driver"`
	Node           string    `json:"node,omitempty"` // the process that was called
	RPC            string    `json:"rpc"`
	Code           string    `json:"code"`
	Message        string    `json:"message,omitempty"`
	Milliseconds   int64     `json:"milliseconds"`
	Name           string    `json:"name,omitempty"` // of the volume or snapshot
	Volume         string    `json:"volume,omitempty"`
	Snapshot       string    `json:"snapshot,omitempty"`
	Claim          string    `json:"claim,omitempty"`
	PublishNode    string    `json:"publishNode,omitempty"`
	Staging        string    `json:"staging,omitempty"`
	Target         string    `json:"target,omitempty"`
	VolumePath     string    `json:"volumePath,omitempty"`
	Bytes          int64     `json:"bytes,omitempty"`
	AccessMode     string    `json:"accessMode,omitempty"`
	Block          bool      `json:"block,omitempty"`
	FSType         string    `json:"fsType,omitempty"`
	MountFlags     []string  `json:"mountFlags,omitempty"`
	MountGroup     string    `json:"mountGroup,omitempty"`
	ReadOnly       bool      `json:"readOnly,omitempty"`
	VolumeContext  []string  `json:"volumeContext,omitempty"` // pod info arrives here too
	PublishContext []string  `json:"publishContext,omitempty"`
	Secrets        []string  `json:"secrets,omitempty"`
}

type callLog struct{ path string }

// add appends one line in one write, so that lines of several processes do not
// mix.
func (l *callLog) add(call Call) error {
	line, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("encode call: %w", err)
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open call log: %w", err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write call log: %w", err)
	}
	return nil
}

// record writes every call to the call log, and failures to the process log.
func (d *Driver) record(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	call := describe(request)
	call.Time, call.Driver, call.Node, call.RPC = time.Now().UTC(), d.config.Name, d.config.NodeID, rpcName(info)
	// DeleteVolume deletes the record with the claim.
	if volume, err := d.store.Volumes.Get(call.Volume); err == nil {
		call.Claim = volume.Claim
	}
	answer, err := handle(ctx, request)
	result := status.Convert(err)
	call.Code, call.Message = result.Code().String(), result.Message()
	call.Milliseconds = time.Since(call.Time).Milliseconds()
	if err != nil {
		slog.Warn("call failed", "rpc", call.RPC, "volume", call.Volume, "name", call.Name, "code", call.Code, "message", call.Message)
	}
	if logErr := d.calls.add(call); logErr != nil {
		slog.Error("call not recorded", "rpc", call.RPC, "error", logErr)
	}
	return answer, err
}

// describe reads the fields that requests have in common.
func describe(request any) Call {
	var call Call
	if r, ok := request.(interface{ GetName() string }); ok {
		call.Name = r.GetName()
	}
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		call.Volume = r.GetVolumeId()
	}
	if r, ok := request.(interface{ GetSourceVolumeId() string }); ok {
		call.Volume = r.GetSourceVolumeId()
	}
	if r, ok := request.(interface{ GetSnapshotId() string }); ok {
		call.Snapshot = r.GetSnapshotId()
	}
	if r, ok := request.(interface{ GetParameters() map[string]string }); ok {
		call.Claim = claimName(r.GetParameters())
	}
	if r, ok := request.(interface{ GetNodeId() string }); ok {
		call.PublishNode = r.GetNodeId()
	}
	if r, ok := request.(interface{ GetStagingTargetPath() string }); ok {
		call.Staging = r.GetStagingTargetPath()
	}
	if r, ok := request.(interface{ GetTargetPath() string }); ok {
		call.Target = r.GetTargetPath()
	}
	if r, ok := request.(interface{ GetVolumePath() string }); ok {
		call.VolumePath = r.GetVolumePath()
	}
	if r, ok := request.(interface{ GetReadonly() bool }); ok {
		call.ReadOnly = r.GetReadonly()
	}
	if r, ok := request.(interface{ GetCapacityRange() *csi.CapacityRange }); ok {
		call.Bytes = r.GetCapacityRange().GetRequiredBytes()
	}
	if r, ok := request.(interface{ GetVolumeContext() map[string]string }); ok {
		call.VolumeContext = slices.Sorted(maps.Keys(r.GetVolumeContext()))
	}
	if r, ok := request.(interface{ GetPublishContext() map[string]string }); ok {
		call.PublishContext = slices.Sorted(maps.Keys(r.GetPublishContext()))
	}
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		call.Secrets = slices.Sorted(maps.Keys(r.GetSecrets()))
	}
	describeCapability(request, &call)
	return call
}

func describeCapability(request any, call *Call) {
	var capability *csi.VolumeCapability
	switch r := request.(type) {
	case interface {
		GetVolumeCapability() *csi.VolumeCapability
	}:
		capability = r.GetVolumeCapability()
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		if all := r.GetVolumeCapabilities(); len(all) > 0 {
			capability = all[0]
		}
	}
	if capability == nil {
		return
	}
	call.AccessMode = capability.GetAccessMode().GetMode().String()
	call.Block = capability.GetBlock() != nil
	call.FSType = capability.GetMount().GetFsType()
	call.MountFlags = capability.GetMount().GetMountFlags()
	call.MountGroup = capability.GetMount().GetVolumeMountGroup()
}

// subjects returns all names by which a fault rule can match the object of a call.
func (d *Driver) subjects(request any) []string {
	call := describe(request)
	names := []string{call.Name, call.Volume, call.Snapshot, call.Claim}
	if volume, err := d.store.Volumes.Get(call.Volume); err == nil {
		names = append(names, volume.Name, volume.Claim)
	}
	if snapshot, err := d.store.Snapshots.Get(call.Snapshot); err == nil {
		names = append(names, d.snapshotSubjects(snapshot)...)
	}
	return names
}

func (d *Driver) snapshotSubjects(snapshot state.Snapshot) []string {
	names := []string{snapshot.Name, snapshot.Volume}
	if volume, err := d.store.Volumes.Get(snapshot.Volume); err == nil {
		names = append(names, volume.Name, volume.Claim)
	}
	return names
}

func rpcName(info *grpc.UnaryServerInfo) string { return path.Base(info.FullMethod) }
