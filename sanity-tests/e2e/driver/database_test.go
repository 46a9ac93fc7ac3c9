package driver

import (
	"context"
	"fmt"
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// A copy of the volume of a database that is writing has all keys that were confirmed before.
func TestDatabaseIsCopiedWhileItWrites(t *testing.T) {
	n := home(t)
	const class = "liqo-reference-attach"
	n.Claim("database", class, "320Mi")
	n.Pod("database", "database", user.RunEtcd)
	n.WaitReady("database")
	load := n.LoadEtcd("database", 0)
	n.Eventually("the database confirms 20 keys", func(context.Context) (string, error) {
		if confirmed := load.Confirmed(); confirmed < 20 {
			return fmt.Sprintf("it confirmed %d", confirmed), nil
		}
		return "", nil
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
