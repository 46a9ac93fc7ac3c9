package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/images"
)

// Fabric is the process that runs pods in other clusters.
const Fabric = "liqo-csi fabric"

// PodRace is one set of pods, ready and deleted again.
type PodRace struct {
	Client    kubernetes.Interface
	Namespace string
	Count     int
	// Place says where they run.
	Place func(spec *corev1.PodSpec)
}

// Run posts the pods and waits until all were seen ready; then it deletes them, and waits until
// none is left.
func (r PodRace) Run(ctx context.Context) (Heat, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, 0, informers.WithNamespace(r.Namespace))
	seen, err := watchFor(ctx, "pods ready", factory, factory.Core().V1().Pods().Informer(), readiness)
	if err != nil {
		return Heat{}, err
	}
	defer seen.stop()
	names := make([]string, r.Count)
	for i := range names {
		names[i] = fmt.Sprintf("pod-%04d", i)
	}
	heat, err := hold(ctx, names, seen, newStopwatch(), func(ctx context.Context, name string) error {
		_, err := r.Client.CoreV1().Pods(r.Namespace).Create(ctx, r.pod(name), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return Heat{}, err
	}
	return heat, r.clean(ctx)
}

func readiness(pod *corev1.Pod) (done bool, note string) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue, condition.Message
		}
	}
	return false, string(pod.Status.Phase)
}

func (r PodRace) pod(name string) *corev1.Pod {
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "main", Image: images.PauseName}},
		},
	}
	r.Place(&pod.Spec)
	return pod
}

func (r PodRace) clean(ctx context.Context) error {
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
			return fmt.Errorf("pods are still there after they were deleted: %w", context.Cause(ctx))
		case <-time.After(time.Second):
		}
	}
}

// FabricRow compares pods that the fabric runs in a cluster with the same pods made there.
type FabricRow struct {
	Pods, Heats  int
	Direct, Ours Times
	// CPUPerPod is the fabric's, from the first POST until the last pod is gone.
	CPUPerPod time.Duration
	// HomeWritesPerPod and RemoteWritesPerPod are those of the driver in the same time.
	HomeWritesPerPod, RemoteWritesPerPod float64
	// RSS is the fabric's while all pods are there or have just gone, in bytes.
	RSS int64
}

// Whole is how many times as long it takes until all pods are ready.
func (r FabricRow) Whole() float64 { return ratio(r.Ours.Whole.Seconds(), r.Direct.Whole.Seconds()) }

// FabricReport is what bench-fabric prints.
type FabricReport struct {
	IdleRSS int64
	Rows    []FabricRow
	Streams []StreamRow
}

// StreamRow compares a stream to or from a pod of the fabric with that of a pod made there.
type StreamRow struct {
	What  string
	Bytes int64
	// Direct and Ours is how long it took, each time.
	Direct, Ours []time.Duration
}

// Throughput is that of the fabric's pod, as a part of the other's.
func (r StreamRow) Throughput() float64 {
	return ratio(middle(r.Direct).Seconds(), middle(r.Ours).Seconds())
}

func middle(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return percentile(sorted, 50)
}

// Print writes it as a table.
func (r FabricReport) Print(out io.Writer) error {
	fmt.Fprintf(out, "memory of the idle fabric: %.1f MiB\n", float64(r.IdleRSS)/(1<<20))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "pods\theats\tdirect p50\tp99\tours p50\tp99\tp50 more\tall ready, ratio\tCPU per pod\twrites at home\tthere\tmemory, MiB")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%d\t%d\t%v\t%v\t%v\t%v\t%v\t%.2f\t%v\t%.1f\t%.1f\t%.1f\n", row.Pods, row.Heats,
			row.Direct.P50.Round(time.Millisecond), row.Direct.P99.Round(time.Millisecond),
			row.Ours.P50.Round(time.Millisecond), row.Ours.P99.Round(time.Millisecond),
			(row.Ours.P50 - row.Direct.P50).Round(time.Millisecond), row.Whole(),
			row.CPUPerPod.Round(100*time.Microsecond), row.HomeWritesPerPod, row.RemoteWritesPerPod, float64(row.RSS)/(1<<20))
	}
	if err := table.Flush(); err != nil || len(r.Streams) == 0 {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(table, "stream\tMiB\tdirect\tours\tthroughput, of direct")
	for _, row := range r.Streams {
		fmt.Fprintf(table, "%s\t%d\t%v\t%v\t%.0f %%\n", row.What, row.Bytes>>20,
			middle(row.Direct).Round(time.Millisecond), middle(row.Ours).Round(time.Millisecond), 100*row.Throughput())
	}
	return table.Flush()
}
