// Package registration registers a CSI driver with kubelet, like node-driver-registrar: it serves a
// socket in kubelet's plugins_registry directory.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration is what kubelet reads from the socket.
type Registration struct {
	// Driver is the CSI driver's name.
	Driver string
	// Endpoint is the path of the CSI socket in kubelet's file system.
	Endpoint string
	// Dir is the path of kubelet's plugins_registry in the file system of this process.
	Dir string
}

type server struct {
	registerapi.UnimplementedRegistrationServer
	registration Registration
	refused      chan error
}

// Serve serves the registration until ctx is done, and then removes the socket, so that kubelet
// unregisters the driver. It returns an error if kubelet rejects the driver: kubelet tries again
// only for a new socket.
func (r Registration) Serve(ctx context.Context) error {
	socket := filepath.Join(r.Dir, r.Driver+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the registration socket of an earlier run: %w", err)
	}
	listener, err := net.Listen("unix", socket) // removed again by Close
	if err != nil {
		return fmt.Errorf("listen for kubelet: %w", err)
	}
	service := &server{registration: r, refused: make(chan error, 1)}
	grpcServer := grpc.NewServer()
	registerapi.RegisterRegistrationServer(grpcServer, service)

	ended := make(chan error, 1)
	go func() { ended <- grpcServer.Serve(listener) }()
	defer grpcServer.GracefulStop() // kubelet still gets the response to its notification
	select {
	case <-ctx.Done():
		return nil
	case err := <-service.refused:
		return err
	case err := <-ended:
		return fmt.Errorf("serve kubelet: %w", err)
	}
}

// GetInfo returns the driver's name and endpoint to kubelet.
func (s *server) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type:              registerapi.CSIPlugin,
		Name:              s.registration.Driver,
		Endpoint:          s.registration.Endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus receives from kubelet whether it has registered the driver.
func (s *server) NotifyRegistrationStatus(_ context.Context, verdict *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if verdict.GetPluginRegistered() {
		slog.Info("kubelet registered the driver", "driver", s.registration.Driver)
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case s.refused <- fmt.Errorf("kubelet refused driver %s: %s", s.registration.Driver, verdict.GetError()):
	default: // one verdict is enough
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
