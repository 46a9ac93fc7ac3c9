package driver

import (
	"context"
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// A database whose volume is copied while it writes starts on the copy, and has all that it
// had confirmed before.
func TestDatabaseIsCopiedWhileItWrites(t *testing.T) {
	n := home(t)
	const class = "liqo-reference-attach"
	n.Claim("database", class, "320Mi")
	n.Pod("database", "database", user.RunEtcd)
	n.WaitReady("database")
	load := n.LoadEtcd("database", 0)
	n.Eventually("the database confirms keys", func(context.Context) (string, error) {
		return missingUnless(load.Confirmed() >= 20, "fewer than 20"), nil
	})

	before := map[string]int{"restored": load.Confirmed()}
	n.Snapshot("backup", "database", snapshotClass)
	before["cloned"] = load.Confirmed()
	n.Claim("restored", class, "320Mi", user.WithDataSource("VolumeSnapshot", "backup"))
	n.Claim("cloned", class, "320Mi", user.WithDataSource("PersistentVolumeClaim", "database"))
	for _, copied := range []string{"restored", "cloned"} {
		n.Pod(copied, copied, user.RunEtcd)
	}
	for _, copied := range []string{"restored", "cloned"} {
		n.WaitReady(copied)
		count, latest := n.EtcdKeys(copied)
		if count < before[copied] || count != latest {
			user.Violated(t, "the %s database has %d keys up to %d; %d were confirmed before it was copied", copied, count, latest, before[copied])
		}
		t.Logf("%s: %d keys, %d confirmed before the copy", copied, count, before[copied])
	}
	if now := load.Confirmed(); now <= before["cloned"] {
		t.Errorf("the database stopped writing at %d", now)
	}
}

func missingUnless(condition bool, what string) string {
	if condition {
		return ""
	}
	return what
}
