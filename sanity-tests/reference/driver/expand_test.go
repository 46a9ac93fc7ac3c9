package driver

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// grow requests a larger volume.
func (c client) grow(t *testing.T, volume *csi.Volume, bytes int64) (*csi.ControllerExpandVolumeResponse, error) {
	t.Helper()
	return c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: volume.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
}

func TestSizesAreRoundedUp(t *testing.T) {
	c := start(t, Config{})
	rounded := request("rounded", 64*mebibyte, map[string]string{"roundToMebibytes": "100"})
	volume := c.create(t, rounded)
	if got := volume.GetCapacityBytes(); got != 100*mebibyte {
		t.Errorf("64 MiB are rounded to %d bytes", got)
	}
	if again := c.create(t, rounded); again.GetVolumeId() != volume.GetVolumeId() {
		t.Error("a repeated request returns another volume")
	}
	for wanted, has := range map[int64]int64{100: 100, 101: 200, 300: 300} {
		fresh := c.create(t, request(fmt.Sprint(wanted), mebibyte, map[string]string{"roundToMebibytes": "100"}))
		answer, err := c.grow(t, fresh, wanted*mebibyte)
		if err != nil || answer.GetCapacityBytes() != has*mebibyte {
			t.Errorf("%d MiB are rounded to %d bytes, %v", wanted, answer.GetCapacityBytes(), err)
		}
	}
}

func TestOfflineVolumesGrowOnlyWhileNotInUse(t *testing.T) {
	c := start(t, Config{Attach: true})
	volume := c.create(t, request("offline", mebibyte, map[string]string{"grow": "offline"}))
	if _, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: volume.GetVolumeId(), NodeId: "node-1", VolumeCapability: oneNode,
	}); err != nil {
		t.Fatal(err)
	}
	_, err := c.grow(t, volume, 2*mebibyte)
	wantCode(t, err, codes.FailedPrecondition, "in use on node node-1")
	if _, err := c.grow(t, volume, mebibyte); err != nil {
		t.Errorf("a request for the current size fails: %v", err)
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume.GetVolumeId()}); err != nil {
		t.Fatal(err)
	}
	if answer, err := c.grow(t, volume, 2*mebibyte); err != nil || answer.GetCapacityBytes() != 2*mebibyte {
		t.Errorf("an unpublished volume is not expanded: %v, %v", answer, err)
	}
}

func TestExpansionBeyondTheMaximumIsRejected(t *testing.T) {
	c := start(t, Config{})
	volume := c.create(t, request("small", mebibyte, nil))
	_, err := c.grow(t, volume, maximumBytes+1)
	wantCode(t, err, codes.OutOfRange, "asked for")
	if answer, err := c.grow(t, volume, 2*mebibyte); err != nil || answer.GetCapacityBytes() != 2*mebibyte {
		t.Errorf("after a refused request: %v, %v", answer, err)
	}
}
