package clusters

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// Report gets one line per repair.
type Report func(format string, args ...any)

// Repair reverts faults that killed tests left in a lab: partition, faults of the proxies, killed
// components, nodes that are cordoned or out of service. It returns when all components are healthy
// and all nodes are ready.
func (l *Lab) Repair(ctx context.Context, report Report) error {
	unlock, err := machine.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.repairLinks(ctx, report); err != nil {
		return err
	}
	if err := l.repairProxies(ctx, report); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, cluster := range l.clusters {
		group.Go(func() error { return cluster.repair(ctx, report) })
	}
	return group.Wait()
}

func (l *Lab) repairLinks(ctx context.Context, report Report) error {
	for _, cluster := range l.clusters[1:] {
		var link *net.Interface
		err := cluster.switchNet().InNetwork(func() (err error) {
			link, err = net.InterfaceByName(l.clusters[0].link())
			return err
		})
		if err != nil {
			return fmt.Errorf("read the link to cluster %s: %w", cluster.Name(), err)
		}
		if link.Flags&net.FlagUp == 0 {
			report("the link to cluster %s was cut: joined", cluster.Name())
		}
	}
	// Also when the links are up: a process that was killed while restoring them may have added no
	// routes.
	return l.Partition(ctx, false)
}

func (l *Lab) repairProxies(ctx context.Context, report Report) error {
	for _, relay := range l.Relays() {
		if process, err := machine.Find(relay); err != nil || !process.Alive() {
			report("%s did not run: started", relay)
		}
	}
	if err := l.startRelays(ctx); err != nil {
		return err
	}
	for _, cluster := range l.clusters[1:] {
		setting, err := cluster.Proxy().Get(ctx)
		if err != nil {
			return err
		}
		if setting.Mode == faults.Pass {
			continue
		}
		if err := cluster.Proxy().Set(ctx, faults.Setting{Mode: faults.Pass}); err != nil {
			return err
		}
		report("the proxy to cluster %s was set to %s: set to pass", cluster.Name(), setting)
	}
	return nil
}

func (c *Cluster) repair(ctx context.Context, report Report) error {
	runtimes, inRuntimes := errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		runtimes.Go(func() error { return c.repairComponent(inRuntimes, "containerd@"+node.Name, report) })
	}
	for _, component := range controlPlane {
		if err := c.repairComponent(ctx, component, report); err != nil {
			return errors.Join(err, runtimes.Wait())
		}
	}
	if err := runtimes.Wait(); err != nil {
		return err
	}
	agents, inAgents := errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		for _, program := range []string{"kubelet", kubeProxy} {
			agents.Go(func() error { return c.repairComponent(inAgents, program+"@"+node.Name, report) })
		}
	}
	if err := agents.Wait(); err != nil {
		return err
	}
	for _, node := range c.nodes {
		if err := c.repairNode(ctx, node.Name, report); err != nil {
			return err
		}
	}
	return machine.Until(ctx, "the nodes of "+c.Name(), func() error { return c.nodesReady(ctx) })
}

// frozenAfter is how long a running component may be unhealthy before it is restarted.
const frozenAfter = 20 * time.Second

func (c *Cluster) repairComponent(ctx context.Context, name string, report Report) error {
	known, err := c.component(name)
	if err != nil {
		return err
	}
	process, err := machine.Find(known.spec.Name)
	if err != nil || !process.Alive() {
		report("%s did not run: started", known.spec.Name)
		return c.ensureComponent(ctx, name)
	}
	answering, cancel := context.WithTimeout(ctx, frozenAfter)
	defer cancel()
	if err := process.UntilAnswers(answering, func() error { return known.healthy(answering) }); err == nil || ctx.Err() != nil {
		return err
	}
	report("%s did not answer within %s: restarted", known.spec.Name, frozenAfter)
	return c.Restart(ctx, name)
}

// repairNode makes a node schedulable.
func (c *Cluster) repairNode(ctx context.Context, name string, report Report) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	outOfService := func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService }
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get node %s: %w", name, err)
		}
		if !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, outOfService) {
			return nil
		}
		node.Spec.Unschedulable = false
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, outOfService)
		if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err // not wrapped, so that a conflict is retried
		}
		report("node %s was cordoned or out of service: taken into service", name)
		return nil
	})
}
