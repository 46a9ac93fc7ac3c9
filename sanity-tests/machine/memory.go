package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is resident memory in bytes: of all the lab's processes, and of the
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
		usage.Total += resident(pid)
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

// Memory is the resident memory of the process in bytes.
func (p *Process) Memory() int64 {
	if !p.Alive() {
		return 0
	}
	return resident(p.PID)
}

func resident(pid int) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(content))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
