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

// sightings notes when each object is first seen as it is to become. An informer
// watches: an API server ends watches that cannot keep up with many objects at once.
type sightings struct {
	what  string // such as "claims bound"
	mu    sync.Mutex
	at    map[string]time.Time
	notes map[string]string // of each object
	news  chan struct{}
	stop  func()
}

// look says whether an object is as it is to become. Its note is what to know of one
// that is, and what keeps another.
type look[T metav1.Object] func(object T) (done bool, note string)

// informerFactory is that of typed or of dynamic clients.
type informerFactory interface {
	Start(stop <-chan struct{})
	Shutdown()
}

// watchFor notes from now on, until stopped.
func watchFor[T metav1.Object](ctx context.Context, what string, factory informerFactory, informer cache.SharedIndexInformer, done look[T]) (*sightings, error) {
	ctx, cancel := context.WithCancel(ctx)
	seen := &sightings{what: what, at: map[string]time.Time{}, notes: map[string]string{}, news: make(chan struct{}, 1)}
	seen.stop = func() {
		cancel()
		factory.Shutdown()
	}
	note := func(object any) {
		if one, is := object.(T); is {
			done, note := done(one)
			seen.note(one.GetName(), done, note)
		}
	}
	told, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    note,
		UpdateFunc: func(_, object any) { note(object) },
	})
	if err != nil {
		seen.stop()
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), told.HasSynced) {
		seen.stop()
		return nil, errors.Join(fmt.Errorf("watch for %s", what), context.Cause(ctx))
	}
	return seen, nil
}

func (s *sightings) note(name string, done bool, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.at[name]; seen {
		return
	}
	s.notes[name] = note
	if !done {
		return
	}
	s.at[name] = time.Now()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *sightings) all() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.at)
}

// noted are the notes of those that are as they are to become, or of the others.
func (s *sightings) noted(done bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var notes []string
	for name, note := range s.notes {
		if _, is := s.at[name]; is == done && note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// await returns when that many objects were seen so.
func (s *sightings) await(ctx context.Context, count int) (map[string]time.Time, error) {
	for {
		seen := s.all()
		if len(seen) >= count {
			return seen, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d %s: %w%s", len(seen), count, s.what, context.Cause(ctx), s.troubles())
		case <-s.news:
		}
	}
}

// troubles are the different notes of those that are missing.
func (s *sightings) troubles() string {
	notes := s.noted(false)
	if len(notes) == 0 {
		return ""
	}
	slices.Sort(notes)
	return "; " + strings.Join(slices.Compact(notes), "; ")
}
