// Package faults is a TCP proxy that can inject faults, and its client. The lab has one between the
// clusters because its kernels have no netem, and plain ones through which the host reaches the API
// servers.
//
// Package clusters creates partitions, which cut the link itself.
package faults

import (
	"fmt"
	"slices"
	"time"
)

// Mode is what a proxy does with its connections.
type Mode string

// A new mode takes effect on existing connections too.
const (
	// Pass forwards.
	Pass Mode = "pass"
	// Delay forwards each byte later, by the setting's delays.
	Delay Mode = "delay"
	// Hang accepts connections and bytes, and forwards them in the next mode.
	Hang Mode = "hang"
	// HalfOpen drops all bytes without closing connections, as a dead peer or a firewall without
	// state does. These connections never recover; new ones work in the next mode.
	HalfOpen Mode = "half-open"
	// Reset resets every connection.
	Reset Mode = "reset"
)

// Modes lists all modes.
var Modes = []Mode{Pass, Delay, Hang, HalfOpen, Reset}

// Setting is a mode and, for Delay, the delay of each direction.
type Setting struct {
	Mode Mode
	// Up delays bytes of the client, Down those of the server.
	Up, Down time.Duration
}

func (s Setting) validate() error {
	if !slices.Contains(Modes, s.Mode) {
		return fmt.Errorf("unknown fault mode %q: use one of %v", s.Mode, Modes)
	}
	return nil
}
func (s Setting) String() string {
	if s.Mode == Delay {
		return fmt.Sprintf("delay (up %s, down %s)", s.Up, s.Down)
	}
	return string(s.Mode)
}
