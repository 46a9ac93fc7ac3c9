package state

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestIDsAreStableAndValidAsFileNames(t *testing.T) {
	store := open(t, t.TempDir())
	name := strings.Repeat("Ü/../", 30)
	id := store.Volumes.ID(name)
	if id != store.Volumes.ID(name) || !store.Volumes.Valid(id) {
		t.Errorf("id of %q is %q", name, id)
	}
	for _, foreign := range []string{"", "../../etc/passwd", "fake-vol-id", store.Snapshots.ID(name), id + "/x"} {
		if _, err := store.Volumes.Get(foreign); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%q) = %v, want not found", foreign, err)
		}
	}
}

func TestProcessesShareTheirRecords(t *testing.T) {
	dir := t.TempDir()
	first, second := open(t, dir), open(t, dir)
	for _, name := range []string{"b", "a", "c"} {
		id := first.Volumes.ID(name)
		if err := first.Volumes.Put(id, Volume{ID: id, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Volumes.Delete(second.Volumes.ID("b")); err != nil {
		t.Fatal(err)
	}
	volumes, err := second.Volumes.List()
	if err != nil || len(volumes) != 2 || volumes[0].ID > volumes[1].ID {
		t.Errorf("List() = %v, %v; want a and c ordered by id", volumes, err)
	}
}

func TestConcurrentChangesAreNotLost(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	id := store.Volumes.ID("counter")
	if err := store.Volumes.Put(id, Volume{ID: id}); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 25
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			mine := open(t, dir)
			for range each {
				if _, err := mine.ChangeVolume(id, func(v *Volume) error { v.Bytes++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if volume, err := store.Volumes.Get(id); err != nil || volume.Bytes != writers*each {
		t.Errorf("counted %d, %v; want %d", volume.Bytes, err, writers*each)
	}
}

func TestFailedChangeWritesNothing(t *testing.T) {
	store := open(t, t.TempDir())
	id := store.Volumes.ID("v")
	if err := store.Volumes.Put(id, Volume{ID: id, Bytes: 1}); err != nil {
		t.Fatal(err)
	}
	refusal := fmt.Errorf("no")
	if _, err := store.ChangeVolume(id, func(v *Volume) error { v.Bytes = 2; return refusal }); !errors.Is(err, refusal) {
		t.Errorf("error %v, want %v", err, refusal)
	}
	if volume, _ := store.Volumes.Get(id); volume.Bytes != 1 {
		t.Errorf("a refused change was written: %d", volume.Bytes)
	}
}
