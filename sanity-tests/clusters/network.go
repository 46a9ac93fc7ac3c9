package clusters

import (
	"context"
	"fmt"
	"net"

	"storage.liqo.io/sanity-tests/machine"
)

// Addresses. The lab has network namespaces of its own, so these cannot collide with the host's
// network. Cluster i has 10.(71+i).0.0/16:
//
//	.0.1      its switch, the router of everything in it
//	.0.2      its control plane
//	.0.3      (on the first cluster's switch) the fault proxies to the others
//	.0.10+n   node n
//	.n.0/24   the pods of node n
//	.240.0/20 services
//
// and 10.70.0.0/24 is the link between the switches.
func (c *Cluster) address(third, fourth int) string {
	return fmt.Sprintf("10.%d.%d.%d", 71+c.index, third, fourth)
}

func (c *Cluster) network() string              { return c.address(0, 0) + "/16" }
func (c *Cluster) switchIP() string             { return c.address(0, 1) }
func (c *Cluster) controlPlaneIP() string       { return c.address(0, 2) }
func (c *Cluster) proxyIP() string              { return c.address(0, 3) }
func (c *Cluster) nodeIP(number int) string     { return c.address(0, 10+number) }
func (c *Cluster) podCIDR(number int) string    { return c.address(number, 0) + "/24" }
func (c *Cluster) serviceCIDR() string          { return c.address(240, 0) + "/20" }
func (c *Cluster) apiServiceIP() string         { return c.address(240, 1) }
func (c *Cluster) dnsServiceIP() string         { return c.address(240, 10) }
func (c *Cluster) linkIP() string               { return fmt.Sprintf("10.70.0.%d", 1+c.index) }
func (c *Cluster) faultProxyPort() int          { return 6443 + c.index }
func (c *Cluster) switchNet() machine.Namespace { return machine.Namespace{Name: c.Name()} }
func (c *Cluster) controlPlaneNet() machine.Namespace {
	return machine.Namespace{Name: c.Name() + "-cp"}
}

// ListenForAPIServer listens on a loopback address of the cluster's control plane, for webhooks.
func (c *Cluster) ListenForAPIServer(ctx context.Context) (listener net.Listener, err error) {
	err = c.controlPlaneNet().InNetwork(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		return err
	})
	return listener, err
}

// link is the name of the interface of another cluster's switch to this one.
func (c *Cluster) link() string { return "to-" + c.Name() }

// ensureNetwork creates the cluster's switch, the namespace of its control plane, and the links to
// its nodes, whose namespaces exist.
func (c *Cluster) ensureNetwork(ctx context.Context) error {
	hub := c.switchNet()
	for _, namespace := range []machine.Namespace{hub, c.controlPlaneNet()} {
		if err := namespace.Ensure(nil); err != nil {
			return err
		}
	}
	if !hub.HasLink(ctx, "br0") {
		if err := c.makeSwitch(ctx, hub); err != nil {
			return err
		}
	}
	if err := c.plug(ctx, c.controlPlaneNet(), "cp", c.controlPlaneIP()); err != nil {
		return err
	}
	for number, node := range c.nodes {
		if err := c.plug(ctx, node.Namespace(), fmt.Sprintf("node%d", number+1), node.IP); err != nil {
			return err
		}
	}
	return c.ensureRoutes(ctx)
}

func (c *Cluster) makeSwitch(ctx context.Context, hub machine.Namespace) error {
	if err := hub.Forwarding(); err != nil {
		return err
	}
	return hub.Links(ctx,
		"link set lo up",
		"link add br0 type bridge",
		"addr add "+c.switchIP()+"/24 dev br0",
		"addr add "+c.proxyIP()+"/24 dev br0",
		"link set br0 up",
	)
}

// plug connects a namespace to the switch, with the switch as its router.
func (c *Cluster) plug(ctx context.Context, namespace machine.Namespace, port, ip string) error {
	if namespace.HasLink(ctx, "eth0") {
		return nil
	}
	if err := namespace.Forwarding(); err != nil {
		return err
	}
	if err := namespace.Links(ctx,
		"link set lo up",
		"link add eth0 type veth peer name "+port+" netns "+c.switchNet().NetFile(),
		"addr add "+ip+"/24 dev eth0",
		"link set eth0 up",
		"route add default via "+c.switchIP(),
	); err != nil {
		return err
	}
	return c.switchNet().Links(ctx, "link set "+port+" master br0 up")
}

// ensureRoutes adds routes to pods to the switch. It needs none to services, which kube-proxy
// translates on each node.
func (c *Cluster) ensureRoutes(ctx context.Context) error {
	var lines []string
	for _, node := range c.nodes {
		lines = append(lines, "route replace "+node.PodCIDR+" via "+node.IP)
	}
	return c.switchNet().Links(ctx, lines...)
}

// ensureLink connects the first cluster's switch with this one's.
func (c *Cluster) ensureLink(ctx context.Context, first *Cluster) error {
	near, far := first.switchNet(), c.switchNet()
	if near.HasLink(ctx, c.link()) {
		return nil
	}
	if err := near.Links(ctx,
		"link add "+c.link()+" type veth peer name "+first.link()+" netns "+far.NetFile(),
		"addr add "+first.linkIP()+" peer "+c.linkIP()+" dev "+c.link(),
		"link set "+c.link()+" up",
	); err != nil {
		return err
	}
	if err := far.Links(ctx,
		"addr add "+c.linkIP()+" peer "+first.linkIP()+" dev "+first.link(),
		"link set "+first.link()+" up",
		"route replace "+first.network()+" via "+first.linkIP(),
	); err != nil {
		return err
	}
	return near.Links(ctx, "route replace "+c.network()+" via "+c.linkIP())
}

// Partition cuts the links between the clusters, or restores them. It disables the interface of the
// other cluster, so that connections from the first cluster time out as in a real partition, and do
// not fail at once.
func (l *Lab) Partition(ctx context.Context, on bool) error {
	first := l.clusters[0]
	for _, cluster := range l.clusters[1:] {
		if on {
			if err := cluster.switchNet().Links(ctx, "link set "+first.link()+" down"); err != nil {
				return err
			}
			continue
		}
		if err := cluster.switchNet().Links(ctx,
			"link set "+first.link()+" up",
			// The kernel deletes routes of an interface that is down.
			"route replace "+first.network()+" via "+first.linkIP(),
		); err != nil {
			return err
		}
		// Failed neighbour entries would be kept for some seconds.
		if err := first.switchNet().Links(ctx, "neigh flush dev "+cluster.link()); err != nil {
			return err
		}
	}
	return nil
}
