package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/internal/mounttest"
)

var imageSizes = map[string]int64{"ext4": 16 * mebibyte, "xfs": 300 * mebibyte}

// mounted is a volume that a test has staged and published.
type mounted struct {
	client
	volume          *csi.Volume
	staging, target string
	stageRequest    *csi.NodeStageVolumeRequest
	publishRequest  *csi.NodePublishVolumeRequest
}

// newMounted prepares paths and requests, and undoes everything at the end of the test.
func newMounted(t *testing.T, c client, volume *csi.Volume, capability *csi.VolumeCapability) *mounted {
	t.Helper()
	m := &mounted{client: c, volume: volume, staging: t.TempDir(), target: filepath.Join(t.TempDir(), "target")}
	m.stageRequest = &csi.NodeStageVolumeRequest{
		VolumeId: volume.GetVolumeId(), StagingTargetPath: m.staging, VolumeCapability: capability, VolumeContext: volume.GetVolumeContext()}
	m.publishRequest = &csi.NodePublishVolumeRequest{
		VolumeId: volume.GetVolumeId(), StagingTargetPath: m.staging, TargetPath: m.target, VolumeCapability: capability, VolumeContext: volume.GetVolumeContext()}
	t.Cleanup(func() { m.take(t) })
	return m
}

func (m *mounted) show(t *testing.T) {
	t.Helper()
	if _, err := m.NodeStageVolume(t.Context(), m.stageRequest); err != nil {
		t.Fatal(err)
	}
	if _, err := m.NodePublishVolume(t.Context(), m.publishRequest); err != nil {
		t.Fatal(err)
	}
}

func (m *mounted) take(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the test's context is cancelled before cleanup
	_, err := m.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: m.volume.GetVolumeId(), TargetPath: m.target})
	if err == nil {
		_, err = m.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: m.volume.GetVolumeId(), StagingTargetPath: m.staging})
	}
	if err != nil {
		t.Error(err)
	}
	image := filepath.Join(m.stateDir, "data", m.volume.GetVolumeId())
	if device, err := host.FindLoop(image); err != nil || device != "" {
		t.Errorf("loop device %q was not detached, %v", device, err)
	}
}

func (m *mounted) expand(t *testing.T, bytes int64) (nodeExpansion bool) {
	t.Helper()
	response, err := m.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: m.volume.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetNodeExpansionRequired()
}

func (m *mounted) expandOnNode(t *testing.T, bytes int64) {
	t.Helper()
	if _, err := m.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: m.volume.GetVolumeId(), VolumePath: m.target, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}}); err != nil {
		t.Fatal(err)
	}
}

func (m *mounted) bytes(t *testing.T) int64 {
	t.Helper()
	usage, err := host.FilesystemUsage(m.target)
	if err != nil {
		t.Fatal(err)
	}
	return usage.TotalBytes
}

// wantBytes checks a size, minus what a filesystem uses for itself.
func (m *mounted) wantBytes(t *testing.T, want int64) {
	t.Helper()
	if got := m.bytes(t); got < want*3/4 || got > want {
		t.Errorf("filesystem of %d bytes, want almost %d", got, want)
	}
}

func (m *mounted) write(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.target, "file"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *mounted) wantContent(t *testing.T, content string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(m.target, "file")); err != nil || string(got) != content {
		t.Errorf("content %q, %v; want %q", got, err, content)
	}
}

func TestImagesGrowOnline(t *testing.T) {
	mounttest.NeedRoot(t)
	for filesystem, bytes := range imageSizes {
		t.Run(filesystem, func(t *testing.T) {
			if !host.CanGrowMounted(filesystem) {
				t.Skip(host.ErrOffline)
			}
			c := start(t, Config{})
			m := newMounted(t, c, c.create(t, request("v", bytes, map[string]string{"backing": filesystem})), oneNode)
			m.show(t)
			m.write(t, "before")
			if !m.expand(t, 2*bytes) {
				t.Error("an image needs expansion on the node")
			}
			if m.bytes(t) > bytes {
				t.Error("the filesystem grew before NodeExpandVolume")
			}
			m.expandOnNode(t, 2*bytes)
			m.wantBytes(t, 2*bytes)
			m.wantContent(t, "before")
		})
	}
}

func TestImagesGrowOffline(t *testing.T) {
	mounttest.NeedRoot(t)
	for filesystem, bytes := range imageSizes {
		t.Run(filesystem, func(t *testing.T) {
			c := start(t, Config{})
			m := newMounted(t, c, c.create(t, request("v", bytes, map[string]string{"backing": filesystem})), oneNode)
			m.show(t)
			m.write(t, "before")
			m.take(t)
			m.expand(t, 2*bytes)
			m.show(t)
			m.expandOnNode(t, 2*bytes)
			m.wantBytes(t, 2*bytes)
			m.wantContent(t, "before")
		})
	}
}

func TestVolumeThatCannotGrowOnlineGrowsAtTheNextStage(t *testing.T) {
	mounttest.NeedRoot(t)
	if host.CanGrowMounted("ext4") {
		t.Skip("this machine can grow ext4 while it is mounted")
	}
	c := start(t, Config{})
	m := newMounted(t, c, c.create(t, request("v", 16*mebibyte, map[string]string{"backing": "ext4"})), oneNode)
	m.show(t)
	m.expand(t, 32*mebibyte)
	_, err := m.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: m.volume.GetVolumeId(), VolumePath: m.target})
	wantCode(t, err, codes.FailedPrecondition, "CAP_SYS_RESOURCE")
	m.take(t)
	m.show(t)
	m.wantBytes(t, 32*mebibyte)
}

func TestSnapshotsAndClonesAreIndependentAndMayBeLarger(t *testing.T) {
	mounttest.NeedRoot(t)
	for backing, bytes := range map[string]int64{"directory": mebibyte, "ext4": 16 * mebibyte, "xfs": 300 * mebibyte} {
		t.Run(backing, func(t *testing.T) {
			c := start(t, Config{})
			parameters := map[string]string{"backing": backing}
			source := newMounted(t, c, c.create(t, request("source", bytes, parameters)), oneNode)
			source.show(t)
			source.write(t, "old")
			snapshot, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: source.volume.GetVolumeId()})
			if err != nil {
				t.Fatal(err)
			}
			source.write(t, "new")
			restored, cloned := request("restored", 2*bytes, parameters), request("cloned", 0, parameters)
			restored.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()}}}
			cloned.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.volume.GetVolumeId()}}}

			fromSnapshot := newMounted(t, c, c.create(t, restored), oneNode)
			fromSnapshot.show(t)
			fromSnapshot.wantContent(t, "old")
			if backing != "directory" {
				fromSnapshot.wantBytes(t, 2*bytes)
			}
			clone := newMounted(t, c, c.create(t, cloned), oneNode)
			clone.show(t)
			clone.wantContent(t, "new")
			clone.write(t, "its own")
			source.wantContent(t, "new")
		})
	}
}

func TestMountOptionsAndReadOnlyAreHonoured(t *testing.T) {
	mounttest.NeedRoot(t)
	for _, backing := range []string{"directory", "ext4"} {
		t.Run(backing, func(t *testing.T) {
			c := start(t, Config{})
			noatime := capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "noatime")
			m := newMounted(t, c, c.create(t, request("v", 16*mebibyte, map[string]string{"backing": backing})), noatime)
			m.publishRequest.Readonly = true
			m.show(t)
			table, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(table)) {
				fields := strings.Fields(line)
				if fields[4] == m.target && fields[5] != "ro,noatime" {
					t.Errorf("mounted with %s", fields[5])
				}
			}
			if err := os.WriteFile(filepath.Join(m.target, "file"), nil, 0o600); err == nil {
				t.Error("a read-only volume can be written")
			}
			odd := newMounted(t, c, c.create(t, request("odd", 16*mebibyte, map[string]string{"backing": backing})),
				capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "frobnicate"))
			_, err = odd.NodeStageVolume(t.Context(), odd.stageRequest)
			wantCode(t, err, codes.InvalidArgument, "frobnicate")
		})
	}
}

func TestStageRejectsRequestsWithMissingFields(t *testing.T) {
	mounttest.NeedRoot(t)
	c := start(t, Config{Attach: true})
	m := newMounted(t, c, c.create(t, request("v", mebibyte, map[string]string{"requireStageSecret": "s3cret"})), oneNode)
	_, err := m.NodeStageVolume(t.Context(), m.stageRequest)
	wantCode(t, err, codes.FailedPrecondition, "not attached")
	attachment, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: m.volume.GetVolumeId(), NodeId: "node-1", VolumeCapability: oneNode})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.NodeStageVolume(t.Context(), m.stageRequest)
	wantCode(t, err, codes.FailedPrecondition, "publish_context")
	m.stageRequest.PublishContext = attachment.GetPublishContext()
	_, err = m.NodeStageVolume(t.Context(), m.stageRequest)
	wantCode(t, err, codes.InvalidArgument, "secret")
	m.stageRequest.Secrets = map[string]string{SecretKey: "s3cret"}
	m.stageRequest.VolumeContext = nil
	_, err = m.NodeStageVolume(t.Context(), m.stageRequest)
	wantCode(t, err, codes.InvalidArgument, "volume_context")
	m.stageRequest.VolumeContext = m.volume.GetVolumeContext()
	m.publishRequest.PublishContext = attachment.GetPublishContext()
	m.show(t)
}

func TestFilesystemImageIsStagedOnOnlyOneNode(t *testing.T) {
	mounttest.NeedRoot(t)
	dir := t.TempDir()
	one, two := start(t, Config{StateDir: dir}), start(t, Config{StateDir: dir, NodeID: "node-2"})
	volume := one.create(t, request("v", 16*mebibyte, map[string]string{"backing": "ext4"}))
	first, second := newMounted(t, one, volume, oneNode), newMounted(t, two, volume, oneNode)
	first.show(t)
	_, err := second.NodeStageVolume(t.Context(), second.stageRequest)
	wantCode(t, err, codes.FailedPrecondition, "node-1")
	first.take(t)
	second.show(t)
}

func TestBlockVolumesShareOneDeviceOnAllNodes(t *testing.T) {
	mounttest.NeedRoot(t)
	dir := t.TempDir()
	one, two := start(t, Config{StateDir: dir}), start(t, Config{StateDir: dir, NodeID: "node-2"})
	block := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: manyNodes.GetAccessMode()}
	wanted := request("v", 4*mebibyte, nil)
	wanted.VolumeCapabilities = []*csi.VolumeCapability{block}
	volume := one.create(t, wanted)
	second, first := newMounted(t, two, volume, block), newMounted(t, one, volume, block)
	first.show(t)
	second.show(t)
	if err := os.WriteFile(first.target, []byte("shared"), 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("shared"))
	device, err := os.Open(second.target)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.Read(got); err != nil || string(got) != "shared" {
		t.Errorf("read %q, %v on the other node", got, err)
	}
	first.expand(t, 8*mebibyte)
	first.expandOnNode(t, 8*mebibyte)
	if end, err := device.Seek(0, 2); err != nil || end != 8*mebibyte {
		t.Errorf("device has %d bytes, %v", end, err)
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
	if _, err := first.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: volume.GetVolumeId(), StagingTargetPath: first.staging}); err != nil {
		t.Error(err)
	}
	if device, err := host.FindLoop(filepath.Join(dir, "data", volume.GetVolumeId())); err != nil || device == "" {
		t.Errorf("the other node lost its device, %v", err)
	}
	second.take(t)
}

func TestMountGroup(t *testing.T) {
	mounttest.NeedRoot(t)
	c := start(t, Config{VolumeMountGroup: true})
	grouped := capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	grouped.GetMount().VolumeMountGroup = "4321"
	m := newMounted(t, c, c.create(t, request("v", mebibyte, nil)), grouped)
	m.show(t)
	info, err := os.Stat(m.target)
	if err != nil {
		t.Fatal(err)
	}
	if group := info.Sys().(*syscall.Stat_t).Gid; group != 4321 || info.Mode()&os.ModeSetgid == 0 || info.Mode().Perm()&0o070 != 0o070 {
		t.Errorf("group %d, mode %v", group, info.Mode())
	}
}
