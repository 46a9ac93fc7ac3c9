package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/storage"
)

const (
	// operatedClass is an instant class whose volumes need no expansion on a node.
	operatedClass = "reference"
	// realSnapshotClass is of operatedClass's driver; virtualSnapshotClass uses it.
	realSnapshotClass    = "reference"
	virtualSnapshotClass = "liqo"
	// runTimeout of one run, including what controllers do afterwards.
	runTimeout = 5 * time.Minute
)

// operations are measured on volumes of the real class, and of a virtual class that uses it.
type operations struct {
	*environment
	dynamic       dynamic.Interface
	virtualClass  string
	real, virtual bench.VolumeSet
}

// runOperations measures each operation one at a time and many at once, and deletes everything that
// it created.
func runOperations(ctx context.Context, home *environment, lab *clusters.Lab) (report bench.OperationsReport, err error) {
	cluster, err := lab.Cluster("home")
	if err != nil {
		return report, err
	}
	config, err := cluster.Config()
	if err != nil {
		return report, err
	}
	o := &operations{environment: home}
	if o.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return report, err
	}
	noSnapshots, err := o.noSnapshots(ctx)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, o.close(context.WithoutCancel(ctx))) }()
	claims, err := o.provisionBoth(ctx)
	if err != nil {
		return report, err
	}
	for _, operation := range bench.Operations {
		if operation.NeedsSnapshots && noSnapshots != "" {
			line := operation.Name + ": " + noSnapshots
			report.Skipped = append(report.Skipped, line)
			fmt.Fprintln(os.Stderr, "operations: skipped", line)
			continue
		}
		for round, atOnce := range []int{1, len(claims)} {
			row, err := o.measure(ctx, operation, claims, atOnce, round+1)
			if err != nil {
				return report, fmt.Errorf("%s, %d at once: %w", operation.Name, atOnce, err)
			}
			report.Rows = append(report.Rows, row)
			fmt.Fprintf(os.Stderr, "operations: %s, %d at once: done\n", operation.Name, atOnce)
		}
	}
	return report, nil
}

// noSnapshots returns why snapshots cannot be measured, or "".
func (o *operations) noSnapshots(ctx context.Context) (string, error) {
	for _, class := range []struct{ name, driver string }{
		{realSnapshotClass, storage.Reference.Name}, {virtualSnapshotClass, provisioner},
	} {
		if reason, err := bench.NoSnapshotClass(ctx, o.dynamic, class.name, class.driver); reason != "" || err != nil {
			return reason, err
		}
	}
	return bench.NoSnapshotter(ctx, o.client, chart.Namespace, controllerPods)
}

// provisionBoth creates the volumes of both classes, and returns the names of the claims, which are
// the same.
func (o *operations) provisionBoth(ctx context.Context) ([]string, error) {
	class, err := o.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{GenerateName: "bench-operations-"},
		Provisioner:          provisioner,
		Parameters:           map[string]string{"realStorageClass": operatedClass},
		VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true),
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	o.virtualClass = class.Name
	if err := o.audit.Mark(); err != nil {
		return nil, err
	}
	if err := o.provision(ctx, &o.real, operatedClass, realSnapshotClass); err != nil {
		return nil, err
	}
	if err := o.provision(ctx, &o.virtual, o.virtualClass, virtualSnapshotClass); err != nil {
		return nil, err
	}
	_, err = o.callsWhenIdle(ctx)
	return o.virtual.Claims(), err
}

func (o *operations) provision(ctx context.Context, volumes *bench.VolumeSet, class, snapshotClass string) error {
	namespace, err := o.namespace(ctx)
	if err != nil {
		return err
	}
	*volumes = bench.VolumeSet{
		Batch:         bench.Batch{Client: o.client, Namespace: namespace, Class: class, Node: o.node, Count: samples},
		Dynamic:       o.dynamic,
		SnapshotClass: snapshotClass,
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	return volumes.Provision(ctx)
}

// measure runs the operation once on every claim, atOnce concurrently, alternating between the real
// and the virtual class.
func (o *operations) measure(ctx context.Context, operation bench.Operation, claims []string, atOnce, round int) (bench.OperationRow, error) {
	row := bench.OperationRow{Operation: operation.Name, RealClass: operatedClass, AtOnce: atOnce, Samples: len(claims), Goal: operation.Goal}
	var real, virtual bench.Series
	for some := range slices.Chunk(claims, atOnce) {
		if err := o.run(ctx, operation, o.real, some, round, &real); err != nil {
			return row, fmt.Errorf("class %s: %w", operatedClass, err)
		}
		if err := o.run(ctx, operation, o.virtual, some, round, &virtual); err != nil {
			return row, fmt.Errorf("a virtual class of %s: %w", operatedClass, err)
		}
	}
	row.Real, row.RealWrites = real.Times(), real.Writes()
	row.Virtual, row.VirtualWrites = virtual.Times(), virtual.Writes()
	return row, nil
}

func (o *operations) run(ctx context.Context, operation bench.Operation, volumes bench.VolumeSet, claims []string, round int, series *bench.Series) error {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	if err := o.audit.Mark(); err != nil {
		return err
	}
	result, err := operation.Run(volumes, ctx, claims, round)
	if err != nil {
		return err
	}
	calls, err := o.callsWhenIdle(ctx)
	if err != nil {
		return err
	}
	series.Add(result, calls)
	return nil
}

func (o *operations) callsWhenIdle(ctx context.Context) (map[string]bench.Calls, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	return o.audit.CallsWhenIdle(ctx, append([]string{bench.Agent}, bench.Components...)...)
}

// close deletes everything, also after an interrupted operation. The class comes last, because the
// deletion of its volumes reads it.
func (o *operations) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	var errs []error
	var namespaces []string
	for _, volumes := range []bench.VolumeSet{o.real, o.virtual} {
		if volumes.Namespace != "" {
			namespaces = append(namespaces, volumes.Namespace)
			errs = append(errs, ignoreAbsent(o.client.CoreV1().Namespaces().Delete(ctx, volumes.Namespace, metav1.DeleteOptions{})))
		}
	}
	for _, namespace := range namespaces {
		errs = append(errs, machine.Until(ctx, "namespace "+namespace+" to be deleted", func() error { return o.checkDeleted(ctx, namespace) }))
	}
	if o.virtualClass != "" {
		errs = append(errs, ignoreAbsent(o.client.StorageV1().StorageClasses().Delete(ctx, o.virtualClass, metav1.DeleteOptions{})))
	}
	return errors.Join(errs...)
}

// checkDeleted returns an error while the namespace, or a cluster-scoped object that belongs to it,
// exists.
func (o *operations) checkDeleted(ctx context.Context, namespace string) error {
	_, err := o.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err == nil {
		return errors.New("it exists")
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	volumes, err := o.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, volume := range volumes.Items {
		if of := volume.Spec.ClaimRef; of != nil && of.Namespace == namespace {
			return fmt.Errorf("volume %s exists", volume.Name)
		}
	}
	contents, err := o.dynamic.Resource(bench.SnapshotContents).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // a cluster without snapshots
	}
	if err != nil {
		return err
	}
	for _, content := range contents.Items {
		if of, _, _ := unstructured.NestedString(content.Object, "spec", "volumeSnapshotRef", "namespace"); of == namespace {
			return fmt.Errorf("snapshot %s exists", content.GetName())
		}
	}
	return nil
}
