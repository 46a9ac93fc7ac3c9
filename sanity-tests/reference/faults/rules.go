// Package faults makes the reference driver misbehave on demand. A file in the state directory says
// how; it is read again for every call, so a test changes faults by writing it. The package does
// not depend on CSI.
//
// Example:
//
//	{
//	  "spaceLeft": 1048576,
//	  "rules": [
//	    {"rpc": "CreateVolume", "match": "my-namespace/", "code": "Unavailable", "times": 3},
//	    {"rpc": "NodeStageVolume", "node": "node-2", "hang": true},
//	    {"rpc": "DeleteVolume", "when": "after", "code": "DeadlineExceeded"}
//	  ]
//	}
package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is the name of the rules below a state directory.
const File = "faults.json"

// Switches is the content of the file.
type Switches struct {
	// SpaceLeft is the free space of the backend in bytes, if it is set.
	SpaceLeft *int64 `json:"spaceLeft,omitempty"`
	Rules     []Rule `json:"rules,omitempty"`
}

// Rule injects a fault into the calls that it matches. The first rule that applies is used.
type Rule struct {
	// RPC is the name of the call, such as "CreateVolume"; "*" is any.
	RPC string `json:"rpc"`
	// Node limits the rule to the node plugin with this id.
	Node string `json:"node,omitempty"`
	// Match is part of the volume's (or snapshot's) id or name, or of its
	// claim as "namespace/name".
	Match string `json:"match,omitempty"`
	// When is "before" (the default: the driver does nothing) or "after" (the driver does its work,
	// and the response is lost).
	When string `json:"when,omitempty"`
	// Delay waits, for example "2s".
	Delay string `json:"delay,omitempty"`
	// Hang waits until the caller cancels or the rule is removed.
	Hang bool `json:"hang,omitempty"`
	// Code is the gRPC code of the error, such as "Unavailable"; without one the call continues
	// after Delay or Hang.
	Code string `json:"code,omitempty"`
	// Message is the message of the error.
	Message string `json:"message,omitempty"`
	// Times is how often the rule applies, counted by each process of the driver separately; 0 is
	// always. The count restarts when a removed rule is added again.
	Times int `json:"times,omitempty"`
}

// Call has the fields that rules match.
type Call struct {
	RPC  string
	Node string
	// Subjects are all names of the object of the call.
	Subjects []string
}

// Covers reports whether the rule matches this call.
func (r Rule) Covers(call Call) bool {
	if r.RPC != "*" && r.RPC != call.RPC || r.Node != "" && r.Node != call.Node {
		return false
	}
	if r.Match == "" {
		return true
	}
	for _, subject := range call.Subjects {
		if strings.Contains(subject, r.Match) {
			return true
		}
	}
	return false
}

// Read returns the switches in a state directory; no file means no faults.
func Read(stateDir string) (Switches, error) {
	var switches Switches
	raw, err := os.ReadFile(filepath.Join(stateDir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return switches, nil
	}
	if err != nil {
		return switches, fmt.Errorf("read fault switches: %w", err)
	}
	if err := json.Unmarshal(raw, &switches); err != nil {
		return switches, fmt.Errorf("parse fault switches: %w", err)
	}
	return switches, nil
}

// Write replaces the switches in a state directory.
func Write(stateDir string, switches Switches) error {
	raw, err := json.MarshalIndent(switches, "", "  ")
	if err != nil {
		return fmt.Errorf("encode fault switches: %w", err)
	}
	path := filepath.Join(stateDir, File)
	if err := os.WriteFile(path+".new", raw, 0o644); err != nil {
		return fmt.Errorf("write fault switches: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write fault switches: %w", err)
	}
	return nil
}
