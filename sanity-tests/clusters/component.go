package clusters

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/nodes"
)

// Components lists what runs for a cluster, by the names Kill, Restart and Logs
// take.
func (c *Cluster) Components() []string {
	names := slices.Clone(controlPlane)
	for _, node := range c.nodes {
		names = append(names, "containerd@"+node.Name, "kubelet@"+node.Name, kubeProxy+"@"+node.Name)
	}
	return names
}

// Process is the recorded process of a component.
func (c *Cluster) Process(component string) (*machine.Process, error) {
	if _, err := c.component(component); err != nil {
		return nil, err
	}
	return machine.Find(c.process(component))
}

// Kill ends a component as a crash would. It stays down until Restart.
func (c *Cluster) Kill(ctx context.Context, component string) error {
	process, err := c.Process(component)
	if err != nil {
		return err
	}
	return process.Kill()
}

// Restart starts a component again, after ending it if it runs, and returns
// when it answers.
func (c *Cluster) Restart(ctx context.Context, component string) error {
	if err := c.Kill(ctx, component); err != nil {
		return err
	}
	return c.ensureComponent(ctx, component)
}

// Logs is the log file of a component.
func (c *Cluster) Logs(component string) string { return machine.LogFile(c.process(component)) }

// part is how one component is started and how it is asked whether it is well.
type part struct {
	spec    machine.Spec
	answers func(context.Context) error
}

func (c *Cluster) component(name string) (part, error) {
	program, nodeName, onNode := strings.Cut(name, "@")
	if !onNode {
		for _, known := range controlPlane {
			if name == known {
				return part{
					spec:    c.controlPlaneSpec(name),
					answers: func(ctx context.Context) error { return c.answers(ctx, name) },
				}, nil
			}
		}
	}
	if node, err := c.Node(nodeName); err == nil {
		switch program {
		case "containerd":
			return part{spec: node.ContainerdSpec(), answers: node.ContainerdAnswers}, nil
		case "kubelet":
			return part{
				spec:    node.KubeletSpec(),
				answers: func(ctx context.Context) error { return c.kubeletAnswers(ctx, node) },
			}, nil
		case kubeProxy:
			return part{
				spec:    node.KubeProxySpec(),
				answers: func(ctx context.Context) error { return c.kubeProxyAnswers(ctx, node) },
			}, nil
		}
	}
	return part{}, fmt.Errorf("cluster %s has no component %q; it has %s", c.Name(), name, strings.Join(c.Components(), ", "))
}

func (c *Cluster) kubeletAnswers(ctx context.Context, node *nodes.Node) error {
	return c.get(ctx, node.Namespace(), "http://127.0.0.1:10248/healthz")
}

// kubeProxyAnswers succeeds when kube-proxy is well and pods of the node reach services: what they
// begin earlier would be led astray when its rules come.
func (c *Cluster) kubeProxyAnswers(ctx context.Context, node *nodes.Node) error {
	if err := c.get(ctx, node.Namespace(), "http://127.0.0.1:10256/livez"); err != nil {
		return err
	}
	return node.LeadsTo(ctx, c.apiServiceIP())
}

// ensureComponent starts a component unless it runs, and waits until it
// answers.
func (c *Cluster) ensureComponent(ctx context.Context, name string) error {
	known, err := c.component(name)
	if err != nil {
		return err
	}
	process, err := machine.Find(known.spec.Name)
	if err != nil || !process.Alive() {
		if process, err = machine.Start(known.spec); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return process.UntilAnswers(ctx, func() error { return known.answers(ctx) })
}
