package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is memory in bytes: of all the lab's processes, and of the
// recorded ones alone.
type Usage struct{ Total, Recorded int64 }

// Memory adds up what the lab's processes take.
func Memory() (Usage, error) {
	pids, err := labPids()
	if err != nil {
		return Usage{}, err
	}
	var usage Usage
	for pid := range pids {
		usage.Total += proportional(pid)
	}
	recorded, err := Processes()
	if err != nil {
		return Usage{}, err
	}
	for _, process := range recorded {
		usage.Recorded += process.Memory()
	}
	return usage, nil
}

// Memory is the memory of the process in bytes, its share of shared pages.
func (p *Process) Memory() int64 {
	if !p.Alive() {
		return 0
	}
	return proportional(p.PID)
}

// proportional is the memory of a process with the pages it shares divided
// among those that share them: dozens of processes run from a few programs, and
// a plain sum of resident memory would count those again and again.
func proportional(pid int) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has ended
	}
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(line, "Pss:"); found {
			kilobytes, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}
