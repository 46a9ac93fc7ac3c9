package bench

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPercentilesUseTheNearestRank(t *testing.T) {
	var sorted []time.Duration
	for i := 1; i <= 100; i++ {
		sorted = append(sorted, time.Duration(i))
	}
	for p, want := range map[int]time.Duration{1: 1, 50: 50, 99: 99, 100: 100} {
		if got := percentile(sorted, p); got != want {
			t.Errorf("p%d: got %d, want %d", p, got, want)
		}
	}
	if got := percentile([]time.Duration{7}, 50); got != 7 {
		t.Errorf("of one value: got %d, want 7", got)
	}
}

func TestCallsSinceTheMarkAreCountedByAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	event := func(stage, verb, agent, resource string) string {
		return `{"stage":"` + stage + `","verb":"` + verb + `","userAgent":"` + agent + `","objectRef":{"resource":"` + resource + `"}}` + "\n"
	}
	write := func(text string) {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(event("ResponseComplete", "create", "liqo-csi/1", "persistentvolumeclaims"))
	log := AuditLog{Path: path}
	if err := log.Mark(); err != nil {
		t.Fatal(err)
	}
	write(event("ResponseComplete", "create", "liqo-csi/1", "persistentvolumeclaims") +
		event("ResponseComplete", "list", "liqo-csi/1", "persistentvolumes") +
		event("ResponseComplete", "watch", "liqo-csi/1", "persistentvolumes") +
		event("RequestReceived", "create", "liqo-csi/1", "persistentvolumeclaims") +
		event("ResponseComplete", "get", "liqo-csi/1", "persistentvolumeclaims") +
		event("ResponseComplete", "update", "liqo-csi/1", "leases") +
		event("ResponseComplete", "patch", "csi-provisioner/v6 (linux)", "persistentvolumes"))
	got, err := log.Calls()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Calls{
		"liqo-csi":        {Reads: 1, Lists: 1, Writes: 1},
		"csi-provisioner": {Writes: 1},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	writes, err := log.WritesWhenIdle(t.Context(), Agent)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"create persistentvolumeclaims": 1}; !maps.Equal(writes, want) {
		t.Errorf("got the writes %v, want %v", writes, want)
	}
}

func TestCallsWhenIdleWaitsUntilWritesStop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log := AuditLog{Path: path}
	if err := log.Mark(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(300*time.Millisecond, func() {
		_, _ = file.WriteString(`{"stage":"ResponseComplete","verb":"patch","userAgent":"liqo-csi/1","objectRef":{"resource":"persistentvolumeclaims"}}` + "\n")
	})
	defer timer.Stop()
	got, err := log.CallsWhenIdle(t.Context(), Agent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Calls{Writes: 1}); got[Agent] != want {
		t.Errorf("got %v, want %v", got[Agent], want)
	}
}

func TestProcessesFindsThisProcess(t *testing.T) {
	name := filepath.Base(os.Args[0])
	found, err := processes(func(string) bool { return true }, name)
	if err != nil {
		t.Fatal(err)
	}
	if _, rss := sum(found, name); rss == 0 {
		t.Errorf("no memory of %s among %v", name, found)
	}
}

func TestReceivedBytesExcludeLoopback(t *testing.T) {
	const table = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 7000      10    0    0    0     0          0         0     7000      10    0    0    0     0       0          0
  eth0:1048576    800    0    0    0     0          0         0     2048      12    0    0    0     0       0          0
  net1: 100      3    0    0    0     0          0         0     90      2    0    0    0     0       0          0
`
	if got, err := receivedBytes(table); err != nil || got != 1048676 {
		t.Errorf("received %d bytes (%v), want 1048676", got, err)
	}
	if _, err := receivedBytes("eth0: many\n"); err == nil {
		t.Error("a table without numbers was read")
	}
}
