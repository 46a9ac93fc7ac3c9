package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/images"
)

// Fabric is how the command line of the fabric's process begins.
const Fabric = "liqo-csi fabric"

// PodBatch is a number of pods that are created, become ready and are deleted.
type PodBatch struct {
	Client    kubernetes.Interface
	Namespace string
	// Name is how the names of the pods begin; "pod" by default.
	Name  string
	Count int
	// Place sets where they run.
	Place func(spec *corev1.PodSpec)
	// WhileReady, if it is set, is called when all pods are ready, before they are deleted.
	WhileReady func(ctx context.Context) error
}

// Run creates the pods, waits until all were ready, deletes them, and waits until none is left.
func (r PodBatch) Run(ctx context.Context) (Result, error) {
	prefix := cmp.Or(r.Name, "pod") + "-"
	isReady := func(pod *corev1.Pod) (done bool, detail string) {
		if !strings.HasPrefix(pod.Name, prefix) {
			return false, ""
		}
		return readiness(pod)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, 0, informers.WithNamespace(r.Namespace))
	seen, err := watchFor(ctx, "pods ready", factory, factory.Core().V1().Pods().Informer(), isReady)
	if err != nil {
		return Result{}, err
	}
	defer seen.stop()
	names := make([]string, r.Count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	result, err := measure(ctx, names, seen, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := r.Client.CoreV1().Pods(r.Namespace).Create(ctx, r.pod(name), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return Result{}, err
	}
	if r.WhileReady != nil {
		if err := r.WhileReady(ctx); err != nil {
			return Result{}, err
		}
	}
	return result, r.clean(ctx)
}

func readiness(pod *corev1.Pod) (done bool, detail string) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue, condition.Message
		}
	}
	return false, string(pod.Status.Phase)
}

func (r PodBatch) pod(name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers:                    []corev1.Container{{Name: "main", Image: images.PauseName}},
		},
	}
	r.Place(&pod.Spec)
	return pod
}

func (r PodBatch) clean(ctx context.Context) error {
	pods := r.Client.CoreV1().Pods(r.Namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for {
		left, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || len(left.Items) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pods still exist after they were deleted: %w", context.Cause(ctx))
		case <-time.After(time.Second):
		}
	}
}

// FabricRow compares pods that the fabric runs in a cluster with pods that are created there directly.
type FabricRow struct {
	Pods, Runs     int
	Direct, Fabric Times
	// CPUPerPod is the fabric's, from the first POST until the last pod is deleted.
	CPUPerPod time.Duration
	// HomeWritesPerPod and RemoteWritesPerPod are the driver's API writes in the same time.
	HomeWritesPerPod, RemoteWritesPerPod float64
	// RSS is the fabric's, in bytes.
	RSS int64
}

// TotalRatio compares the time until all pods are ready.
func (r FabricRow) TotalRatio() float64 {
	return ratio(r.Fabric.Total.Seconds(), r.Direct.Total.Seconds())
}

// FabricReport is what bench-fabric prints.
type FabricReport struct {
	IdleRSS int64
	Rows    []FabricRow
	Restart FabricRestart
	Streams []StreamRow
}

// FabricRestart is what a restart of all replicas of the fabric takes while this number of its pods runs.
type FabricRestart struct {
	Pods int
	// Took is the time from deleting the replicas until a pod that was created then is ready.
	Took time.Duration
	// HomeWrites and RemoteWrites are the driver's API writes in this time by verb and resource, those for that pod included.
	HomeWrites, RemoteWrites map[string]int
}

// StreamRow compares a stream to or from a pod of the fabric with that of a pod created directly.
type StreamRow struct {
	What           string
	Bytes          int64
	Direct, Fabric []time.Duration
}

// Throughput is that of the fabric's pod, as a fraction of the other's.
func (r StreamRow) Throughput() float64 {
	return ratio(median(r.Direct).Seconds(), median(r.Fabric).Seconds())
}

func median(all []time.Duration) time.Duration {
	return percentile(slices.Sorted(slices.Values(all)), 50)
}

// PrintPods writes the rows as a table. by is the name of what ran the pods: the fabric, or another implementation.
func PrintPods(out io.Writer, by string, rows []FabricRow) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "pods\truns\tdirect p50\tp99\t%s p50\tp99\tp50 difference\tall ready, ratio\tCPU per pod\twrites at home\tremote\tmemory, MiB\n", by)
	for _, row := range rows {
		fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\t%v\t%.1f\t%.1f\t%.1f\n", row.Pods, row.Runs,
			short(row.Direct.P50), short(row.Direct.P99), short(row.Fabric.P50), short(row.Fabric.P99),
			short(row.Fabric.P50-row.Direct.P50), row.TotalRatio(),
			row.CPUPerPod.Round(100*time.Microsecond), row.HomeWritesPerPod, row.RemoteWritesPerPod, mebibytes(row.RSS))
	}
	return table.Flush()
}

// Print writes the report as tables.
func (r FabricReport) Print(out io.Writer) error {
	fmt.Fprintf(out, "memory of the idle fabric: %.1f MiB\n", mebibytes(r.IdleRSS))
	if err := PrintPods(out, "fabric", r.Rows); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "restart with %d pods: %s until a new pod was ready, with these writes at home: %v, and in the remote cluster: %v\n",
		r.Restart.Pods, short(r.Restart.Took), r.Restart.HomeWrites, r.Restart.RemoteWrites)
	fmt.Fprintln(out)
	fmt.Fprintln(table, "stream\tMiB\tdirect\tfabric\tthroughput, of direct")
	for _, row := range r.Streams {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%.0f %%\n", row.What, row.Bytes>>20,
			short(median(row.Direct)), short(median(row.Fabric)), 100*row.Throughput())
	}
	return table.Flush()
}
