package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errTimeout is the cause of a command that was stopped at its limit.
var errTimeout = errors.New("time limit exceeded")

// timeToEnd is the grace period of a stopped command, in which Go programs print their goroutines.
const timeToEnd = 30 * time.Second

// attempt runs a command of a suite and counts its tests.
func (r *runner) attempt(ctx context.Context, s suite, command []string, limit time.Duration) result {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	fmt.Fprintf(r.out, "=== %s: %s\n", s.name, strings.Join(command, " "))
	counter := s.counter(r.out)
	cmd := group(ctx, command)
	cmd.Dir = filepath.Join(r.root, s.dir)
	cmd.Stdout, cmd.Stderr = counter, r.out
	if counter.readsErrors() {
		cmd.Stderr = counter
	}
	cmd.Env = append(environment(), s.env...)
	err := runGroup(ctx, cmd)
	if err == nil && s.name == driverBuild {
		err = useDriverBuild(r.root)
	}
	switch {
	case ctx.Err() == nil:
	case errors.Is(context.Cause(ctx), errTimeout):
		err = fmt.Errorf("stopped after %s: %w", limit, errTimeout)
	default:
		err = errors.New("stopped by a signal")
	}
	if err != nil {
		fmt.Fprintf(r.out, "=== %s: %v\n", s.name, err)
	}
	return counter.result(err)
}

// group returns a command with a process group of its own. At its limit the group gets SIGQUIT, on
// which Go programs print the stacks of their goroutines.
func group(ctx context.Context, command []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), errTimeout) {
			return syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT)
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = timeToEnd
	return cmd
}

// runGroup runs a command from group, and kills processes that outlive a stopped command.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // none may be left
	}
	return err
}

// environment makes all go commands build with the same flags as the lab's programs, so that shared
// packages are compiled once.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+goFlags())
}

// goFlags are the user's GOFLAGS and -trimpath.
var goFlags = sync.OnceValue(func() string {
	configured, _ := exec.Command("go", "env", "GOFLAGS").Output() // a broken go shows later
	flags := strings.Fields(string(configured))
	if !slices.Contains(flags, "-trimpath") {
		flags = append(flags, "-trimpath")
	}
	return strings.Join(flags, " ")
})
