// Package faults is a TCP proxy that can misbehave, and the client that tells
// it to. The lab puts one between the clusters because its kernels have no
// netem, and plain ones in front of the API servers so that the host reaches
// them.
//
// It forwards bytes and knows nothing of what they mean. Cutting the link
// itself (a partition) is the business of package clusters.
package faults

import (
	"fmt"
	"time"
)

// Mode is what a proxy does with the connections it has.
type Mode string

// The modes. Switching takes effect on connections that exist, too.
const (
	// Pass forwards.
	Pass Mode = "pass"
	// Delay forwards each byte later, by the setting's delays.
	Delay Mode = "delay"
	// Hang accepts and keeps everything back; with the next mode it all moves
	// on as if nothing had been.
	Hang Mode = "hang"
	// HalfOpen drops what is sent without closing anything, as a dead peer or
	// a forgetful firewall does: a connection that lived through it stays dead
	// for ever, new ones work with the next mode.
	HalfOpen Mode = "half-open"
	// Reset answers every connection with a reset.
	Reset Mode = "reset"
)

// Modes lists all modes.
var Modes = []Mode{Pass, Delay, Hang, HalfOpen, Reset}

// Setting is a mode and, for Delay, how long each direction takes longer.
type Setting struct {
	Mode Mode
	// Up delays what the client sends, Down what the server answers.
	Up, Down time.Duration
}

func (s Setting) validate() error {
	for _, mode := range Modes {
		if s.Mode == mode {
			return nil
		}
	}
	return fmt.Errorf("unknown fault mode %q: use one of %v", s.Mode, Modes)
}

// String describes the setting for people.
func (s Setting) String() string {
	if s.Mode == Delay {
		return fmt.Sprintf("delay (up %s, down %s)", s.Up, s.Down)
	}
	return string(s.Mode)
}
