// Package driver implements the CSI services of the reference driver (identity, controller and
// node) on one state directory. Package state has the records, package host the mounts and devices,
// package faults the injected faults.
//
// The driver is "the real driver" in tests of liqo-csi, and shares no code with it. It is strict:
// it rejects a context, secret or attachment that differs from what it returned, so that liqo-csi
// cannot lose anything unnoticed.
package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"storage.liqo.io/sanity-tests/reference/faults"
	"storage.liqo.io/sanity-tests/reference/host"
	"storage.liqo.io/sanity-tests/reference/state"
)

// Mode selects the services of a process.
type Mode string

// The controller runs once per cluster, the node service on each node; csi-sanity needs both on one
// socket.
const (
	ControllerMode Mode = "controller"
	NodeMode       Mode = "node"
	AllMode        Mode = "all"
)

// Config configures one process of a driver.
type Config struct {
	Name     string
	Endpoint string // path of the unix socket
	StateDir string
	Mode     Mode
	NodeID   string // needed by the node service

	// Attach requires ControllerPublish before staging.
	Attach            bool
	MaxVolumesPerNode int64
	// NodeLocal makes each volume accessible from one node only, unless its class specifies
	// otherwise.
	NodeLocal        bool
	VolumeMountGroup bool
	// CapacityBytes is the size of the backend, per node with NodeLocal. 0 is unlimited; then no
	// capacity is published.
	CapacityBytes int64
}

// Driver implements CSI.
type Driver struct {
	config Config
	store  *state.Store
	faults *faults.Injector
	calls  *callLog
	busy   busy
	slow   sync.Map // volume id → when its backend is done with it

	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

// New opens the state of a driver.
func New(config Config) (*Driver, error) {
	if config.Mode != ControllerMode && config.Mode != NodeMode && config.Mode != AllMode {
		return nil, fmt.Errorf("unknown mode %q: use controller, node or all", config.Mode)
	}
	if config.Mode != ControllerMode && config.NodeID == "" {
		return nil, errors.New("the node service needs a node id")
	}
	store, err := state.Open(config.StateDir)
	if err != nil {
		return nil, err
	}
	if config.Mode != NodeMode {
		if err := host.ThawAll(store.Data("")); err != nil {
			return nil, err
		}
	}
	return &Driver{
		config: config,
		store:  store,
		faults: faults.NewInjector(config.StateDir),
		calls:  &callLog{path: filepath.Join(config.StateDir, CallLogFile)},
	}, nil
}

// Listen opens the socket, so that callers can connect from then on.
func (d *Driver) Listen() (net.Listener, error) {
	path := strings.TrimPrefix(d.config.Endpoint, "unix://")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for CSI calls: %w", err)
	}
	return listener, nil
}

// Serve serves calls until ctx is done.
func (d *Driver) Serve(ctx context.Context, listener net.Listener) error {
	if d.config.Mode != ControllerMode {
		if err := d.announceNode(); err != nil {
			return err
		}
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(d.record, d.injectFaults))
	csi.RegisterIdentityServer(server, d)
	if d.config.Mode != NodeMode {
		csi.RegisterControllerServer(server, d)
	}
	if d.config.Mode != ControllerMode {
		csi.RegisterNodeServer(server, d)
	}
	// A hanging call must not delay the end of the process.
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve CSI calls: %w", err)
	}
	return nil
}

// announceNode records this node for the controller.
func (d *Driver) announceNode() error {
	node := state.Node{ID: d.config.NodeID, MaxVolumes: d.config.MaxVolumesPerNode}
	return d.store.Transaction(func() error {
		return d.store.Nodes.Put(d.store.Nodes.ID(node.ID), node)
	})
}

// injectFaults injects the faults of the rules.
func (d *Driver) injectFaults(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	call := faults.Call{RPC: rpcName(info), Node: d.config.NodeID, Subjects: d.subjects(request)}
	return d.faults.Around(ctx, call, func() (any, error) { return handle(ctx, request) })
}

// busy has the ids with a call in progress.
type busy struct{ ids sync.Map }

// enter locks an id. A second caller gets an error and is not queued, as CSI recommends.
func (b *busy) enter(id string) (leave func(), err error) {
	if _, taken := b.ids.LoadOrStore(id, time.Now()); taken {
		return nil, abortedf("another call for %s is still running", id)
	}
	return func() { b.ids.Delete(id) }, nil
}
