package faults

import (
	"context"
	"fmt"
	"net"
	"os"

	"storage.liqo.io/sanity-tests/machine"
)

// Relay is a proxy that listens in one network namespace and dials in another.
type Relay struct {
	Name     string
	ListenIn machine.Namespace
	ListenOn string
	DialIn   machine.Namespace
	DialTo   string
}

// Relays are the relays of one process.
type Relays struct {
	// Control is the unix socket of ServeControl; empty for none.
	Control string
	Relays  []Relay
}

// Serve runs the relays until ctx is done or one of them fails.
func (r Relays) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	proxies := map[string]*Proxy{}
	for _, relay := range r.Relays {
		listener, err := relay.Listen(ctx)
		if err != nil {
			return err
		}
		proxy := NewProxy(relay.Dial)
		proxies[relay.Name] = proxy
		go func() { cancel(proxy.Serve(ctx, listener)) }()
	}
	if r.Control != "" {
		_ = os.Remove(r.Control) // of a process that was killed
		listener, err := net.Listen("unix", r.Control)
		if err != nil {
			return fmt.Errorf("open the control socket: %w", err)
		}
		go func() { cancel(ServeControl(ctx, listener, proxies)) }()
	}
	<-ctx.Done()
	if err := context.Cause(ctx); err != context.Canceled {
		return err
	}
	return nil
}

// Listen opens the listener of the relay.
func (r Relay) Listen(ctx context.Context) (listener net.Listener, err error) {
	err = r.ListenIn.InNetwork(func() error {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", r.ListenOn)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", r.Name, err)
	}
	return listener, nil
}

// Dial connects to the target of the relay.
func (r Relay) Dial(ctx context.Context) (conn net.Conn, err error) {
	err = r.DialIn.InNetwork(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", r.DialTo)
		return err
	})
	return conn, err
}
