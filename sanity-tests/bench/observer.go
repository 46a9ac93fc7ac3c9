package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// observer records when each object is first observed in its final state. It uses an informer
// because the API server ends watches that cannot keep up with many objects.
type observer struct {
	what    string // such as "claims bound"
	mu      sync.Mutex
	at      map[string]time.Time
	detail  map[string]string // by object
	changed chan struct{}
	stop    func()
}

// final reports whether an object is in its final state. The detail is a fact about an object that
// is, and the obstacle of one that is not.
type final[T metav1.Object] func(object T) (done bool, detail string)

// informerFactory has either typed or dynamic informers.
type informerFactory interface {
	Start(stop <-chan struct{})
	Shutdown()
}

// watchFor observes from now on, until stop is called.
func watchFor[T metav1.Object](ctx context.Context, what string, factory informerFactory, informer cache.SharedIndexInformer, done final[T]) (*observer, error) {
	ctx, cancel := context.WithCancel(ctx)
	seen := &observer{what: what, at: map[string]time.Time{}, detail: map[string]string{}, changed: make(chan struct{}, 1)}
	seen.stop = func() {
		cancel()
		factory.Shutdown()
	}
	observe := func(object any) {
		if typed, ok := object.(T); ok {
			done, detail := done(typed)
			seen.record(typed.GetName(), done, detail)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, object any) { observe(object) },
	})
	if err != nil {
		seen.stop()
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		seen.stop()
		return nil, errors.Join(fmt.Errorf("watch for %s", what), context.Cause(ctx))
	}
	return seen, nil
}

func (s *observer) record(name string, done bool, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.at[name]; seen {
		return
	}
	s.detail[name] = detail
	if !done {
		return
	}
	s.at[name] = time.Now()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *observer) all() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.at)
}

// details returns those of the objects that are in their final state, or of the others.
func (s *observer) details(done bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var details []string
	for name, detail := range s.detail {
		if _, seen := s.at[name]; seen == done && detail != "" {
			details = append(details, detail)
		}
	}
	return details
}

// await waits until that many objects have been observed in their final state.
func (s *observer) await(ctx context.Context, count int) (map[string]time.Time, error) {
	for {
		seen := s.all()
		if len(seen) >= count {
			return seen, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d %s: %w%s", len(seen), count, s.what, context.Cause(ctx), s.obstacles())
		case <-s.changed:
		}
	}
}

// obstacles returns the distinct details of the objects that are not in their final state.
func (s *observer) obstacles() string {
	details := s.details(false)
	if len(details) == 0 {
		return ""
	}
	slices.Sort(details)
	return "; " + strings.Join(slices.Compact(details), "; ")
}
