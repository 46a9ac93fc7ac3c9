package clusters

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/nodes"
)

// Components lists the processes of a cluster, by the names that Kill, Restart and Logs take.
func (c *Cluster) Components() []string {
	names := slices.Clone(controlPlane)
	for _, node := range c.nodes {
		names = append(names, "containerd@"+node.Name, "kubelet@"+node.Name, kubeProxy+"@"+node.Name)
	}
	return names
}

// Process returns the recorded process of a component.
func (c *Cluster) Process(component string) (*machine.Process, error) {
	if _, err := c.component(component); err != nil {
		return nil, err
	}
	return machine.Find(c.process(component))
}

// Kill kills a component, which stays down until Restart.
func (c *Cluster) Kill(ctx context.Context, component string) error {
	process, err := c.Process(component)
	if err != nil {
		return err
	}
	return process.Kill()
}

// Restart kills a component if it runs, starts it, and returns when it is healthy.
func (c *Cluster) Restart(ctx context.Context, component string) error {
	if err := c.Kill(ctx, component); err != nil {
		return err
	}
	return c.ensureComponent(ctx, component)
}

// RestartWith restarts a component with additional flags. Restart starts it without them again.
func (c *Cluster) RestartWith(ctx context.Context, name string, flags ...string) error {
	known, err := c.component(name)
	if err != nil {
		return err
	}
	if err := c.Kill(ctx, name); err != nil {
		return err
	}
	known.spec.Command = append(known.spec.Command, flags...)
	return known.ensure(ctx)
}

// Logs returns the log file of a component.
func (c *Cluster) Logs(component string) string { return machine.LogFile(c.process(component)) }

// component is a process of a cluster, with its health check.
type component struct {
	spec    machine.Spec
	healthy func(context.Context) error
}

func (c *Cluster) component(name string) (component, error) {
	if slices.Contains(controlPlane, name) {
		return component{
			spec:    c.controlPlaneSpec(name),
			healthy: func(ctx context.Context) error { return c.controlPlaneHealthy(ctx, name) },
		}, nil
	}
	program, nodeName, _ := strings.Cut(name, "@")
	if node, err := c.Node(nodeName); err == nil {
		switch program {
		case "containerd":
			return component{spec: node.ContainerdSpec(), healthy: node.ContainerdAnswers}, nil
		case "kubelet":
			return component{
				spec: node.KubeletSpec(),
				healthy: func(ctx context.Context) error {
					return c.get(ctx, node.Namespace(), "http://127.0.0.1:10248/healthz")
				},
			}, nil
		case kubeProxy:
			return component{
				spec:    node.KubeProxySpec(),
				healthy: func(ctx context.Context) error { return c.kubeProxyHealthy(ctx, node) },
			}, nil
		}
	}
	return component{}, fmt.Errorf("cluster %s has no component %q; it has %s", c.Name(), name, strings.Join(c.Components(), ", "))
}

// kubeProxyHealthy succeeds when kube-proxy is healthy and its rules are in place: they would break
// connections that pods open before.
func (c *Cluster) kubeProxyHealthy(ctx context.Context, node *nodes.Node) error {
	if err := c.get(ctx, node.Namespace(), "http://127.0.0.1:10256/livez"); err != nil {
		return err
	}
	return node.LeadsTo(ctx, c.apiServiceIP())
}

// ensureComponent starts a component unless it runs, and waits until it is healthy.
func (c *Cluster) ensureComponent(ctx context.Context, name string) error {
	known, err := c.component(name)
	if err != nil {
		return err
	}
	return known.ensure(ctx)
}

func (c component) ensure(ctx context.Context) error {
	process, err := machine.Find(c.spec.Name)
	if err != nil || !process.Alive() {
		if process, err = machine.Start(c.spec); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return process.UntilAnswers(ctx, func() error { return c.healthy(ctx) })
}
