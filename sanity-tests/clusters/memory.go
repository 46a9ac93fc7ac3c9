package clusters

import "storage.liqo.io/sanity-tests/machine"

// Memory is what the lab takes, in bytes; pages that processes share
// count once.
type Memory struct {
	Total int64
	// Pods is the part of everything that is not a recorded process: pods and
	// the shims that hold them.
	Pods int64
}

// Memory adds up what the lab's processes take.
func (l *Lab) Memory() (Memory, error) {
	all, err := machine.Memory()
	if err != nil {
		return Memory{}, err
	}
	return Memory{Total: all.Total, Pods: all.Total - all.Recorded}, nil
}
