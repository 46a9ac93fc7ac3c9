// Package bench measures what class `liqo` costs beside the real class alone: the
// same claims on both, in one run, on the same cluster. Figures are meant to be
// read as ratios; absolute times belong to the machine.
//
// race.go sends claims, sightings.go times them, usage.go reads what processes and API
// calls they cost, report.go prints it. operations.go has what is done to volumes that
// are there.
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

// SelectedNode is how a scheduler tells a provisioner where the consumer lands.
const SelectedNode = "volume.kubernetes.io/selected-node"

// senders is how many claims are posted at a time.
const senders = 16

// Race is one set of claims of one class, bound and deleted again.
type Race struct {
	Client    kubernetes.Interface
	Namespace string
	Class     string
	Node      string
	Count     int
	// Sent is told when each claim was posted; nil for nobody.
	Sent map[string]time.Time
}

// Heat is one run of a race: what each claim took from its POST to Bound, and
// how long it was from the first POST to the last Bound.
type Heat struct {
	Each  []time.Duration
	Whole time.Duration
}

// Times sum up the heats of a race.
type Times struct {
	P50, P99 time.Duration
	// Whole is the sum of the heats' times.
	Whole time.Duration
	// PerSecond is the throughput over that time.
	PerSecond float64
}

// Summary takes all heats of a race together.
func Summary(heats []Heat) Times {
	var all Heat
	for _, heat := range heats {
		all.Each = append(all.Each, heat.Each...)
		all.Whole += heat.Whole
	}
	slices.Sort(all.Each)
	return Times{
		P50:       percentile(all.Each, 50),
		P99:       percentile(all.Each, 99),
		Whole:     all.Whole,
		PerSecond: float64(len(all.Each)) / all.Whole.Seconds(),
	}
}

// Run posts the claims, each with its node already selected as a scheduler would
// leave it, waits until all are bound, deletes them and waits until their
// volumes are gone too, so that races do not overlap.
func (r Race) Run(ctx context.Context) (Heat, error) {
	times, err := watchBound(ctx, r.Client, r.Namespace)
	if err != nil {
		return Heat{}, err
	}
	defer times.stop()

	sent := newStopwatch()
	defer func() {
		if r.Sent != nil {
			maps.Copy(r.Sent, sent.at)
		}
	}()
	heat, err := hold(ctx, r.names(), times, sent, r.post)
	if err != nil {
		return Heat{}, fmt.Errorf("class %s: %w", r.Class, err)
	}
	return heat, r.clean(ctx, times.noted(true))
}

func (r Race) names() []string {
	names := make([]string, r.Count)
	for i := range names {
		names[i] = fmt.Sprintf("claim-%04d", i)
	}
	return names
}

func (r Race) post(ctx context.Context, name string) error {
	_, err := r.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Create(ctx, r.claim(name), metav1.CreateOptions{})
	return err
}

// hold does the same for all names at once and waits until as many objects are seen to
// be done. The objects that are watched are those of the names and no others.
func hold(ctx context.Context, names []string, seen *sightings, sent *stopwatch, act func(ctx context.Context, name string) error) (Heat, error) {
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
		return Heat{}, err
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

func (r Race) claim(name string) *corev1.PersistentVolumeClaim {
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

// clean deletes the claims and waits until no volume of theirs is left.
func (r Race) clean(ctx context.Context, volumes []string) error {
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
			return fmt.Errorf("%d volumes of class %s are still there after their claims were deleted: %w", len(left), r.Class, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// volumesLeft are those of the volumes that are there still. They are read singly: whole lists
// of a full cluster would be the most of what is measured.
func (r Race) volumesLeft(ctx context.Context, names []string) ([]string, error) {
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

// stopwatch remembers when each claim was posted.
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

func (s *stopwatch) until(bound map[string]time.Time) Heat {
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
	return Heat{each, last.Sub(first)}
}

// percentile of sorted values, by the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}
