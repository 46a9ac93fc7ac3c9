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
	// operatedClass answers at once, and no node has to follow when its volumes grow.
	operatedClass = "reference"
	// realSnapshotClass is of operatedClass' driver; ours leads to it.
	realSnapshotClass    = "reference"
	virtualSnapshotClass = "liqo"
	// patience is what one heat may take, with what its controllers do afterwards.
	patience = 5 * time.Minute
)

// operations are tried on two stocks: volumes of the real class, and of a virtual class
// above it.
type operations struct {
	*track
	dynamic       dynamic.Interface
	virtualClass  string
	real, virtual bench.Stock
}

// runOperations measures each operation one at a time and many at once, and removes all
// that it made.
func runOperations(ctx context.Context, home *track, lab *clusters.Lab) (report bench.OperationsReport, err error) {
	cluster, err := lab.Cluster("home")
	if err != nil {
		return report, err
	}
	config, err := cluster.Config()
	if err != nil {
		return report, err
	}
	o := &operations{track: home}
	if o.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return report, err
	}
	noSnapshots, err := o.noSnapshots(ctx)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, o.close(context.WithoutCancel(ctx))) }()
	claims, err := o.open(ctx)
	if err != nil {
		return report, err
	}
	for _, operation := range bench.Operations {
		if operation.OfSnapshots && noSnapshots != "" {
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

// noSnapshots says why snapshots are not measured; nothing if they are.
func (o *operations) noSnapshots(ctx context.Context) (string, error) {
	for _, class := range []struct{ name, driver string }{
		{realSnapshotClass, storage.Reference.Name}, {virtualSnapshotClass, provisioner},
	} {
		if why, err := bench.NoSnapshotClass(ctx, o.dynamic, class.name, class.driver); why != "" || err != nil {
			return why, err
		}
	}
	return bench.NoSnapshotter(ctx, o.client, chart.Namespace, controllerPods)
}

// open makes both stocks, and gives the names of the claims, which both have.
func (o *operations) open(ctx context.Context) ([]string, error) {
	wait, grows := storagev1.VolumeBindingWaitForFirstConsumer, true
	class, err := o.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{GenerateName: "bench-operations-"},
		Provisioner:          provisioner,
		Parameters:           map[string]string{"realStorageClass": operatedClass},
		VolumeBindingMode:    &wait,
		AllowVolumeExpansion: &grows,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	o.virtualClass = class.Name
	if err := o.audit.Mark(); err != nil {
		return nil, err
	}
	if err := o.fill(ctx, &o.real, operatedClass, realSnapshotClass); err != nil {
		return nil, err
	}
	if err := o.fill(ctx, &o.virtual, o.virtualClass, virtualSnapshotClass); err != nil {
		return nil, err
	}
	_, err = o.settled(ctx)
	return o.virtual.Claims(), err
}

func (o *operations) fill(ctx context.Context, stock *bench.Stock, class, snapshotClass string) error {
	namespace, err := o.namespace(ctx)
	if err != nil {
		return err
	}
	*stock = bench.Stock{
		Race:          bench.Race{Client: o.client, Namespace: namespace, Class: class, Node: o.node, Count: samples},
		Dynamic:       o.dynamic,
		SnapshotClass: snapshotClass,
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return stock.Fill(ctx)
}

// measure does the operation once with every claim, so many at once, the real class and
// the virtual one taking turns.
func (o *operations) measure(ctx context.Context, operation bench.Operation, claims []string, atOnce, round int) (bench.OperationRow, error) {
	row := bench.OperationRow{Operation: operation.Name, RealClass: operatedClass, AtOnce: atOnce, Samples: len(claims), Goal: operation.Goal}
	var real, virtual bench.Series
	for some := range slices.Chunk(claims, atOnce) {
		if err := o.turn(ctx, operation, o.real, some, round, &real); err != nil {
			return row, fmt.Errorf("class %s: %w", operatedClass, err)
		}
		if err := o.turn(ctx, operation, o.virtual, some, round, &virtual); err != nil {
			return row, fmt.Errorf("a virtual class above %s: %w", operatedClass, err)
		}
	}
	row.Real, row.RealWrites = real.Times(), real.Writes()
	row.Virtual, row.VirtualWrites = virtual.Times(), virtual.Writes()
	return row, nil
}

func (o *operations) turn(ctx context.Context, operation bench.Operation, stock bench.Stock, claims []string, round int, series *bench.Series) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := o.audit.Mark(); err != nil {
		return err
	}
	heat, err := operation.Hold(stock, ctx, claims, round)
	if err != nil {
		return err
	}
	calls, err := o.settled(ctx)
	if err != nil {
		return err
	}
	series.Add(heat, calls)
	return nil
}

func (o *operations) settled(ctx context.Context) (map[string]bench.Calls, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return o.audit.Settled(ctx, append([]string{bench.Agent}, bench.Components...)...)
}

// close removes everything, also what an operation left that was broken off. The class
// goes last: its volumes are deleted by it.
func (o *operations) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	var namespaces []string
	for _, stock := range []bench.Stock{o.real, o.virtual} {
		if stock.Namespace != "" {
			namespaces = append(namespaces, stock.Namespace)
			errs = append(errs, ignoreAbsent(o.client.CoreV1().Namespaces().Delete(ctx, stock.Namespace, metav1.DeleteOptions{})))
		}
	}
	for _, namespace := range namespaces {
		errs = append(errs, machine.Until(ctx, "namespace "+namespace+" to go", func() error { return o.gone(ctx, namespace) }))
	}
	if o.virtualClass != "" {
		errs = append(errs, ignoreAbsent(o.client.StorageV1().StorageClasses().Delete(ctx, o.virtualClass, metav1.DeleteOptions{})))
	}
	return errors.Join(errs...)
}

// gone looks for the namespace and for what it leaves outside: volumes and snapshots.
func (o *operations) gone(ctx context.Context, namespace string) error {
	_, err := o.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err == nil {
		return errors.New("it is there")
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
			return fmt.Errorf("volume %s is there", volume.Name)
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
			return fmt.Errorf("snapshot %s is there", content.GetName())
		}
	}
	return nil
}
