package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec is how a process of the lab is started. It is recorded, so that other lab commands can restart
// the process.
type Spec struct {
	// Name is "<cluster>/<component>", also of the log file and the record.
	Name      string
	Namespace Namespace
	Command   []string
	Env       []string `json:",omitempty"`
}

// Process is a started process. The start time identifies it, because pids are reused.
type Process struct {
	Spec
	PID       int
	StartTime uint64
}

// ComponentCgroup is the cgroup of the components, below CgroupName.
const ComponentCgroup = "components"

func recordFile(name string) string { return Path("processes", name+".json") }

// LogFile returns the file with the output of a process.
func LogFile(name string) string { return Path("logs", name+".log") }

// Start starts a process in the lab's cgroup, and records it. The process outlives this one.
func Start(spec Spec) (*Process, error) {
	for _, file := range []string{recordFile(spec.Name), LogFile(spec.Name)} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
	}
	log, err := os.OpenFile(LogFile(spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()
	if _, err := EnsureCgroup(ComponentCgroup); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	// The process must not inherit files that this process has inherited, such as a lock. Go opens its
	// own with O_CLOEXEC.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	// The shell joins the cgroups and then execs the process, which keeps pid and start time.
	words := []string{"sh", "-ec", cgroupJoin(ComponentCgroup) + `exec "$@"`, "lab"}
	words = append(words, spec.Namespace.enter()...)
	words = append(words, spec.Command...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	start, err := startTime(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // reap it
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	process := &Process{Spec: spec, PID: cmd.Process.Pid, StartTime: start}
	if err := process.record(); err != nil {
		process.Kill()
		return nil, err
	}
	return process, nil
}

func (p *Process) record() error {
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := WriteFile(recordFile(p.Name), content, 0o644); err != nil {
		return fmt.Errorf("record %s: %w", p.Name, err)
	}
	return nil
}

// Find returns the recorded process of that name, which may have ended.
func Find(name string) (*Process, error) {
	content, err := os.ReadFile(recordFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no process %q in the lab: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", name, err)
	}
	var process Process
	if err := json.Unmarshal(content, &process); err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return &process, nil
}

// Processes returns all recorded processes.
func Processes() ([]*Process, error) {
	var all []*Process
	err := filepath.WalkDir(Path("processes"), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		name, _ := filepath.Rel(Path("processes"), strings.TrimSuffix(path, ".json"))
		process, err := Find(name)
		if err == nil {
			all = append(all, process)
		}
		return err
	})
	return all, err
}

// Alive reports whether the process is running.
func (p *Process) Alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.StartTime
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() error {
	if !p.Alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return Until(ctx, p.Name+" to end", func() error {
		if p.Alive() {
			return fmt.Errorf("pid %d still runs", p.PID)
		}
		return nil
	})
}

// startTime returns when the process was forked, in clock ticks since boot, and an error if it has
// ended. A process whose first thread is a zombie has not ended while it has other threads, which keep
// its ports open.
func startTime(pid int) (uint64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses, which may contain any characters.
	_, rest, found := strings.Cut(string(content), ") ")
	for found && strings.Contains(rest, ") ") {
		_, rest, found = strings.Cut(rest, ") ")
	}
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("pid %d: unreadable status", pid)
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if state := fields[0]; (state == "Z" || state == "X") && len(threads) <= 1 {
		return 0, fmt.Errorf("pid %d has ended", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// LastLines returns the end of a process's log, for error messages.
func LastLines(name string, count int) string {
	content, err := os.ReadFile(LogFile(name))
	if err != nil {
		return "(no log)"
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// untilLimit is the timeout if ctx has none, for example because it is detached from that of a test.
const untilLimit = 10 * time.Minute

// Until waits until condition returns nil. If ctx is done first, the error has what was waited for,
// and the last error of condition.
func Until(ctx context.Context, what string, condition func() error) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, untilLimit)
		defer cancel()
	}
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// UntilAnswers is Until for the health of a process. It returns early if the process has ended, and its
// error has the last lines of the log.
func (p *Process) UntilAnswers(ctx context.Context, condition func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := Until(ctx, p.Name+" to answer", func() error {
		err := condition()
		if err != nil && !p.Alive() {
			cancel(errors.New("the process has ended"))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\nlast lines of %s:\n%s", err, LogFile(p.Name), LastLines(p.Name, 15))
	}
	return nil
}
