package clusters

import (
	"context"
	"fmt"

	"storage.liqo.io/sanity-tests/machine"
)

// Addresses. Everything lives in namespaces of its own, so these never meet
// what the host's network uses. Cluster i has 10.(71+i).0.0/16:
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

// link is the interface of the first cluster's switch that leads to this one.
func (c *Cluster) link() string { return "to-" + c.Name() }

// ensureNetwork makes the cluster's switch, its control plane's namespace and
// the cables to its nodes, whose namespaces exist.
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

// ensureRoutes tells the switch where pods are. Addresses of services never come there: kube-proxy
// puts an address of a pod in their place on the node that asks.
func (c *Cluster) ensureRoutes(ctx context.Context) error {
	var lines []string
	for _, node := range c.nodes {
		lines = append(lines, "route replace "+node.PodCIDR+" via "+node.IP)
	}
	return c.switchNet().Links(ctx, lines...)
}

// ensureLink connects the first cluster's switch with this one's.
func (c *Cluster) ensureLink(ctx context.Context, first *Cluster) error {
	here, there := first.switchNet(), c.switchNet()
	if here.HasLink(ctx, c.link()) {
		return nil
	}
	if err := here.Links(ctx,
		"link add "+c.link()+" type veth peer name "+first.link()+" netns "+there.NetFile(),
		"addr add "+first.linkIP()+" peer "+c.linkIP()+" dev "+c.link(),
		"link set "+c.link()+" up",
	); err != nil {
		return err
	}
	if err := there.Links(ctx,
		"addr add "+c.linkIP()+" peer "+first.linkIP()+" dev "+first.link(),
		"link set "+first.link()+" up",
		"route replace "+first.network()+" via "+first.linkIP(),
	); err != nil {
		return err
	}
	return here.Links(ctx, "route replace "+c.network()+" via "+c.linkIP())
}

// Partition cuts the links between the clusters, or mends them. It is the far
// end that is taken down: to the first cluster's side the others fall silent,
// as across a real partition, instead of being refused at once.
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
			// Routes go with an interface that is taken down.
			"route replace "+first.network()+" via "+first.linkIP(),
		); err != nil {
			return err
		}
		// Who was asked for in vain during the partition counts as unreachable for
		// some more seconds.
		if err := first.switchNet().Links(ctx, "neigh flush dev "+cluster.link()); err != nil {
			return err
		}
	}
	return nil
}
