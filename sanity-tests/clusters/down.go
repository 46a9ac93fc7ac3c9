package clusters

import (
	"context"

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
