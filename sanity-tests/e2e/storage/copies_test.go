package storage

import (
	"testing"

	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestSnapshotsAndClones(t *testing.T) {
	t.Parallel()
	for class, snapshotClass := range map[string]string{
		"reference": "reference", "reference-xfs": "reference", "reference-attach": "reference-attach", "reference-local": "reference-local",
	} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("source", class, "320Mi")
			n.Pod("writer", "source")
			n.WaitReady("writer")
			n.Exec("writer", "echo old > /data/file; sync")
			n.Snapshot("backup", "source", snapshotClass)
			n.Exec("writer", "echo new > /data/file; sync")

			n.Claim("restored", class, "400Mi", user.WithDataSource("VolumeSnapshot", "backup"))
			n.Claim("cloned", class, "320Mi", user.WithDataSource("PersistentVolumeClaim", "source"))
			n.Pod("restored", "restored")
			n.Pod("cloned", "cloned")
			for pod, want := range map[string]string{"restored": "old", "cloned": "new"} {
				n.WaitReady(pod)
				if got := n.Exec(pod, "cat /data/file"); got != want {
					user.Violated(t, "%s reads %q, want %q", pod, got, want)
				}
			}
			n.Exec("cloned", "echo changed > /data/file")
			if got := n.Exec("writer", "cat /data/file"); got != "new" {
				user.Violated(t, "the source reads %q after a write to its clone", got)
			}
		})
	}
}
