package user

import (
	"context"
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/account"
	"storage.liqo.io/sanity-tests/clusters"
)

// CheckLeaks deletes objects of earlier runs of others' tests with sweep, and checks at the end of the
// test that this run has left none.
func CheckLeaks(t *testing.T, cluster *clusters.Cluster, sweep func(context.Context) error) {
	t.Helper()
	before := swept(t, cluster, sweep)
	t.Cleanup(func() {
		if t.Failed() {
			_ = swept(t, cluster, sweep)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), Timeout)
		defer cancel()
		var leaked []string
		for {
			after, err := account.List(ctx, cluster)
			if err == nil {
				if leaked = after.Except(before); len(leaked) == 0 {
					return
				}
			}
			select {
			case <-ctx.Done():
				Violated(t, "left behind:\n  %s", strings.Join(leaked, "\n  "))
				return
			case <-time.After(time.Second):
			}
		}
	})
}

func swept(t *testing.T, cluster *clusters.Cluster, sweep func(context.Context) error) account.Inventory {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Timeout)
	defer cancel()
	if err := sweep(ctx); err != nil {
		t.Error(err)
	}
	inventory, err := account.List(ctx, cluster)
	if err != nil {
		t.Error(err)
	}
	return inventory
}
