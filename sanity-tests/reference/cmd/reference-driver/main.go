// Command reference-driver is one process of the reference CSI driver: its
// controller, its service on one node, or both.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"storage.liqo.io/sanity-tests/reference/driver"
	"storage.liqo.io/sanity-tests/reference/registration"
)

func main() {
	var config driver.Config
	var mode, topology, registry, kubeletEndpoint string
	flag.StringVar(&config.Name, "driver-name", "reference.storage.test", "name of the driver")
	flag.StringVar(&config.Endpoint, "endpoint", "/csi/csi.sock", "unix socket to serve CSI on")
	flag.StringVar(&config.StateDir, "state-dir", "/state", "directory of volumes, records and fault switches, shared by all processes of the driver")
	flag.StringVar(&mode, "mode", string(driver.AllMode), "controller, node or all")
	flag.StringVar(&config.NodeID, "node-id", "", "name of this node")
	flag.BoolVar(&config.Attach, "attach", false, "volumes must be attached before they are staged")
	flag.Int64Var(&config.MaxVolumesPerNode, "max-volumes-per-node", 0, "attach limit; 0 is none")
	flag.StringVar(&topology, "topology", "shared", "shared or node-local")
	flag.BoolVar(&config.VolumeMountGroup, "volume-mount-group", false, "apply fsGroup in the driver instead of in kubelet")
	flag.Int64Var(&config.CapacityBytes, "capacity-bytes", 0, "size of the backend, per node when node-local; 0 is unlimited and not published")
	flag.StringVar(&registry, "registration-dir", "", "kubelet's plugins_registry; empty registers nowhere")
	flag.StringVar(&kubeletEndpoint, "kubelet-endpoint", "", "path of --endpoint as kubelet sees it (default the same)")
	flag.Parse()
	config.Mode = driver.Mode(mode)

	err := checkFlags(topology)
	if err == nil {
		config.NodeLocal = topology == "node-local"
		if kubeletEndpoint == "" {
			kubeletEndpoint = strings.TrimPrefix(config.Endpoint, "unix://")
		}
		err = run(config, registration.Registration{Driver: config.Name, Endpoint: kubeletEndpoint, Dir: registry})
	}
	if err != nil {
		slog.Error("reference driver ends", "driver", config.Name, "error", err)
		os.Exit(1)
	}
}

func checkFlags(topology string) error {
	if topology != "shared" && topology != "node-local" {
		return errors.New("--topology must be shared or node-local")
	}
	if flag.NArg() > 0 {
		return errors.New("unexpected argument " + flag.Arg(0))
	}
	return nil
}

// run serves until it gets a signal, or one of the two servers fails.
func run(config driver.Config, kubelet registration.Registration) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	service, err := driver.New(config)
	if err != nil {
		return err
	}
	listener, err := service.Listen()
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	servers := 1
	go func() { ended <- service.Serve(ctx, listener) }()
	if kubelet.Dir != "" && config.Mode != driver.ControllerMode {
		// The CSI socket exists before kubelet connects to it.
		servers++
		go func() { ended <- kubelet.Serve(ctx) }()
	}
	slog.Info("reference driver serves", "driver", config.Name, "mode", config.Mode, "endpoint", config.Endpoint)
	var failures error
	for range servers {
		failures = errors.Join(failures, <-ended)
		stop()
	}
	return failures
}
