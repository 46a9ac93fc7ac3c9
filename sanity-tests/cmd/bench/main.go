// Command bench compares class `liqo` with the real classes that it uses. It installs a release of
// the driver in the running lab and prints ratios. Package bench says what is measured,
// docs/benchmark.md has the goals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
)

const (
	provisioner = "storage.liqo.io"
	// samples is the minimum of claims per row.
	samples = 20
	// fullClass is the real class of the batches with many volumes.
	fullClass = "reference"
)

func main() {
	counts := flag.String("n", "1,100,1000", "numbers of claims per batch")
	classes := flag.String("classes", "reference,reference-ext4,reference-slow", "real classes to compare with: instant, file systems in images, one second per volume")
	remoteCounts := flag.String("remote", "1,10,50,200", "numbers of claims per batch with volumes in the remote cluster; empty to skip")
	delays := flag.String("delays", "0s,5ms,50ms", "delays that the proxy between the clusters adds to each call of the remote batches")
	volumes := flag.Int("volumes", 10000, "volumes in the cluster for the batches with many volumes; 0 to skip")
	operations := flag.Bool("operations", true, "measure operations on existing volumes: expansion, snapshot, restore")
	var moves movePlan
	flag.StringVar(&moves.size, "move-size", "1Gi", "data in each volume that is moved, on disk twice; empty to skip moves")
	flag.StringVar(&moves.fileSize, "move-file", "1Mi", "size of its files")
	flag.Int64Var(&moves.change, "move-change", 1, "percent of it that change before the cut-over")
	flag.DurationVar(&moves.settle, "move-settle", 11*time.Minute, "how long it does not change before the move: passes read again what had changed in the ten minutes before the last one")
	moveVerify := flag.String("move-verify", "Incremental", "verifications of moves: Incremental, Full")
	flag.BoolVar(&moves.tooShort, "move-too-short", true, "try a maxDowntime that cannot be met first")
	limit := flag.Duration("timeout", 2*time.Hour, "timeout of the whole run")
	save := flag.String("json", "../bench-results/bench.json", "file for the JSON report")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	plan, err := parse(*counts, *classes, *remoteCounts, *delays)
	if err == nil {
		err = driver.UseRelease(ctx)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		plan.volumes, plan.operations, plan.moves = *volumes, *operations, moves
		plan.moves.verify = strings.Split(*moveVerify, ",")
		err = run(ctx, plan, *save)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// plan is what to measure.
type plan struct {
	counts  []int
	classes []string
	remote  []int
	delays  []time.Duration
	volumes int
	// operations: measure operations too.
	operations bool
	moves      movePlan
}

func parse(counts, classes, remote, delays string) (plan, error) {
	var p plan
	var errs [3]error
	p.counts, errs[0] = parseList(counts, parseCount)
	p.remote, errs[1] = parseList(remote, parseCount)
	p.delays, errs[2] = parseList(delays, time.ParseDuration)
	p.classes, _ = parseList(classes, func(name string) (string, error) { return name, nil })
	return p, errors.Join(errs[:]...)
}

func parseList[T any](list string, parse func(string) (T, error)) (all []T, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		one, err := parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number of claims", text)
	}
	return n, nil
}

func run(ctx context.Context, plan plan, save string) error {
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	env, err := newEnvironment(ctx, lab)
	if err != nil {
		return err
	}
	report := bench.Report{Conditions: []string{
		"home cluster of the lab; kube-controller-manager with --kube-api-qps=1000 --kube-api-burst=2000 (stock: 20/30);",
		"every claim is created with a selected node, there are no pods; p50 and p99 are from POST to Bound.",
	}}
	if report.Memory, err = env.driver.IdleMemory(); err != nil {
		return err
	}
	for _, class := range plan.classes {
		rows, err := env.batches(ctx, class, plan.counts)
		if err != nil {
			return err
		}
		report.Rows = append(report.Rows, rows...)
	}
	if plan.operations {
		operations, err := runOperations(ctx, env, lab)
		if err != nil {
			return fmt.Errorf("operations: %w", err)
		}
		report.Operations = &operations
	}
	if len(plan.remote) > 0 {
		remote, err := runRemote(ctx, env, lab, plan.remote, plan.delays)
		if err != nil {
			return err
		}
		report.Remote = &remote
	}
	if plan.moves.size != "" {
		moves, err := runMoves(ctx, env, lab, plan.moves)
		report.Moves = &moves
		if err != nil {
			return errors.Join(err, report.Print(os.Stdout), report.Save(save))
		}
	}
	if plan.volumes > 0 {
		full, err := env.full(ctx, lab, fullClass, []int{1, 100}, plan.volumes)
		report.Full = &full
		if err != nil {
			// Do not lose the other results, which took half an hour.
			return errors.Join(err, report.Print(os.Stdout), report.Save(save))
		}
	}
	return errors.Join(report.Print(os.Stdout), report.Save(save))
}

// environment is the cluster and node on which batches are measured.
type environment struct {
	client kubernetes.Interface
	driver bench.Installation
	audit  bench.AuditLog
	node   string
}

func newEnvironment(ctx context.Context, lab *clusters.Lab) (*environment, error) {
	home, err := lab.Cluster("home")
	if err != nil {
		return nil, err
	}
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stderr}); err != nil {
		return nil, err
	}
	client, err := home.Client()
	if err != nil {
		return nil, err
	}
	installed, err := bench.Find(ctx, client)
	if err != nil {
		return nil, err
	}
	return &environment{client, installed, bench.AuditLog{Path: home.AuditLog()}, home.Nodes()[0].Name}, nil
}

// batch measures the same batch on the real class and on a virtual class that uses it.
func (e *environment) batch(ctx context.Context, class string, n int) (bench.Row, error) {
	namespace, err := e.namespace(ctx)
	if err != nil {
		return bench.Row{}, err
	}
	defer e.deleteNamespace(ctx, namespace)
	virtual, err := e.virtualClass(ctx, class)
	if err != nil {
		return bench.Row{}, err
	}
	row := bench.Row{RealClass: class, Claims: n, Runs: max(1, samples/n)}
	batch := func(class string) bench.Batch {
		return bench.Batch{Client: e.client, Namespace: namespace, Class: class, Node: e.node, Count: n}
	}
	var reals, virtuals []bench.Result
	var cost bench.Cost
	for range row.Runs {
		result, err := batch(class).Run(ctx)
		if err != nil {
			return row, err
		}
		reals = append(reals, result)
		more, err := e.driver.Measure(&e.audit, func() (err error) {
			result, err = batch(virtual).Run(ctx)
			return err
		})
		if err != nil {
			return row, err
		}
		virtuals, cost = append(virtuals, result), cost.Add(more)
	}
	row.Real, row.Virtual = bench.Summarize(reals), bench.Summarize(virtuals)
	row.SetCost(cost)
	return row, nil
}

func (e *environment) namespace(ctx context.Context) (string, error) {
	created, err := e.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.Name, nil
}

func (e *environment) deleteNamespace(ctx context.Context, name string) {
	_ = e.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
}

func (e *environment) virtualClass(ctx context.Context, real string) (string, error) {
	return e.ensureClass(ctx, "bench-liqo-"+real, map[string]string{"realStorageClass": real})
}

// ensureClass creates a virtual class if it does not exist.
func (e *environment) ensureClass(ctx context.Context, name string, parameters map[string]string) (string, error) {
	_, err := e.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       provisioner,
		Parameters:        parameters,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return name, err
}
