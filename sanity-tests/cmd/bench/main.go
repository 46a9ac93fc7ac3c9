// Command bench measures class `liqo` beside the real classes below it, in the
// running lab, where it installs a release of the driver, and prints ratios. See package bench
// for what is measured; docs/benchmark.md for what it is held against.
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
	// samples is how many claims a row rests on at least.
	samples = 20
	// fullClass is the real class of the races beside many volumes: it answers at once.
	fullClass = "reference"
)

func main() {
	counts := flag.String("n", "1,100,1000", "numbers of claims per race")
	classes := flag.String("classes", "reference,reference-ext4,reference-slow", "real classes to race against: instant, file systems in images, one second per volume")
	remoteCounts := flag.String("remote", "1,10,50,200", "numbers of claims per race whose volumes are in the remote cluster; empty for none")
	delays := flag.String("delays", "0s,5ms,50ms", "what the proxy between the clusters adds to each call of the remote races")
	volumes := flag.Int("volumes", 10000, "volumes to be there when races are held beside many; 0 skips it")
	operations := flag.Bool("operations", true, "measure operations on volumes that are there: expansion, snapshot, restore")
	limit := flag.Duration("timeout", time.Hour, "bound on the whole run")
	save := flag.String("json", "../bench-results/bench.json", "where the JSON report goes")
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
		plan.volumes, plan.operations = *volumes, *operations
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
	// operations are measured too.
	operations bool
}

func parse(counts, classes, remote, delays string) (plan, error) {
	var wanted plan
	var errs [3]error
	wanted.counts, errs[0] = each(counts, count)
	wanted.remote, errs[1] = each(remote, count)
	wanted.delays, errs[2] = each(delays, time.ParseDuration)
	wanted.classes, _ = each(classes, func(name string) (string, error) { return name, nil })
	return wanted, errors.Join(errs[:]...)
}

func each[T any](list string, parse func(string) (T, error)) (all []T, err error) {
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

func count(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no number of claims", text)
	}
	return n, nil
}

func run(ctx context.Context, plan plan, save string) error {
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	track, err := openTrack(ctx, lab)
	if err != nil {
		return err
	}
	report := bench.Report{Conditions: []string{
		"home cluster of the lab; kube-controller-manager with --kube-api-qps=1000 --kube-api-burst=2000 (stock: 20/30);",
		"every claim has its selected-node from the start, there are no pods; p50 and p99 are from POST to Bound.",
	}}
	if report.Memory, err = track.driver.IdleMemory(); err != nil {
		return err
	}
	for _, class := range plan.classes {
		rows, err := track.races(ctx, class, plan.counts)
		if err != nil {
			return err
		}
		report.Rows = append(report.Rows, rows...)
	}
	if plan.operations {
		operations, err := runOperations(ctx, track, lab)
		if err != nil {
			return fmt.Errorf("operations: %w", err)
		}
		report.Operations = &operations
	}
	if len(plan.remote) > 0 {
		remote, err := runRemote(ctx, track, lab, plan.remote, plan.delays)
		if err != nil {
			return err
		}
		report.Remote = &remote
	}
	if plan.volumes > 0 {
		full, err := track.full(ctx, lab, fullClass, []int{1, 100}, plan.volumes)
		report.Full = &full
		if err != nil {
			// It has taken half an hour until here.
			return errors.Join(err, report.Print(os.Stdout), report.Save(save))
		}
	}
	return errors.Join(report.Print(os.Stdout), report.Save(save))
}

// track is where races are held: one cluster, one node.
type track struct {
	client kubernetes.Interface
	driver bench.Installation
	audit  bench.AuditLog
	node   string
}

func openTrack(ctx context.Context, lab *clusters.Lab) (*track, error) {
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
	return &track{client, installed, bench.AuditLog{Path: home.AuditLog()}, home.Nodes()[0].Name}, nil
}

// race holds the same race on the real class and on a virtual class above it.
func (t *track) race(ctx context.Context, class string, n int) (bench.Row, error) {
	namespace, err := t.namespace(ctx)
	if err != nil {
		return bench.Row{}, err
	}
	defer func() {
		_ = t.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
	}()
	virtual, err := t.virtualClass(ctx, class)
	if err != nil {
		return bench.Row{}, err
	}
	row := bench.Row{RealClass: class, Claims: n, Heats: max(1, samples/n)}
	on := func(class string) bench.Race {
		return bench.Race{Client: t.client, Namespace: namespace, Class: class, Node: t.node, Count: n}
	}
	var alone, ours []bench.Heat
	var cost bench.Cost
	for range row.Heats {
		heat, err := on(class).Run(ctx)
		if err != nil {
			return row, err
		}
		alone = append(alone, heat)
		more, err := t.driver.Measure(&t.audit, func() (err error) {
			heat, err = on(virtual).Run(ctx)
			return err
		})
		if err != nil {
			return row, err
		}
		ours, cost = append(ours, heat), cost.And(more)
	}
	row.Real, row.Virtual = bench.Summary(alone), bench.Summary(ours)
	row.Charge(cost)
	return row, nil
}

func (t *track) namespace(ctx context.Context) (string, error) {
	created, err := t.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.Name, nil
}

// virtualClass makes a virtual class above the real one, if there is none yet.
func (t *track) virtualClass(ctx context.Context, real string) (string, error) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	name := "bench-liqo-" + real
	_, err := t.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       provisioner,
		Parameters:        map[string]string{"realStorageClass": real},
		VolumeBindingMode: &wait,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return name, err
}
