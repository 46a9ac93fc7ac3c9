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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// boundTimes notes when each claim of a namespace is first seen Bound. An
// informer watches: an API server ends watches that cannot keep up with many
// claims at once.
type boundTimes struct {
	mu   sync.Mutex
	at   map[string]time.Time
	to   map[string]string // the volume of each claim
	news chan struct{}
	stop func()
}

// watchBound notes from now on, until stopped.
func watchBound(ctx context.Context, client kubernetes.Interface, namespace string) (*boundTimes, error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	times := &boundTimes{at: map[string]time.Time{}, to: map[string]string{}, news: make(chan struct{}, 1)}
	times.stop = func() {
		cancel()
		factory.Shutdown()
	}
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	told, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    times.note,
		UpdateFunc: func(_, claim any) { times.note(claim) },
	})
	if err != nil {
		times.stop()
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), told.HasSynced) {
		times.stop()
		return nil, errors.Join(fmt.Errorf("watch the claims of namespace %s", namespace), context.Cause(ctx))
	}
	return times, nil
}

func (b *boundTimes) note(object any) {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != corev1.ClaimBound {
		return
	}
	b.mu.Lock()
	if _, seen := b.at[claim.Name]; !seen {
		b.at[claim.Name] = time.Now()
		b.to[claim.Name] = claim.Spec.VolumeName
	}
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *boundTimes) all() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.at)
}

// volumes are those that the claims were bound to.
func (b *boundTimes) volumes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.to))
}

// await returns when that many claims were Bound.
func (b *boundTimes) await(ctx context.Context, count int) (map[string]time.Time, error) {
	for {
		bound := b.all()
		if len(bound) >= count {
			return bound, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d claims bound: %w", len(bound), count, context.Cause(ctx))
		case <-b.news:
		}
	}
}
