package clusters

import (
	"context"
	"fmt"
	"slices"

	"storage.liqo.io/sanity-tests/machine"
)

// Down ends the lab and returns the machine to what it was, however much of a
// lab there is.
func Down(ctx context.Context) error {
	unlock, err := machine.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return machine.Teardown(ctx)
}

// Running finds the lab that runs on this machine. One of which no process does
// any more, as after a reboot or a sudden end of everything, is taken down:
// tests want none of the objects in it.
func Running(ctx context.Context) (*Lab, error) {
	lab, err := Load()
	if err != nil {
		return nil, err
	}
	processes, err := machine.Processes()
	if err != nil {
		return nil, fmt.Errorf("look for the lab's processes: %w", err)
	}
	if slices.ContainsFunc(processes, (*machine.Process).Alive) {
		return lab, nil
	}
	if err := Down(ctx); err != nil {
		return nil, fmt.Errorf("remove what is left of a lab: %w", err)
	}
	return nil, ErrNoLab
}
