package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is the memory in bytes of all processes of the lab, and of the recorded ones.
type Usage struct{ Total, Recorded int64 }

// Memory returns the memory of the lab's processes.
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

// Memory returns the proportional set size of the process in bytes, or 0 if it has ended.
func (p *Process) Memory() int64 {
	if !p.Alive() {
		return 0
	}
	return proportional(p.PID)
}

// proportional returns the proportional set size of a process: dozens of processes run the same few
// programs, whose pages a sum of RSS would count repeatedly.
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
