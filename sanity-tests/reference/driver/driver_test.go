package driver

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"storage.liqo.io/sanity-tests/reference/internal/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// client calls a driver over its socket, like sidecars and kubelet.
type client struct {
	csi.ControllerClient
	csi.NodeClient
	csi.IdentityClient
	stateDir string
}

// start serves a driver until the test ends.
func start(t *testing.T, config Config) client {
	t.Helper()
	if config.StateDir == "" {
		config.StateDir = t.TempDir()
	}
	if config.NodeID == "" {
		config.NodeID = "node-1"
	}
	config.Name, config.Mode = "reference.storage.test", AllMode
	config.Endpoint = filepath.Join(socketDir(t), "csi.sock")
	service, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := service.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func(listener net.Listener) { ended <- service.Serve(ctx, listener) }(listener)
	connection, err := grpc.NewClient("unix://"+config.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = connection.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	c := client{csi.NewControllerClient(connection), csi.NewNodeClient(connection), csi.NewIdentityClient(connection), config.StateDir}
	if _, err := c.Probe(t.Context(), &csi.ProbeRequest{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// socketDir returns a short path, because paths of sockets are limited; t.TempDir has the test's
// name in it.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func capability(mode csi.VolumeCapability_AccessMode_Mode, mountFlags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: mountFlags}},
	}
}

var (
	oneNode   = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	manyNodes = capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
)

func request(name string, bytes int64, parameters map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: bytes},
		Parameters:         parameters,
		VolumeCapabilities: []*csi.VolumeCapability{oneNode},
	}
}

func (c client) create(t *testing.T, request *csi.CreateVolumeRequest) *csi.Volume {
	t.Helper()
	response, err := c.CreateVolume(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return response.GetVolume()
}

func wantCode(t *testing.T, err error, code codes.Code, mentioning string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), mentioning) {
		t.Errorf("got %v, want %v mentioning %q", err, code, mentioning)
	}
}

func TestParametersAreValidated(t *testing.T) {
	c := start(t, Config{})
	for _, parameters := range []map[string]string{
		{"immutable": "yes"}, {"backing": "raw"}, {"delay": "soon"}, {"topology": "zone"}, {"topology": "node-local"}, {"requireStageSecret": ""},
		{"roundToMebibytes": "some"}, {"roundToMebibytes": "0"}, {"grow": "never"},
	} {
		_, err := c.CreateVolume(t.Context(), request("v", mebibyte, parameters))
		wantCode(t, err, codes.InvalidArgument, "parameter")
	}
	c.create(t, request("v", mebibyte, map[string]string{"csi.storage.k8s.io/pv/name": "v"}))
	wide := request("wide", 0, map[string]string{"backing": "ext4"})
	wide.VolumeCapabilities = []*csi.VolumeCapability{manyNodes}
	_, err := c.CreateVolume(t.Context(), wide)
	wantCode(t, err, codes.InvalidArgument, "one node only")
}

func TestCreateVolumeIsIdempotentAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	first := start(t, Config{StateDir: dir}).create(t, request("v", 5*mebibyte, nil))
	c := start(t, Config{StateDir: dir})
	if second := c.create(t, request("v", 5*mebibyte, nil)); second.GetVolumeId() != first.GetVolumeId() {
		t.Errorf("ids %s and %s of one name", first.GetVolumeId(), second.GetVolumeId())
	}
	_, err := c.CreateVolume(t.Context(), request("v", 6*mebibyte, nil))
	wantCode(t, err, codes.AlreadyExists, "size")
}

func TestDelayOfSlowClassContinuesBetweenCalls(t *testing.T) {
	c := start(t, Config{})
	slow := request("slow", mebibyte, map[string]string{"delay": "300ms"})
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.CreateVolume(ctx, slow)
		cancel()
		if err == nil {
			break
		}
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted {
			t.Fatal(err)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("a volume is not created when calls time out early")
		}
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("ready after %v already", took)
	}
}

func TestCapacityIsLimitedPerNode(t *testing.T) {
	dir := t.TempDir()
	config := Config{StateDir: dir, NodeLocal: true, CapacityBytes: 10 * mebibyte}
	c := start(t, config)
	config.NodeID = "node-2"
	start(t, config)
	on := func(name string, bytes int64, nodes ...string) *csi.CreateVolumeRequest {
		request := request(name, bytes, nil)
		request.AccessibilityRequirements = &csi.TopologyRequirement{}
		for _, node := range nodes {
			request.AccessibilityRequirements.Preferred = append(request.AccessibilityRequirements.Preferred,
				&csi.Topology{Segments: map[string]string{TopologyKey("reference.storage.test"): node}})
		}
		return request
	}
	place := func(volume *csi.Volume) string {
		return volume.GetAccessibleTopology()[0].GetSegments()[TopologyKey("reference.storage.test")]
	}
	if node := place(c.create(t, on("a", 8*mebibyte, "node-1"))); node != "node-1" {
		t.Errorf("volume a is on %s", node)
	}
	_, err := c.CreateVolume(t.Context(), on("b", 8*mebibyte, "node-1"))
	wantCode(t, err, codes.ResourceExhausted, "no space")
	if node := place(c.create(t, on("b", 8*mebibyte, "node-1", "node-2"))); node != "node-2" {
		t.Errorf("volume b is on %s", node)
	}
	capacity, err := c.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	if err != nil || capacity.GetAvailableCapacity() != 4*mebibyte || capacity.GetMaximumVolumeSize().GetValue() != 2*mebibyte {
		t.Errorf("capacity %v, %v", capacity, err)
	}
	clone := on("clone", 8*mebibyte, "node-2")
	clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: c.create(t, on("a", 8*mebibyte)).GetVolumeId()}}}
	_, err = c.CreateVolume(t.Context(), clone)
	wantCode(t, err, codes.ResourceExhausted, "node-1")
}

func TestAttachRules(t *testing.T) {
	dir := t.TempDir()
	config := Config{StateDir: dir, Attach: true, MaxVolumesPerNode: 1}
	c := start(t, config)
	config.NodeID = "node-2"
	start(t, config)
	attach := func(volume *csi.Volume, node string, capability *csi.VolumeCapability) error {
		_, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: volume.GetVolumeId(), NodeId: node, VolumeCapability: capability})
		return err
	}
	one, other := c.create(t, request("one", mebibyte, nil)), c.create(t, request("other", mebibyte, nil))
	if err := attach(one, "node-1", oneNode); err != nil {
		t.Fatal(err)
	}
	wantCode(t, attach(one, "node-2", oneNode), codes.FailedPrecondition, "node-1")
	wantCode(t, attach(other, "node-1", oneNode), codes.ResourceExhausted, "1 volumes")
	if err := attach(other, "node-2", manyNodes); err != nil {
		t.Error(err)
	}
	_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: one.GetVolumeId()})
	wantCode(t, err, codes.FailedPrecondition, "node-1")
}

func TestFaultsAndCallLog(t *testing.T) {
	c := start(t, Config{})
	switches := `{"rules": [{"rpc": "CreateVolume", "match": "tests/claim", "code": "Unavailable", "message": "backend is on fire", "times": 1}]}`
	if err := os.WriteFile(filepath.Join(c.stateDir, "faults.json"), []byte(switches), 0o600); err != nil {
		t.Fatal(err)
	}
	spoiled := request("pvc-1", mebibyte, map[string]string{claimNamespaceKey: "tests", claimNameKey: "claim"})
	spoiled.Secrets = map[string]string{"password": "do not log me"}
	_, err := c.CreateVolume(t.Context(), spoiled)
	wantCode(t, err, codes.Unavailable, "backend is on fire")
	volume := c.create(t, spoiled)
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volume.GetVolumeId()}); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(c.stateDir, CallLogFile))
	if err != nil || strings.Contains(string(log), "do not log me") {
		t.Fatalf("call log: %v\n%s", err, log)
	}
	var seen []string
	for line := range strings.Lines(string(log)) {
		var call Call
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Fatal(err)
		}
		if call.Claim == "tests/claim" {
			seen = append(seen, call.RPC+" "+call.Code+" "+strings.Join(call.Secrets, ","))
		}
	}
	want := "CreateVolume Unavailable password; CreateVolume OK password; DeleteVolume OK "
	if got := strings.Join(seen, "; "); got != want {
		t.Errorf("calls for the claim: %q, want %q", got, want)
	}
}

func TestFullBackend(t *testing.T) {
	c := start(t, Config{})
	if err := os.WriteFile(filepath.Join(c.stateDir, "faults.json"), []byte(`{"spaceLeft": 1048576}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.CreateVolume(t.Context(), request("large", 2*mebibyte, nil))
	wantCode(t, err, codes.ResourceExhausted, "no space")
	small := c.create(t, request("small", mebibyte, nil))
	_, err = c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: small.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 4 * mebibyte}})
	wantCode(t, err, codes.ResourceExhausted, "no space")
}

func TestListVolumesReturnsPages(t *testing.T) {
	c := start(t, Config{})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		c.create(t, request(name, mebibyte, nil))
	}
	seen := map[string]bool{}
	var pages []int
	for token := ""; ; {
		page, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, len(page.GetEntries()))
		for _, entry := range page.GetEntries() {
			seen[entry.GetVolume().GetVolumeId()] = true
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if len(seen) != 5 || len(pages) != 3 {
		t.Errorf("%d volumes in pages %v", len(seen), pages)
	}
}
