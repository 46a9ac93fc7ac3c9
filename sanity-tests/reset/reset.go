// Package reset restores a running lab to the state that a suite expects at its start, also after a
// suite that was killed. It deletes only objects with names of tests.
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

// Limit is the timeout of a reset. Each step may take half of the time that is left, so that later
// steps run even if one is stuck.
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

// Run resets the lab, and prints a line per repair. After an error the lab is not healthy.
func Run(ctx context.Context, lab *clusters.Lab, out io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("the reset has taken %s", Limit))
	defer cancel()
	var writing sync.Mutex
	r := reset{lab: lab, report: func(format string, args ...any) {
		writing.Lock()
		defer writing.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}}
	// The other steps need the API servers.
	if err := lab.Repair(ctx, r.report); err != nil {
		return err
	}
	for _, cluster := range lab.Clusters() {
		t, err := newTarget(cluster)
		if err != nil {
			return err
		}
		r.targets = append(r.targets, t)
	}
	// In this order: the driver needs the RemoteClusters to remove finalizers, and the namespaces at
	// home must be deleted before the remote ones with their data.
	home, others := r.targets[:1], r.targets[1:]
	var errs []error
	for _, step := range []func(context.Context) error{
		r.clearFaults,
		r.removeCrashFiles,
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
	t := target{Cluster: cluster}
	if t.client, err = cluster.Client(); err != nil {
		return target{}, err
	}
	if t.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return target{}, fmt.Errorf("access to cluster %s: %w", cluster.Name(), err)
	}
	return t, nil
}

// half runs a step with half of the time that is left.
func half(ctx context.Context, step func(context.Context) error) error {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	return step(ctx)
}

// until waits until the list is empty; otherwise the error has the list.
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

// clearFaults clears faults of the reference drivers.
func (r *reset) clearFaults(context.Context) error {
	for _, cluster := range r.lab.Clusters() {
		for _, t := range storage.Drivers() {
			if _, err := os.Stat(t.StateDir(cluster)); err != nil {
				continue // a lab without storage
			}
			cleared, err := storage.BackendOf(cluster, t).ClearFaults()
			if err != nil {
				return err
			}
			if cleared {
				r.report("%s had faults of driver %s: cleared", cluster.Name(), t.Name)
			}
		}
	}
	return nil
}

// removeCrashFiles deletes the files by which e2e/faults makes the driver crash at a crash point.
func (r *reset) removeCrashFiles(context.Context) error {
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
					r.report("deleted a crash-at file of the driver on %s", node.Name)
				}
			}
		}
	}
	return nil
}

// storageUsable waits until storage is usable, if it is installed.
func (r *reset) storageUsable(ctx context.Context) error {
	for _, t := range r.targets {
		installed, err := t.hasNamespace(ctx, storage.Namespace)
		if err != nil {
			return err
		}
		if !installed {
			continue
		}
		if err := storage.WaitUsable(ctx, t.Cluster); err != nil {
			return fmt.Errorf("storage of cluster %s: %w", t.Name(), err)
		}
	}
	return nil
}

// releases are the namespaces of Deployments that tests scale.
var releases = []string{chart.Namespace, storage.Namespace, "local-path-storage"}
