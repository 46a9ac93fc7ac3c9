package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"storage.liqo.io/sanity-tests/clusters"
)

// Backend reads and writes the state directory of a driver in a cluster.
type Backend struct{ dir string }

// BackendOf returns the backend of a driver.
func BackendOf(cluster *clusters.Cluster, driver Driver) Backend {
	return Backend{dir: driver.StateDir(cluster)}
}

// Fault is a fault in calls of the driver. Package faults in the module reference describes its
// fields and its file.
type Fault struct {
	// RPC is a name such as "CreateVolume", or "*".
	RPC string `json:"rpc"`
	// Node limits the fault to one node's plugin.
	Node string `json:"node,omitempty"`
	// Match is part of a volume's id or name, or of its claim as "namespace/name": "my-namespace/"
	// matches the claims of one test.
	Match string `json:"match,omitempty"`
	// When is "before" (default) or "after" the work.
	When  string `json:"when,omitempty"`
	Delay string `json:"delay,omitempty"`
	// Hang lasts until the caller cancels or the fault is removed.
	Hang    bool   `json:"hang,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Times   int    `json:"times,omitempty"`
}

type switches struct {
	SpaceLeft *int64  `json:"spaceLeft,omitempty"`
	Rules     []Fault `json:"rules,omitempty"`
}

// AddFault adds a fault until remove is called. Faults of tests that run at the same time are
// independent.
func (b Backend) AddFault(fault Fault) (remove func() error, err error) {
	err = b.change(func(s *switches) { s.Rules = append(s.Rules, fault) })
	return func() error {
		return b.change(func(s *switches) {
			if index := slices.Index(s.Rules, fault); index >= 0 {
				s.Rules = slices.Delete(s.Rules, index, index+1)
			}
		})
	}, err
}

// SetSpaceLeft sets the free space of the backend, for all users of the driver; nil removes the
// setting.
func (b Backend) SetSpaceLeft(bytes *int64) error {
	return b.change(func(s *switches) { s.SpaceLeft = bytes })
}

// ClearFaults removes all faults, and reports whether there were any.
func (b Backend) ClearFaults() (cleared bool, err error) {
	err = b.change(func(s *switches) {
		cleared = s.SpaceLeft != nil || len(s.Rules) > 0
		*s = switches{}
	})
	return cleared, err
}

func (b Backend) change(edit func(*switches)) error {
	lock, err := os.OpenFile(filepath.Join(b.dir, "faults.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("fault switches: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock fault switches: %w", err)
	}
	var current switches
	file := filepath.Join(b.dir, "faults.json")
	if err := readJSON(file, &current); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("fault switches: %w", err)
	}
	edit(&current)
	text, err := json.MarshalIndent(current, "", "  ")
	if err == nil {
		err = os.WriteFile(file+".new", text, 0o644)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return fmt.Errorf("fault switches: %w", err)
	}
	return nil
}

// Call is a call that reached the driver: one line of its call log.
type Call struct {
	Time           time.Time `json:"time"`
	Node           string    `json:"node"` // of the process that was called
	RPC            string    `json:"rpc"`
	Code           string    `json:"code"`
	Message        string    `json:"message"`
	Milliseconds   int64     `json:"milliseconds"`
	Name           string    `json:"name"`
	Volume         string    `json:"volume"`
	Snapshot       string    `json:"snapshot"`
	Claim          string    `json:"claim"`
	PublishNode    string    `json:"publishNode"`
	Staging        string    `json:"staging"`
	Target         string    `json:"target"`
	VolumePath     string    `json:"volumePath"`
	Bytes          int64     `json:"bytes"`
	AccessMode     string    `json:"accessMode"`
	Block          bool      `json:"block"`
	FSType         string    `json:"fsType"`
	MountFlags     []string  `json:"mountFlags"`
	MountGroup     string    `json:"mountGroup"`
	ReadOnly       bool      `json:"readOnly"`
	VolumeContext  []string  `json:"volumeContext"` // keys, with pod info
	PublishContext []string  `json:"publishContext"`
	Secrets        []string  `json:"secrets"` // names
}

// Calls returns the calls that match, oldest first.
func (b Backend) Calls(wanted func(Call) bool) ([]Call, error) {
	text, err := os.ReadFile(filepath.Join(b.dir, "calls.log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read call log: %w", err)
	}
	var calls []Call
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // still being written
		}
		var call Call
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			return nil, fmt.Errorf("parse call log: %w", err)
		}
		if wanted(call) {
			calls = append(calls, call)
		}
	}
	return calls, nil
}

// Volume has fields of the record of a volume; package state in the module reference has all of
// them.
type Volume struct {
	ID          string                     `json:"id"`
	Name        string                     `json:"name"`
	Claim       string                     `json:"claim"`
	Bytes       int64                      `json:"bytes"`
	Backing     string                     `json:"backing"`
	Node        string                     `json:"node"`
	Mutable     map[string]string          `json:"mutableParameters"`
	Ready       bool                       `json:"ready"`
	Attachments map[string]json.RawMessage `json:"attachments"`
	Stages      map[string]json.RawMessage `json:"stages"`
}

// Volumes returns all volumes of the backend: those that exist after a test are leaks.
func (b Backend) Volumes() ([]Volume, error) {
	files, err := filepath.Glob(filepath.Join(b.dir, "volumes", "vol-*.json"))
	if err != nil {
		return nil, err
	}
	var volumes []Volume
	for _, file := range files {
		var volume Volume
		err := readJSON(file, &volume)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the meantime
		}
		if err != nil {
			return nil, fmt.Errorf("volumes of the backend: %w", err)
		}
		volumes = append(volumes, volume)
	}
	return volumes, nil
}

// Volume finds the volume with this id, which is the PV's volume handle.
func (b Backend) Volume(id string) (Volume, error) {
	var volume Volume
	err := readJSON(filepath.Join(b.dir, "volumes", id+".json"), &volume)
	if err != nil {
		return volume, fmt.Errorf("volume %s of the backend: %w", id, err)
	}
	return volume, nil
}

// Data returns the host's path of the content of a volume: a directory or an image file.
func (b Backend) Data(id string) string { return filepath.Join(b.dir, "data", id) }

func readJSON(file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	return nil
}
