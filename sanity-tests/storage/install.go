// Package storage installs real storage in a running cluster of the lab: the reference driver in
// four configurations with the stock sidecars, the snapshot controller, local-path-provisioner, and
// static volumes for kubernetes.io/no-provisioner. With it, tests also read the state of the
// reference driver and inject faults.
//
// Package clusters starts the clusters; the module reference has the driver.
package storage

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/images"
)

// Namespace is the namespace of the drivers.
const Namespace = "lab-storage"

// Options of an installation.
type Options struct {
	// Progress gets a line per step; nil discards them.
	Progress io.Writer
}

// InstallAll installs the storage of all clusters of a lab.
func InstallAll(ctx context.Context, lab *clusters.Lab, options Options) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, cluster := range lab.Clusters() {
		group.Go(func() error { return Install(ctx, cluster, options) })
	}
	return group.Wait()
}

// Install installs the storage of a cluster. It is idempotent.
func Install(ctx context.Context, cluster *clusters.Cluster, options Options) error {
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	begin := time.Now()
	if err := install(ctx, cluster); err != nil {
		return fmt.Errorf("storage of cluster %s: %w", cluster.Name(), err)
	}
	fmt.Fprintf(options.Progress, "%s: storage usable after %s\n", cluster.Name(), time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func install(ctx context.Context, cluster *clusters.Cluster) error {
	image, err := importDriver(ctx, cluster)
	if err != nil {
		return err
	}
	values, err := newValues(ctx, cluster, image)
	if err != nil {
		return err
	}
	if values.StaticVolumes, err = prepareStaticVolumes(ctx, cluster); err != nil {
		return err
	}
	applier, err := newApplier(cluster)
	if err != nil {
		return err
	}
	if err := applySnapshotCRDs(ctx, applier); err != nil {
		return err
	}
	for _, manifest := range []string{"base", "snapshot-controller", "local-path", "static-local", "classes"} {
		if err := applier.applyManifest(ctx, manifest, values); err != nil {
			return err
		}
	}
	for _, driver := range Drivers() {
		if values.Sidecars, err = sidecarsOf(ctx, driver); err != nil {
			return err
		}
		values.Driver, values.StateDir = driver, driver.stateDir()
		if err := applier.applyManifest(ctx, "driver", values); err != nil {
			return err
		}
	}
	return WaitUsable(ctx, cluster)
}

// values are the values of the manifests' templates.
type values struct {
	Nodes              []string
	FirstNode          string
	Image              string
	SnapshotController string
	LocalPath          string
	Busybox            string
	StaticVolumes      []staticVolume

	// Set for manifests of one driver.
	Driver   Driver
	StateDir string
	Sidecars []sidecar
}

type sidecar struct {
	Name, Image string
	Flags       []string
}

func newValues(ctx context.Context, cluster *clusters.Cluster, image string) (values, error) {
	filled := values{Image: image, Busybox: images.BusyboxName}
	for _, node := range cluster.Nodes() {
		filled.Nodes = append(filled.Nodes, node.Name)
	}
	filled.FirstNode = filled.Nodes[0]
	var err error
	if filled.SnapshotController, err = clusters.StockImage(ctx, "snapshot-controller"); err != nil {
		return filled, err
	}
	filled.LocalPath, err = clusters.StockImage(ctx, "local-path-provisioner")
	return filled, err
}

func sidecarsOf(ctx context.Context, driver Driver) ([]sidecar, error) {
	var sidecars []sidecar
	for _, name := range driver.sidecars {
		image, err := clusters.StockImage(ctx, name)
		if err != nil {
			return nil, err
		}
		sidecars = append(sidecars, sidecar{Name: name, Image: image, Flags: driver.sidecarFlags(name)})
	}
	return sidecars, nil
}

// WaitUsable waits until claims of every class can be provisioned on every node.
func WaitUsable(ctx context.Context, cluster *clusters.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	var nodes []string
	for _, node := range cluster.Nodes() {
		nodes = append(nodes, node.Name)
	}
	deployments := []string{Namespace + "/snapshot-controller", "local-path-storage/local-path-provisioner"}
	for _, driver := range Drivers() {
		deployments = append(deployments, Namespace+"/"+driver.Short)
	}
	for _, name := range deployments {
		if err := waitFor(ctx, "Deployment "+name, deploymentReady(client, name)); err != nil {
			return err
		}
	}
	for _, driver := range Drivers() {
		name := driver.Short + "-node"
		if err := waitFor(ctx, "DaemonSet "+name, daemonSetReady(client, name)); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		if err := waitFor(ctx, "drivers on node "+node, driversRegistered(client, node)); err != nil {
			return err
		}
	}
	return waitFor(ctx, "published capacity", capacityPublished(client, nodes))
}
