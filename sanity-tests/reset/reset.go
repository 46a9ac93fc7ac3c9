// Package reset puts a running lab back to what a suite of tests expects at its start, whatever the
// suite before it was killed at. It touches only objects that have the names of tests.
package reset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/nodes"
	"storage.liqo.io/sanity-tests/storage"
)

// Limit bounds a whole reset. Each wait of it may take half of what is left, so that one thing that
// is stuck does not keep the others from being put back.
const Limit = 4 * time.Minute

// target is a cluster and the clients that its reset needs.
type target struct {
	*clusters.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

type reset struct {
	lab     *clusters.Lab
	targets []target
	report  clusters.Report
}

// Run resets the lab, and prints a line for each thing that it found and repaired. The error names
// what could not be put back: the lab is not healthy then.
func Run(ctx context.Context, lab *clusters.Lab, out io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("the reset has taken %s", Limit))
	defer cancel()
	var writing sync.Mutex
	r := reset{lab: lab, report: func(format string, args ...any) {
		writing.Lock()
		defer writing.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}}
	// Without API servers nothing else can be put back.
	if err := lab.Repair(ctx, r.report); err != nil {
		return err
	}
	for _, cluster := range lab.Clusters() {
		one, err := newTarget(cluster)
		if err != nil {
			return err
		}
		r.targets = append(r.targets, one)
	}
	// In the order of what needs what: the driver releases the objects of tests while it still knows
	// their remote clusters, and the namespaces at home go before those in which their data is.
	home, others := r.targets[:1], r.targets[1:]
	var errs []error
	for _, step := range []func(context.Context) error{
		r.clearFaults,
		r.removeOrders,
		r.scaleUp,
		r.removeFabrics,
		func(ctx context.Context) error { return r.removeNamespaces(ctx, home) },
		r.removeVolumes,
		r.removeRemoteClusters,
		func(ctx context.Context) error { return r.removeNamespaces(ctx, others) },
		r.removeVolumes,
		r.removeClusterScoped,
		r.removeDefinitions,
		r.storageUsable,
	} {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		errs = append(errs, half(ctx, step))
	}
	return errors.Join(errs...)
}

func newTarget(cluster *clusters.Cluster) (target, error) {
	config, err := cluster.Config()
	if err != nil {
		return target{}, err
	}
	one := target{Cluster: cluster}
	if one.client, err = cluster.Client(); err != nil {
		return target{}, err
	}
	if one.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return target{}, fmt.Errorf("access to cluster %s: %w", cluster.Name(), err)
	}
	return one, nil
}

// half gives a step half of the time that is left.
func half(ctx context.Context, step func(context.Context) error) error {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	return step(ctx)
}

// until waits until nothing of a list is left, and names in the error what is.
func until(ctx context.Context, left func(context.Context) ([]string, error)) error {
	for {
		remains, err := left(ctx)
		if err == nil && len(remains) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if len(remains) == 0 {
				return err
			}
			return fmt.Errorf("stuck: %s", strings.Join(remains, "; "))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// clearFaults takes back faults of the reference drivers.
func (r *reset) clearFaults(context.Context) error {
	for _, cluster := range r.lab.Clusters() {
		for _, one := range storage.Drivers() {
			if _, err := os.Stat(one.StateDir(cluster)); err != nil {
				continue // a lab without storage
			}
			cleared, err := storage.BackendOf(cluster, one).ClearFaults()
			if err != nil {
				return err
			}
			if cleared {
				r.report("%s had faults of driver %s: cleared", cluster.Name(), one.Name)
			}
		}
	}
	return nil
}

// removeOrders removes the files through which e2e/faults tells the driver to die at a crash point.
func (r *reset) removeOrders(context.Context) error {
	for _, cluster := range r.lab.Clusters() {
		for _, node := range cluster.Nodes() {
			for _, folder := range []string{
				filepath.Join("plugins", driver.CSIName),
				"pods/*/volumes/kubernetes.io~empty-dir/socket",
			} {
				files, err := filepath.Glob(filepath.Join(node.HostPath(nodes.KubeletDir), folder, "crash-at"))
				if err != nil {
					return err
				}
				for _, file := range files {
					if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
						return err
					}
					r.report("the driver on %s had an order to die: removed", node.Name)
				}
			}
		}
	}
	return nil
}

// storageUsable is the last word on the health of the lab.
func (r *reset) storageUsable(ctx context.Context) error {
	for _, one := range r.targets {
		if installed, err := one.hasNamespace(ctx, storage.Namespace); err != nil || !installed {
			if err != nil {
				return err
			}
			continue
		}
		if err := storage.WaitUsable(ctx, one.Cluster); err != nil {
			return fmt.Errorf("storage of cluster %s: %w", one.Name(), err)
		}
	}
	return nil
}

// releases are the namespaces of Deployments that tests scale.
var releases = []string{chart.Namespace, storage.Namespace, "local-path-storage"}
