package bench

import (
	"fmt"
	"time"
)

// Cost is what a race took of the driver beside time.
type Cost struct {
	CPU           time.Duration
	Calls         Calls
	OtherWrites   int
	ControllerRSS int64
}

// Measure runs something and reads what it cost the driver's controller.
func (i Installation) Measure(audit *AuditLog, something func() error) (Cost, error) {
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
	if err := something(); err != nil {
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
	for agent, its := range calls {
		if agent == Agent {
			cost.Calls = its
		} else {
			cost.OtherWrites += its.Writes
		}
	}
	return cost, nil
}

// And adds the cost of one more heat.
func (c Cost) And(more Cost) Cost {
	return Cost{
		CPU:           c.CPU + more.CPU,
		Calls:         c.Calls.and(more.Calls),
		OtherWrites:   c.OtherWrites + more.OtherWrites,
		ControllerRSS: max(c.ControllerRSS, more.ControllerRSS),
	}
}

func (c Calls) and(more Calls) Calls {
	return Calls{c.Reads + more.Reads, c.Lists + more.Lists, c.Writes + more.Writes}
}

// Charge notes the cost of all heats as shares per volume.
func (r *Row) Charge(c Cost) {
	volumes := r.Claims * r.Heats
	n := float64(volumes)
	r.CPUPerVolume = c.CPU / time.Duration(volumes)
	r.WritesPerVolume = float64(c.Calls.Writes) / n
	r.ReadsPerVolume = float64(c.Calls.Reads) / n
	r.ListsPerVolume = float64(c.Calls.Lists) / n
	r.OtherWritesPerVolume = float64(c.OtherWrites) / n
	r.ControllerRSS = c.ControllerRSS
}

// IdleMemory reads what the driver and its sidecars hold before any race.
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
