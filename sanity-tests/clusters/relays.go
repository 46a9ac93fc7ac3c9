package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// The processes between the namespaces.
const (
	apiForwarder = "lab/api-forwarder"
	faultsProxy  = "lab/faults-proxy"
)

// Relays returns the names of the processes that belong to no cluster.
func (l *Lab) Relays() []string { return []string{apiForwarder, faultsProxy} }

// startRelays starts the forwarder from the host to the API servers, and the fault proxies.
func (l *Lab) startRelays(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	program := machine.Path("bin", "relay")
	if err := buildRelay(ctx, program); err != nil {
		return err
	}
	group.Go(func() error {
		return startRelay(ctx, program, apiForwarder, l.forwards(), func() error { return l.forwarderAnswers(ctx) })
	})
	group.Go(func() error {
		return startRelay(ctx, program, faultsProxy, l.proxies(), func() error { return l.proxiesAnswer(ctx) })
	})
	return group.Wait()
}

func buildRelay(ctx context.Context, program string) error {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	return components.GoBuild(ctx, root, "./cmd/relay", program)
}

func startRelay(ctx context.Context, program, name string, relays faults.Relays, answers func() error) error {
	process, err := machine.Find(name)
	if err != nil || !process.Alive() {
		content, err := json.Marshal(relays)
		if err != nil {
			return err
		}
		file := machine.Path(filepath.Base(name) + ".json")
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
		if process, err = machine.Start(machine.Spec{Name: name, Command: []string{program, file}}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return process.UntilAnswers(ctx, answers)
}

// forwards returns relays from the host's loopback to each API server.
func (l *Lab) forwards() faults.Relays {
	var relays faults.Relays
	for _, cluster := range l.clusters {
		relays.Relays = append(relays.Relays, faults.Relay{
			Name:     cluster.Name(),
			ListenOn: cluster.forwarded(),
			DialIn:   cluster.controlPlaneNet(),
			DialTo:   cluster.server(),
		})
	}
	return relays
}

// proxies returns relays from the first cluster to the API servers of the others, over the link.
func (l *Lab) proxies() faults.Relays {
	relays := faults.Relays{Control: faultsSocket()}
	first := l.clusters[0]
	for _, cluster := range l.clusters[1:] {
		relays.Relays = append(relays.Relays, faults.Relay{
			Name:     cluster.Name(),
			ListenIn: first.switchNet(),
			ListenOn: cluster.proxied(),
			DialIn:   first.switchNet(),
			DialTo:   cluster.server(),
		})
	}
	return relays
}

// server, forwarded and proxied are the addresses of an API server in its cluster, on the host, and
// in the first cluster, whose own API server needs no proxy.
func (c *Cluster) server() string    { return net.JoinHostPort(c.controlPlaneIP(), "443") }
func (c *Cluster) forwarded() string { return fmt.Sprintf("127.0.0.1:%d", c.port) }
func (c *Cluster) proxied() string {
	if c.index == 0 {
		return c.server()
	}
	return fmt.Sprintf("%s:%d", c.lab.clusters[0].proxyIP(), c.faultProxyPort())
}

func (l *Lab) forwarderAnswers(ctx context.Context) error {
	for _, cluster := range l.clusters {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", cluster.forwarded())
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
	return nil
}

func (l *Lab) proxiesAnswer(ctx context.Context) error {
	for _, cluster := range l.clusters[1:] {
		if _, err := cluster.Proxy().Get(ctx); err != nil {
			return err
		}
	}
	return nil
}
