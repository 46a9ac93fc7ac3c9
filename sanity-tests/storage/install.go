// Package storage puts real storage into a running cluster of the lab: the
// reference driver in four variants with the stock sidecars, the snapshot
// controller, local-path-provisioner, and volumes made by hand for
// kubernetes.io/no-provisioner. It also lets tests look behind the reference
// driver and spoil its calls.
//
// Starting clusters is package clusters' business; the driver itself is the
// module reference.
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

// Namespace is where the drivers run.
const Namespace = "lab-storage"

// Options are what one can choose about the storage.
type Options struct {
	// Progress is told what happens; nil for nobody.
	Progress io.Writer
}

// InstallAll makes the storage of all clusters of a lab usable.
func InstallAll(ctx context.Context, lab *clusters.Lab, options Options) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, cluster := range lab.Clusters() {
		group.Go(func() error { return Install(ctx, cluster, options) })
	}
	return group.Wait()
}

// Install makes the storage of a cluster usable. Done again it repairs what is
// missing or has changed, and otherwise changes nothing.
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

// values is what the manifests are filled in with.
type values struct {
	Nodes              []string
	FirstNode          string
	Image              string
	SnapshotController string
	LocalPath          string
	Busybox            string
	StaticVolumes      []staticVolume

	// Of one driver.
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

// WaitUsable returns when a claim of every class would be served on every node.
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
