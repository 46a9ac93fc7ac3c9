// Command bench-fabric compares pods that the driver's fabric runs in the remote cluster of the
// running lab with pods created there directly, and prints ratios. kwok simulates the nodes there,
// so that the fabric and the two API servers are measured and not the start of containers.
// Streams use a pod on a real node.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// simulated is the label and the taint of the nodes that kwok simulates.
	simulated = "bench-fabric.storage.liqo.io/played"
	// perNode is the default maximum of pods per node.
	perNode = 110
	// samples is the minimum of pods per row.
	samples = 20
)

func main() {
	var o options
	flag.StringVar(&o.counts, "n", "1,100,1000", "numbers of pods per batch")
	flag.BoolVar(&o.liqo, "liqo", false, "measure the same batches with Liqo's virtual kubelet, after those of the fabric")
	flag.IntVar(&o.clusters, "clusters", 0, "number of clusters for the rows beside a hostile cluster and a hostile tenant; 0 to skip them")
	flag.IntVar(&o.pods, "pods", 100, "pods in each of these clusters")
	flag.IntVar(&o.gates, "gates", 0, "number of pods of StatefulSets for the rows of scheduling gates; 0 to skip them")
	flag.DurationVar(&o.gone, "gone", 5*time.Minute, "for how long these rows have no controller")
	flag.DurationVar(&o.room, "room", 0, "duration of the comparison of what a nearly full cluster offers with what it could take; 0 to skip it")
	limit := flag.Duration("timeout", time.Hour, "timeout of the whole run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := driver.UseRelease(ctx)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		err = o.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-fabric:", err)
		os.Exit(1)
	}
}

// options are the flags that choose what is measured.
type options struct {
	counts                string
	liqo                  bool
	clusters, pods, gates int
	gone, room            time.Duration
}

func (o options) run(ctx context.Context) error {
	counts, err := parseCounts(o.counts)
	if err != nil {
		return err
	}
	var measurements []func(*environment) error
	if len(counts) > 0 {
		measurements = append(measurements, func(e *environment) error { return compare(ctx, e, counts) })
		if o.liqo {
			measurements = append(measurements, func(e *environment) error { return compareLiqo(ctx, e, counts) })
		}
	}
	if o.gates > 0 {
		measurements = append(measurements, func(e *environment) error {
			report, err := runGates(ctx, e, o.gates, o.gone)
			return errors.Join(err, report.Print(os.Stdout))
		})
	}
	if o.room > 0 {
		measurements = append(measurements, func(e *environment) error {
			report, err := runRoom(ctx, e, o.room)
			return errors.Join(err, report.Print(os.Stdout))
		})
	}
	if o.clusters > 0 {
		measurements = append(measurements, func(e *environment) error {
			report, err := runCrowd(ctx, e, o.clusters, max(1, o.pods))
			return errors.Join(err, report.Print(os.Stdout))
		})
	}
	for _, measure := range measurements {
		if err := within(ctx, measure); err != nil {
			return err
		}
	}
	return nil
}

// parseCounts returns none for an empty list.
func parseCounts(list string) (counts []int, err error) {
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number of pods", text)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// within cleans up after measure.
func within(ctx context.Context, measure func(*environment) error) (err error) {
	env, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.close(context.WithoutCancel(ctx))) }()
	return measure(env)
}

// compare measures pods of the fabric and pods that are created directly.
func compare(ctx context.Context, env *environment, counts []int) error {
	largest := slices.Max(counts)
	if err := env.prepare(ctx, largest); err != nil {
		return err
	}
	idle, err := env.processes()
	if err != nil {
		return err
	}
	report := bench.FabricReport{IdleRSS: idle.RSS}
	fabric := implementation{node: node, agents: []string{bench.Agent}, processes: env.processes}
	if report.Rows, err = env.batches(ctx, fabric, counts); err != nil {
		return err
	}
	if report.Restart, err = env.restart(ctx, largest); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if report.Streams, err = env.streams(ctx); err != nil {
		return err
	}
	return report.Print(os.Stdout)
}

// environment holds the two clusters, and how to clean them up.
type environment struct {
	home, remote             *clusters.Cluster
	homeClient, remoteClient kubernetes.Interface
	fabric                   bench.Installation
	namespace                string
	homeAudit, remoteAudit   bench.AuditLog
	cleanups                 []func(context.Context) error
}

func open(ctx context.Context) (*environment, error) {
	lab, err := clusters.Load()
	if err != nil {
		return nil, err
	}
	e := &environment{namespace: "bench-fabric-" + strconv.FormatInt(time.Now().Unix(), 36)}
	if e.home, e.homeClient, err = unlimited(lab, "home"); err != nil {
		return nil, err
	}
	if e.remote, e.remoteClient, err = unlimited(lab, "remote"); err != nil {
		return nil, err
	}
	e.homeAudit, e.remoteAudit = bench.AuditLog{Path: e.home.AuditLog()}, bench.AuditLog{Path: e.remote.AuditLog()}
	return e, nil
}

// unlimited returns a cluster, and a client without rate limit.
func unlimited(lab *clusters.Lab, name string) (*clusters.Cluster, kubernetes.Interface, error) {
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

// prepare creates nodes for that many pods, and a namespace that is offloaded to them.
func (e *environment) prepare(ctx context.Context, pods int) error {
	if err := e.simulateNodes(ctx, (pods+perNode-1)/perNode+1); err != nil {
		return err
	}
	kubeconfig, err := e.install(ctx)
	if err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error { return driver.Undeclare(ctx, e.home, cluster) })
	if err := driver.Declare(ctx, e.home, cluster, kubeconfig, fabricOnSimulatedNodes(node, 2*pods)); err != nil {
		return err
	}
	if e.fabric, err = bench.Find(ctx, e.homeClient); err != nil {
		return err
	}
	return e.offload(ctx, "Remote")
}

// install installs the driver at home, and returns a kubeconfig for the remote cluster.
func (e *environment) install(ctx context.Context) (kubeconfig []byte, err error) {
	return e.installWith(ctx, nil)
}

// installWith is install with changes of the values of remoteAccess.
func (e *environment) installWith(ctx context.Context, changes chart.Values) (kubeconfig []byte, err error) {
	e.addCleanup(func(ctx context.Context) error { return driver.UndefineOffloading(ctx, e.home) })
	if err := driver.DefineOffloading(ctx, e.home); err != nil {
		return nil, err
	}
	options := driver.Options{Progress: os.Stderr, Values: chart.Values{"fabric": driver.Fabric()}}
	if err := driver.Install(ctx, e.home, options); err != nil {
		return nil, err
	}
	access, kubeconfig, err := driver.GrantAccess(ctx, e.home, e.remote, changes)
	if access != nil {
		e.addCleanup(access.Revoke)
	}
	return kubeconfig, err
}

// fabricOnSimulatedNodes is the spec.fabric of a cluster whose virtual node has room for this number of pods.
func fabricOnSimulatedNodes(node string, pods int) map[string]any {
	return map[string]any{
		"nodeName": node,
		"capacity": map[string]any{"source": "Static", "amounts": map[string]any{
			"cpu": "1000", "memory": "1000Gi", "pods": strconv.Itoa(pods),
		}},
		"pods": map[string]any{
			"nodeSelector": map[string]any{simulated: "true"},
			"tolerations":  []any{map[string]any{"key": simulated, "operator": "Exists"}},
		},
	}
}

// simulateNodes creates nodes that kwok simulates.
func (e *environment) simulateNodes(ctx context.Context, nodes int) error {
	programs, err := components.BuildKwok(ctx, os.Stderr)
	if err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error {
		return e.remoteClient.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: simulated})
	})
	capacity := corev1.ResourceList{
		"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"), "pods": *resource.NewQuantity(perNode, resource.DecimalSI),
	}
	for i := range nodes {
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("played-%d", i),
				Labels:      map[string]string{simulated: "true", corev1.LabelOSStable: "linux"},
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			},
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: simulated, Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		_, err := e.remoteClient.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	stages, err := components.KwokStages(ctx)
	if err != nil {
		return err
	}
	return e.startKwok(ctx, programs.Path("kwok"), stages)
}

// startKwok runs kwok until the cleanup, and waits until its nodes are ready.
func (e *environment) startKwok(ctx context.Context, program string, stages []string) error {
	command := exec.CommandContext(ctx, program, "--kubeconfig", e.remote.Kubeconfig(), "--config", strings.Join(stages, ","),
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = command.Wait() // reports the signal of the cleanup
		close(exited)
	}()
	e.addCleanup(func(context.Context) error {
		err := command.Process.Signal(syscall.SIGTERM)
		<-exited
		if errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kwok exited early: %s", output.String())
		}
		return err
	})
	return wait.PollUntilContextTimeout(ctx, time.Second, time.Minute, true, func(ctx context.Context) (bool, error) {
		select {
		case <-exited:
			return false, errors.New("kwok exited before its nodes were ready")
		default:
		}
		nodes, err := e.remoteClient.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simulated})
		return err == nil && !slices.ContainsFunc(nodes.Items, func(node corev1.Node) bool { return !ready(&node) }), err
	})
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// offload creates the two namespaces, and offloads the one at home.
func (e *environment) offload(ctx context.Context, strategy string) error {
	if err := e.createNamespaces(ctx); err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error {
		return e.program(ctx, "unoffload", "namespace", e.namespace, "--force", "--delete-volumes")
	})
	return e.program(ctx, "offload", "namespace", e.namespace, "--pod-offloading-strategy", strategy, "--timeout", "2m")
}

// createNamespaces creates a namespace at home, and one in the remote cluster for pods that are created directly.
func (e *environment) createNamespaces(ctx context.Context) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	e.addCleanup(func(ctx context.Context) error {
		return e.homeClient.CoreV1().Namespaces().Delete(ctx, e.namespace, metav1.DeleteOptions{})
	})
	if _, err := e.homeClient.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error {
		return e.remoteClient.CoreV1().Namespaces().Delete(ctx, e.direct(), metav1.DeleteOptions{})
	})
	object = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.direct()}}
	_, err := e.remoteClient.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (e *environment) direct() string { return e.namespace + "-direct" }

func (e *environment) program(ctx context.Context, args ...string) error {
	program, err := driver.Compile(ctx)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, append(args, "--kubeconfig", e.home.Kubeconfig())...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("liqo-csi %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (e *environment) addCleanup(cleanup func(context.Context) error) {
	e.cleanups = append(e.cleanups, cleanup)
}

func (e *environment) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	var errs error
	for _, cleanup := range slices.Backward(e.cleanups) {
		if err := cleanup(ctx); err != nil && !apierrors.IsNotFound(err) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// implementation is the fabric or the virtual kubelet that runs pods of the home cluster in the remote cluster.
type implementation struct {
	node      string
	agents    []string
	processes func() (bench.Process, error)
}

func (e *environment) batches(ctx context.Context, by implementation, counts []int) (rows []bench.FabricRow, err error) {
	for _, n := range counts {
		row, err := e.batch(ctx, by, n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// batch runs the pods directly and by an implementation, alternately.
func (e *environment) batch(ctx context.Context, by implementation, n int) (bench.FabricRow, error) {
	row := bench.FabricRow{Pods: n, Runs: max(1, samples/n)}
	direct := bench.PodBatch{Client: e.remoteClient, Namespace: e.direct(), Count: n, Place: func(spec *corev1.PodSpec) {
		spec.NodeSelector = map[string]string{simulated: "true"}
		spec.Tolerations = []corev1.Toleration{{Key: simulated, Operator: corev1.TolerationOpExists}}
	}}
	offloaded := e.offloadedTo(by.node, n)
	var directs, offloadeds []bench.Result
	var homeWrites, remoteWrites int
	for range row.Runs {
		result, err := direct.Run(ctx)
		if err != nil {
			return row, fmt.Errorf("%d pods created directly: %w", n, err)
		}
		directs = append(directs, result)
		before, err := by.processes()
		if err != nil {
			return row, err
		}
		if err := errors.Join(e.homeAudit.Mark(), e.remoteAudit.Mark()); err != nil {
			return row, err
		}
		if result, err = offloaded.Run(ctx); err != nil {
			return row, fmt.Errorf("%d pods on the node %s: %w", n, by.node, err)
		}
		offloadeds = append(offloadeds, result)
		homeCalls, err := e.homeAudit.CallsWhenIdle(ctx, by.agents...)
		if err != nil {
			return row, err
		}
		remoteCalls, err := e.remoteAudit.CallsWhenIdle(ctx, by.agents...)
		if err != nil {
			return row, err
		}
		after, err := by.processes()
		if err != nil {
			return row, err
		}
		row.CPUPerPod += after.CPU - before.CPU
		row.RSS = max(row.RSS, after.RSS)
		for _, agent := range by.agents {
			homeWrites += homeCalls[agent].Writes
			remoteWrites += remoteCalls[agent].Writes
		}
	}
	pods := n * row.Runs
	row.Direct, row.Fabric = bench.Summarize(directs), bench.Summarize(offloadeds)
	row.CPUPerPod /= time.Duration(pods)
	row.HomeWritesPerPod, row.RemoteWritesPerPod = float64(homeWrites)/float64(pods), float64(remoteWrites)/float64(pods)
	return row, nil
}

// offloaded are pods of the fabric.
func (e *environment) offloaded(n int) bench.PodBatch { return e.offloadedTo(node, n) }

// offloadedTo are pods on a virtual node. They have it from the start, so that pods are scheduled once, as the direct ones.
func (e *environment) offloadedTo(node string, n int) bench.PodBatch {
	return bench.PodBatch{Client: e.homeClient, Namespace: e.namespace, Count: n, Place: placeOn(node)}
}

func placeOn(node string) func(spec *corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.NodeName = node
		spec.Tolerations = []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}}
	}
}

// restart deletes all replicas of the fabric while that many of its pods run, and waits until one more pod runs.
func (e *environment) restart(ctx context.Context, n int) (bench.FabricRestart, error) {
	restart := bench.FabricRestart{Pods: n}
	all := e.offloaded(n)
	all.WhileReady = func(ctx context.Context) error {
		if err := errors.Join(e.homeAudit.Mark(), e.remoteAudit.Mark()); err != nil {
			return err
		}
		begin := time.Now()
		replicas := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=fabric"}
		if err := e.homeClient.CoreV1().Pods(chart.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, replicas); err != nil {
			return err
		}
		one := e.offloaded(1)
		one.Name, one.WhileReady = "after-restart", func(ctx context.Context) error {
			restart.Took = time.Since(begin)
			var homeErr, remoteErr error
			restart.HomeWrites, homeErr = e.homeAudit.WritesWhenIdle(ctx, bench.Agent)
			restart.RemoteWrites, remoteErr = e.remoteAudit.WritesWhenIdle(ctx, bench.Agent)
			return errors.Join(homeErr, remoteErr)
		}
		_, err := one.Run(ctx)
		return err
	}
	if _, err := all.Run(ctx); err != nil {
		return restart, err
	}
	var err error
	e.fabric, err = bench.Find(ctx, e.homeClient)
	return restart, err
}

// processes returns the CPU time of all processes of the fabric, and the largest RSS.
func (e *environment) processes() (sum bench.Process, err error) {
	return processesOf(e.fabric, bench.Fabric)
}

func processesOf(installation bench.Installation, name string) (sum bench.Process, err error) {
	all, err := installation.Processes(name)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no process %q on this machine", name)
	}
	for _, process := range all {
		sum.CPU += process.CPU
		sum.RSS = max(sum.RSS, process.RSS)
	}
	return sum, err
}
