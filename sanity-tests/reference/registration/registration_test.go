package registration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubelet serves a registration and connects to it as kubelet does.
func kubelet(t *testing.T) (registerapi.RegistrationClient, string, context.CancelFunc, chan error) {
	t.Helper()
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Registration{Driver: "a.storage.test", Endpoint: "/plugins/a/csi.sock", Dir: dir}.Serve(ctx)
	}()
	socket := filepath.Join(dir, "a.storage.test-reg.sock")
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return registerapi.NewRegistrationClient(connection), socket, stop, ended
}

func TestKubeletRegistersTheDriver(t *testing.T) {
	client, socket, stop, ended := kubelet(t)
	info, err := client.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || info.GetType() != "CSIPlugin" || info.GetName() != "a.storage.test" || info.GetEndpoint() != "/plugins/a/csi.sock" {
		t.Errorf("GetInfo() = %v, %v", info, err)
	}
	if _, err := client.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket was not removed: %v", err)
	}
}

func TestRefusedRegistrationEndsServe(t *testing.T) {
	client, _, stop, ended := kubelet(t)
	defer stop()
	if _, err := client.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no such luck"}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("ended with %v", err)
	}
}
