package nodes

import "golang.org/x/sync/errgroup"

// each calls do for all nodes concurrently and returns the first error.
func each(targets []*Node, do func(*Node) error) error {
	var group errgroup.Group
	for _, node := range targets {
		group.Go(func() error { return do(node) })
	}
	return group.Wait()
}
