package machine

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMountsBelowListsDeepestFirst(t *testing.T) {
	table := parseMountInfo([]byte(`21 1 8:1 / / rw - ext4 /dev/a rw
22 21 8:1 /lab /var/lib/lab rw shared:1 - ext4 /dev/a rw
23 22 0:5 / /var/lib/lab/a\040b/c rw - tmpfs x rw
24 22 0:6 / /var/lib/lab/d rw - tmpfs x rw
25 21 0:7 / /var/lib/laboratory rw - tmpfs x rw
`))
	got := table.Below("/var/lib/lab")
	want := MountTable{"/var/lib/lab/a b/c", "/var/lib/lab/d", "/var/lib/lab"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHostPathTranslatesOnlyPrivateFolders(t *testing.T) {
	node := Namespace{Name: "home-1", Dirs: "/state/n/home-1"}
	for inside, want := range map[string]string{
		"/var/lib/kubelet/pods": "/state/n/home-1/var-lib/kubelet/pods",
		"/run":                  "/state/n/home-1/run",
		"/running":              "/running",
		"/etc/hosts":            "/etc/hosts",
	} {
		if got := node.HostPath(inside); got != want {
			t.Errorf("%s is at %s, want %s", inside, got, want)
		}
	}
	if got := (Namespace{}).HostPath("/run"); got != "/run" {
		t.Errorf("the host's own /run is at %s", got)
	}
}

func TestStartTimeDistinguishesProcesses(t *testing.T) {
	own, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	first, err := startTime(1)
	if err != nil {
		t.Fatal(err)
	}
	if own <= first {
		t.Errorf("this process started at %d, the first at %d", own, first)
	}
	if (&Process{PID: os.Getpid(), StartTime: own + 1}).Alive() {
		t.Error("a process with another start time is reported as alive")
	}
	if !(&Process{PID: os.Getpid(), StartTime: own}).Alive() {
		t.Error("this process is reported as dead")
	}
}

func TestUntilReportsWhatItWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := Until(ctx, "the sun", func() error { return errors.New("it is night") })
	if err == nil || !strings.Contains(err.Error(), "the sun") || !strings.Contains(err.Error(), "it is night") {
		t.Errorf("got %v", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not DeadlineExceeded", err)
	}
}

func TestUntilReturnsWithoutDelay(t *testing.T) {
	calls := 0
	err := Until(t.Context(), "a second call", func() error {
		if calls++; calls < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls: %v", calls, err)
	}
}
