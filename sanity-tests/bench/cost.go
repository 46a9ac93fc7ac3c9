package bench

import (
	"fmt"
	"time"
)

// Cost is what a batch cost besides time. Calls are the driver's, OtherWrites those of all other
// clients; ControllerRSS is in bytes.
type Cost struct {
	CPU           time.Duration
	Calls         Calls
	OtherWrites   int
	ControllerRSS int64
}

// Measure calls run and returns what it cost the driver's controller.
func (i Installation) Measure(audit *AuditLog, run func() error) (Cost, error) {
	before, err := i.Processes(Controller)
	if err != nil {
		return Cost{}, err
	}
	if len(before) == 0 {
		return Cost{}, fmt.Errorf("no process %q on this machine: is the driver installed in the lab?", Controller)
	}
	if err := audit.Mark(); err != nil {
		return Cost{}, err
	}
	if err := run(); err != nil {
		return Cost{}, err
	}
	after, err := i.Processes(Controller)
	if err != nil {
		return Cost{}, err
	}
	calls, err := audit.Calls()
	if err != nil {
		return Cost{}, err
	}
	var cost Cost
	begin, _ := sum(before, Controller)
	end, rss := sum(after, Controller)
	cost.CPU, cost.ControllerRSS = end-begin, rss
	for agent, counts := range calls {
		if agent == Agent {
			cost.Calls = counts
		} else {
			cost.OtherWrites += counts.Writes
		}
	}
	return cost, nil
}

// Add returns the sum of both; of ControllerRSS the maximum.
func (c Cost) Add(more Cost) Cost {
	return Cost{
		CPU:           c.CPU + more.CPU,
		Calls:         Calls{c.Calls.Reads + more.Calls.Reads, c.Calls.Lists + more.Calls.Lists, c.Calls.Writes + more.Calls.Writes},
		OtherWrites:   c.OtherWrites + more.OtherWrites,
		ControllerRSS: max(c.ControllerRSS, more.ControllerRSS),
	}
}

// SetCost sets the cost per volume from the cost of all runs.
func (r *Row) SetCost(c Cost) {
	volumes := r.Claims * r.Runs
	n := float64(volumes)
	r.CPUPerVolume = c.CPU / time.Duration(volumes)
	r.WritesPerVolume = float64(c.Calls.Writes) / n
	r.ReadsPerVolume = float64(c.Calls.Reads) / n
	r.ListsPerVolume = float64(c.Calls.Lists) / n
	r.OtherWritesPerVolume = float64(c.OtherWrites) / n
	r.ControllerRSS = c.ControllerRSS
}

// IdleMemory returns the RSS of the driver and its sidecars.
func (i Installation) IdleMemory() (Memory, error) {
	all, err := i.Processes(append([]string{Controller, NodePlugin}, Sidecars...)...)
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for _, p := range all {
		m.Total += p.RSS
		switch p.Name {
		case Controller:
			m.ControllerIdle = max(m.ControllerIdle, p.RSS)
		case NodePlugin:
			m.NodePlugin = max(m.NodePlugin, p.RSS)
		default:
			m.Sidecars += p.RSS
		}
	}
	return m, nil
}
