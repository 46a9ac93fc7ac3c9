package clusters

import "storage.liqo.io/sanity-tests/machine"

// Memory is the memory of the lab, in bytes. Shared pages count once.
type Memory struct {
	Total int64
	// Pods is the part of processes that are not recorded: pods and their shims.
	Pods int64
}

// Memory returns the memory of the lab's processes.
func (l *Lab) Memory() (Memory, error) {
	all, err := machine.Memory()
	if err != nil {
		return Memory{}, err
	}
	return Memory{Total: all.Total, Pods: all.Total - all.Recorded}, nil
}
