// Package bench compares class `liqo` with the real class alone: the same claims of both, in one
// run, on the same cluster. The ratios count; the times depend on the machine.
//
// batch.go creates claims, observer.go records when they are Bound, usage.go reads the CPU, memory
// and API calls of processes, report.go prints them, operations.go has operations on existing
// volumes.
package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// SelectedNode is the annotation by which the scheduler names the node of the claim's pod.
const SelectedNode = "volume.kubernetes.io/selected-node"

// senders is how many requests are sent concurrently.
const senders = 16

// Batch is a number of claims of one class that are created, become Bound and are deleted.
type Batch struct {
	Client    kubernetes.Interface
	Namespace string
	Class     string
	Node      string
	Count     int
	// Sent receives when each claim was posted, if it is not nil.
	Sent map[string]time.Time
}

// Result of one run: Each is the time from the POST of each claim until it is Bound, Total that
// from the first POST until the last claim is Bound.
type Result struct {
	Each  []time.Duration
	Total time.Duration
}

// Times summarize the runs of a batch. Total is the sum of their times, PerSecond the throughput.
type Times struct {
	P50, P99, Total time.Duration
	PerSecond       float64
}

// Summarize returns the times of all runs together.
func Summarize(results []Result) Times {
	var all Result
	for _, result := range results {
		all.Each = append(all.Each, result.Each...)
		all.Total += result.Total
	}
	slices.Sort(all.Each)
	return Times{
		P50:       percentile(all.Each, 50),
		P99:       percentile(all.Each, 99),
		Total:     all.Total,
		PerSecond: float64(len(all.Each)) / all.Total.Seconds(),
	}
}

// Run creates the claims with their node already selected, waits until all are Bound, deletes
// them and waits until their volumes are deleted too, so that batches do not overlap.
func (r Batch) Run(ctx context.Context) (Result, error) {
	times, err := watchBound(ctx, r.Client, r.Namespace)
	if err != nil {
		return Result{}, err
	}
	defer times.stop()

	sent := newStopwatch()
	defer func() {
		if r.Sent != nil {
			maps.Copy(r.Sent, sent.at)
		}
	}()
	result, err := measure(ctx, r.Claims(), times, sent, r.post)
	if err != nil {
		return Result{}, fmt.Errorf("class %s: %w", r.Class, err)
	}
	return result, r.clean(ctx, times.details(true))
}

// Claims returns the names of the claims.
func (r Batch) Claims() []string {
	names := make([]string, r.Count)
	for i := range names {
		names[i] = fmt.Sprintf("claim-%04d", i)
	}
	return names
}

func (r Batch) post(ctx context.Context, name string) error {
	_, err := r.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Create(ctx, r.claim(name), metav1.CreateOptions{})
	return err
}

// measure calls act for all names at once and waits until as many objects have been observed in
// their final state. The observer must watch the objects of these names only.
func measure(ctx context.Context, names []string, seen *observer, sent *stopwatch, act func(ctx context.Context, name string) error) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sending sync.WaitGroup
	sending.Go(func() {
		if err := send(ctx, names, sent, act); err != nil {
			cancel(err)
		}
	})
	at, err := seen.await(ctx, len(names))
	if err != nil {
		cancel(err)
	}
	sending.Wait()
	if err != nil {
		return Result{}, err
	}
	return sent.until(at), nil
}

func send(ctx context.Context, all []string, sent *stopwatch, act func(ctx context.Context, name string) error) error {
	names := make(chan string)
	errs := make(chan error, senders)
	for range senders {
		go func() {
			var failed error
			for name := range names {
				sent.start(name)
				failed = errors.Join(failed, act(ctx, name))
			}
			errs <- failed
		}()
	}
	for _, name := range all {
		names <- name
	}
	close(names)
	var failed error
	for range senders {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}

func (r Batch) claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{SelectedNode: r.Node},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &r.Class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			},
		},
	}
}

// clean deletes the claims and waits until their volumes are deleted.
func (r Batch) clean(ctx context.Context, volumes []string) error {
	claims := r.Client.CoreV1().PersistentVolumeClaims(r.Namespace)
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for {
		left, err := r.volumesLeft(ctx, volumes)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		volumes = left
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d volumes of class %s still exist after their claims were deleted: %w", len(left), r.Class, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// volumesLeft returns those volumes that still exist. It reads them one by one: in a full cluster,
// lists would dominate what is measured.
func (r Batch) volumesLeft(ctx context.Context, names []string) ([]string, error) {
	var left []string
	for _, name := range names {
		_, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			left = append(left, name)
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return left, nil
}

// stopwatch records when each claim was posted.
type stopwatch struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newStopwatch() *stopwatch { return &stopwatch{at: map[string]time.Time{}} }

func (s *stopwatch) start(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[name] = time.Now()
}

func (s *stopwatch) until(bound map[string]time.Time) Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	var each []time.Duration
	var first, last time.Time
	for name, end := range bound {
		begin := s.at[name]
		each = append(each, end.Sub(begin))
		if first.IsZero() || begin.Before(first) {
			first = begin
		}
		if end.After(last) {
			last = end
		}
	}
	return Result{each, last.Sub(first)}
}

// percentile returns the nearest-rank percentile of sorted values.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}
