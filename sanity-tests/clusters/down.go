package clusters

import (
	"context"
	"fmt"
	"slices"

	"storage.liqo.io/sanity-tests/machine"
)

// Down stops the lab and removes everything it changed on the machine, also after a partial start.
func Down(ctx context.Context) error {
	unlock, err := machine.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return machine.Teardown(ctx)
}

// Running returns the lab that is running on this machine. A lab without running processes, as after
// a reboot, is taken down: tests must not find its objects.
func Running(ctx context.Context) (*Lab, error) {
	lab, err := Load()
	if err != nil {
		return nil, err
	}
	processes, err := machine.Processes()
	if err != nil {
		return nil, fmt.Errorf("find the lab's processes: %w", err)
	}
	if slices.ContainsFunc(processes, (*machine.Process).Alive) {
		return lab, nil
	}
	if err := Down(ctx); err != nil {
		return nil, fmt.Errorf("take down a lab without processes: %w", err)
	}
	return nil, ErrNoLab
}
