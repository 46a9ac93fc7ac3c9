// Package state stores the records of the reference driver (volumes, snapshots and nodes), one JSON
// file each, in a directory that all processes of one driver on the machine share.
//
// Files are replaced by rename, so readers need no lock; changes are made inside Store.Transaction,
// which excludes all other processes. No process caches records, so a restart loses nothing.
package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound means that no record has the id.
var ErrNotFound = errors.New("not found")

// Store is one driver's state directory.
type Store struct {
	Volumes   Records[Volume]
	Snapshots Records[Snapshot]
	Nodes     Records[Node]

	dir string
}

// Open creates the directory if necessary; it may have the records of another process, which may be
// running.
func Open(dir string) (*Store, error) {
	store := &Store{
		Volumes:   Records[Volume]{dir: filepath.Join(dir, "volumes"), kind: "vol"},
		Snapshots: Records[Snapshot]{dir: filepath.Join(dir, "snapshots"), kind: "snap"},
		Nodes:     Records[Node]{dir: filepath.Join(dir, "nodes"), kind: "node"},
		dir:       dir,
	}
	for _, path := range []string{store.Volumes.dir, store.Snapshots.dir, store.Nodes.dir, store.dataDir()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("prepare state directory: %w", err)
		}
	}
	return store, nil
}

// Data returns the path of the content of a volume or snapshot: a directory, or an image file.
func (s *Store) Data(id string) string { return filepath.Join(s.dataDir(), id) }

func (s *Store) dataDir() string { return filepath.Join(s.dir, "data") }

// Transaction calls change while no other transaction of any process runs. It is for reading and
// writing records, not for slow work.
func (s *Store) Transaction(change func() error) error {
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open state lock: %w", err)
	}
	defer lock.Close()
	for {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock state: %w", err)
	}
	return change()
}

// ChangeVolume reads a volume, calls change, and writes the volume, all in one transaction. Nothing
// is written if change returns an error.
func (s *Store) ChangeVolume(id string, change func(*Volume) error) (Volume, error) {
	var volume Volume
	err := s.Transaction(func() error {
		var err error
		if volume, err = s.Volumes.Get(id); err != nil {
			return err
		}
		if err = change(&volume); err != nil {
			return err
		}
		return s.Volumes.Put(id, volume)
	})
	return volume, err
}

// Records is a directory of JSON files of one type.
type Records[T any] struct {
	dir  string
	kind string
}

// ID returns the id of the record with this name. It is the same on every call, which makes
// creation idempotent, and is valid as a file name.
func (r Records[T]) ID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return r.kind + "-" + hex.EncodeToString(sum[:16])
}

var idPattern = regexp.MustCompile(`^[a-z]+-[0-9a-f]{32}$`)

// Valid reports whether id has the form of an id. Ids come from callers, and must not lead out of
// the directory.
func (r Records[T]) Valid(id string) bool {
	return idPattern.MatchString(id) && strings.HasPrefix(id, r.kind+"-")
}

// Get reads one record, or returns ErrNotFound.
func (r Records[T]) Get(id string) (T, error) {
	var record T
	if !r.Valid(id) {
		return record, ErrNotFound
	}
	raw, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record, ErrNotFound
	}
	if err != nil {
		return record, fmt.Errorf("read record %s: %w", id, err)
	}
	if err := json.Unmarshal(raw, &record); err != nil {
		return record, fmt.Errorf("parse record %s: %w", id, err)
	}
	return record, nil
}

// List reads all records, ordered by id.
func (r Records[T]) List() ([]T, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var records []T
	for _, entry := range entries {
		id, isRecord := strings.CutSuffix(entry.Name(), ".json")
		if !isRecord {
			continue
		}
		record, err := r.Get(id)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}

// Put replaces a record.
func (r Records[T]) Put(id string, record T) error {
	raw, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record %s: %w", id, err)
	}
	draft := r.path(id) + ".new"
	if err := os.WriteFile(draft, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	if err := os.Rename(draft, r.path(id)); err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	return nil
}

// Delete deletes a record, if it exists.
func (r Records[T]) Delete(id string) error {
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete record %s: %w", id, err)
	}
	return nil
}

func (r Records[T]) path(id string) string { return filepath.Join(r.dir, id+".json") }
