package lab_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"storage.liqo.io/sanity-tests/machine"
)

// When a component exits, the error has the reason at once and not after the timeout.
func TestFailedComponentReportsTheReason(t *testing.T) {
	requireNoLab(t)
	t.Cleanup(func() { down(t) })
	process, err := machine.Start(machine.Spec{
		Name: "test/broken", Command: []string{"sh", "-c", "echo the disk is on fire; exit 3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = process.UntilAnswers(within(t, 5*time.Minute), func() error { return errors.New("nobody answers") })
	for _, want := range []string{"test/broken", "the process has ended", "the disk is on fire"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not contain %q", err, want)
		}
	}
	if time.Since(start) > time.Minute {
		t.Errorf("the error was returned only after %s", time.Since(start))
	}
}

// The lab's processes outlive the process that starts them, so they must not inherit its open
// files: one may be a lock.
func TestProcessesInheritNoOpenFiles(t *testing.T) {
	requireNoLab(t)
	t.Cleanup(func() { down(t) })
	name := filepath.Join(t.TempDir(), "held")
	file, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR, 0o600) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if _, err := machine.Start(machine.Spec{Name: "test/files", Command: []string{"sh", "-c", "readlink /proc/self/fd/*; echo done"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log string
	err = machine.Until(ctx, "the list of files", func() error {
		if log = machine.LastLines("test/files", 100); !strings.HasSuffix(log, "done") {
			return errors.New("it is not complete: " + log)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log, name) {
		t.Errorf("the process holds the test's file:\n%s", log)
	}
	if _, err := os.Stat(machine.LogFile("test/files")); err != nil {
		t.Error(err)
	}
}
