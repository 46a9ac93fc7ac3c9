// Command bench-fabric measures pods that the driver's fabric runs in the remote cluster of the
// running lab beside the same pods made there, and prints ratios. The nodes there are played by
// kwok: what is measured is the fabric and the two API servers, not the start of containers.
// Streams are carried to and from a pod on a real node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
)

const (
	cluster = "bench-fabric"
	node    = "bench-fabric"
	// played is the label, and the taint, of the nodes that kwok plays.
	played = "bench-fabric.storage.liqo.io/played"
	// perNode is how many pods Kubernetes lets a node have.
	perNode = 110
	// samples is how many pods a row rests on at least.
	samples = 20
)

func main() {
	counts := flag.String("n", "1,100,1000", "numbers of pods per race")
	limit := flag.Duration("timeout", 30*time.Minute, "bound on the whole run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := driver.UseRelease(ctx)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		err = run(ctx, *counts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-fabric:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, list string) (err error) {
	var counts []int
	most := 1
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of pods", text)
		}
		counts, most = append(counts, n), max(most, n)
	}
	track, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, track.close(context.WithoutCancel(ctx))) }()
	if err := track.prepare(ctx, most); err != nil {
		return err
	}
	report := bench.FabricReport{}
	if report.IdleRSS, err = track.memory(); err != nil {
		return err
	}
	for _, n := range counts {
		row, err := track.race(ctx, n)
		if err != nil {
			return err
		}
		report.Rows = append(report.Rows, row)
	}
	if report.Streams, err = track.streams(ctx); err != nil {
		return err
	}
	return report.Print(os.Stdout)
}

// track is the two clusters, and what was made in them.
type track struct {
	home, remote     *clusters.Cluster
	here, there      kubernetes.Interface
	fabric           bench.Installation
	namespace        string
	atHome, atRemote bench.AuditLog
	undo             []func(context.Context) error
}

func open(ctx context.Context) (*track, error) {
	lab, err := clusters.Load()
	if err != nil {
		return nil, err
	}
	t := &track{namespace: "bench-fabric-" + strconv.FormatInt(time.Now().Unix(), 36)}
	if t.home, t.here, err = fast(lab, "home"); err != nil {
		return nil, err
	}
	if t.remote, t.there, err = fast(lab, "remote"); err != nil {
		return nil, err
	}
	t.atHome, t.atRemote = bench.AuditLog{Path: t.home.AuditLog()}, bench.AuditLog{Path: t.remote.AuditLog()}
	return t, nil
}

// fast is a cluster, and a client of it that does not wait.
func fast(lab *clusters.Lab, name string) (*clusters.Cluster, kubernetes.Interface, error) {
	cluster, err := lab.Cluster(name)
	if err != nil {
		return nil, nil, err
	}
	config, err := cluster.Config()
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	return cluster, client, err
}

// prepare makes nodes for so many pods, and a namespace that is offloaded to them.
func (t *track) prepare(ctx context.Context, most int) error {
	if err := t.play(ctx, (most+perNode-1)/perNode+1); err != nil {
		return err
	}
	t.later(func(ctx context.Context) error { return driver.UndefineOffloading(ctx, t.home) })
	if err := driver.DefineOffloading(ctx, t.home); err != nil {
		return err
	}
	options := driver.Options{Progress: os.Stderr, Values: chart.Values{"fabric": driver.Fabric()}}
	if err := driver.Install(ctx, t.home, options); err != nil {
		return err
	}
	access, kubeconfig, err := driver.GiveAccess(ctx, t.remote, nil)
	if access != nil {
		t.later(access.Take)
	}
	if err != nil {
		return err
	}
	t.later(func(ctx context.Context) error { return driver.Undeclare(ctx, t.home, cluster) })
	err = driver.Declare(ctx, t.home, cluster, kubeconfig, map[string]any{
		"nodeName": node,
		"capacity": map[string]any{"source": "Static", "amounts": map[string]any{
			"cpu": "1000", "memory": "1000Gi", "pods": strconv.Itoa(2 * most),
		}},
		"pods": map[string]any{
			"nodeSelector": map[string]any{played: "true"},
			"tolerations":  []any{map[string]any{"key": played, "operator": "Exists"}},
		},
	})
	if err != nil {
		return err
	}
	if t.fabric, err = bench.Find(ctx, t.here); err != nil {
		return err
	}
	return t.offload(ctx)
}

// play makes nodes that kwok plays.
func (t *track) play(ctx context.Context, nodes int) error {
	programs, err := components.BuildKwok(ctx, os.Stderr)
	if err != nil {
		return err
	}
	t.later(func(ctx context.Context) error {
		return t.there.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: played})
	})
	room := corev1.ResourceList{
		"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"), "pods": *resource.NewQuantity(perNode, resource.DecimalSI),
	}
	for i := range nodes {
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("played-%d", i),
				Labels: map[string]string{played: "true", corev1.LabelOSStable: "linux"},
				// As others call what kwok plays.
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			},
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: played, Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
		}
		_, err := t.there.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	command := exec.CommandContext(ctx, programs.Path("kwok"), "--kubeconfig", t.remote.Kubeconfig(),
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	if err := command.Start(); err != nil {
		return err
	}
	t.later(func(context.Context) error {
		err := errors.Join(command.Process.Signal(syscall.SIGTERM))
		_ = command.Wait() // it ends by the signal
		if errors.Is(err, os.ErrProcessDone) {
			return errors.New("kwok has ended by itself")
		}
		return err
	})
	return nil
}

// offload makes a namespace at home that has the same name there, and another one there for the
// pods that are made directly.
func (t *track) offload(ctx context.Context) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace}}
	t.later(func(ctx context.Context) error {
		return t.here.CoreV1().Namespaces().Delete(ctx, t.namespace, metav1.DeleteOptions{})
	})
	if _, err := t.here.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	t.later(func(ctx context.Context) error {
		return t.there.CoreV1().Namespaces().Delete(ctx, t.direct(), metav1.DeleteOptions{})
	})
	object = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.direct()}}
	if _, err := t.there.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	t.later(func(ctx context.Context) error {
		return t.program(ctx, "unoffload", "namespace", t.namespace, "--force")
	})
	return t.program(ctx, "offload", "namespace", t.namespace, "--pod-offloading-strategy", "Remote", "--timeout", "2m")
}

func (t *track) direct() string { return t.namespace + "-direct" }

func (t *track) program(ctx context.Context, args ...string) error {
	program, err := driver.Compile(ctx)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, append(args, "--kubeconfig", t.home.Kubeconfig())...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("liqo-csi %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (t *track) later(undo func(context.Context) error) { t.undo = append(t.undo, undo) }

func (t *track) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var failed error
	for i := len(t.undo) - 1; i >= 0; i-- {
		if err := t.undo[i](ctx); err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// race makes the pods directly and by the fabric, in turn.
func (t *track) race(ctx context.Context, n int) (bench.FabricRow, error) {
	row := bench.FabricRow{Pods: n, Heats: max(1, samples/n)}
	direct := bench.PodRace{Client: t.there, Namespace: t.direct(), Count: n, Place: func(spec *corev1.PodSpec) {
		spec.NodeSelector = map[string]string{played: "true"}
		spec.Tolerations = []corev1.Toleration{{Key: played, Operator: corev1.TolerationOpExists}}
	}}
	// They have their node from the start, as direct pods are scheduled once too.
	ours := bench.PodRace{Client: t.here, Namespace: t.namespace, Count: n, Place: func(spec *corev1.PodSpec) {
		spec.NodeName = node
		spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
	}}
	var alone, heats []bench.Heat
	var home, remote float64
	for range row.Heats {
		heat, err := direct.Run(ctx)
		if err != nil {
			return row, fmt.Errorf("%d pods made there: %w", n, err)
		}
		alone = append(alone, heat)
		before, err := t.processes()
		if err != nil {
			return row, err
		}
		if err := errors.Join(t.atHome.Mark(), t.atRemote.Mark()); err != nil {
			return row, err
		}
		if heat, err = ours.Run(ctx); err != nil {
			return row, fmt.Errorf("%d pods of the fabric: %w", n, err)
		}
		heats = append(heats, heat)
		callsHere, err := t.atHome.Settled(ctx, bench.Agent)
		if err != nil {
			return row, err
		}
		callsThere, err := t.atRemote.Settled(ctx, bench.Agent)
		if err != nil {
			return row, err
		}
		after, err := t.processes()
		if err != nil {
			return row, err
		}
		row.CPUPerPod += after.CPU - before.CPU
		row.RSS = max(row.RSS, after.RSS)
		home += float64(callsHere[bench.Agent].Writes)
		remote += float64(callsThere[bench.Agent].Writes)
	}
	pods := float64(n * row.Heats)
	row.Direct, row.Ours = bench.Summary(alone), bench.Summary(heats)
	row.CPUPerPod = time.Duration(float64(row.CPUPerPod) / pods)
	row.HomeWritesPerPod, row.RemoteWritesPerPod = home/pods, remote/pods
	return row, nil
}

// processes are those of the fabric, together.
func (t *track) processes() (sum bench.Process, err error) {
	all, err := t.fabric.Processes(bench.Fabric)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no process %q on this machine", bench.Fabric)
	}
	for _, one := range all {
		sum.CPU += one.CPU
		sum.RSS = max(sum.RSS, one.RSS)
	}
	return sum, err
}

func (t *track) memory() (int64, error) {
	process, err := t.processes()
	return process.RSS, err
}
