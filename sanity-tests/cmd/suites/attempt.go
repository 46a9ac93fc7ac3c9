package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errTimeIsUp is how a command ends that was stopped at its limit.
var errTimeIsUp = errors.New("the time it may take is over")

// timeToEnd is how long a command that is stopped has to end by itself: Go programs
// print their goroutines, which takes moments, and cargo and go pass on what they got.
const timeToEnd = 30 * time.Second

// attempt runs a command of a suite and reads what it says of its tests.
func (r *runner) attempt(ctx context.Context, s suite, command []string, limit time.Duration) result {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeIsUp)
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
	case errors.Is(context.Cause(ctx), errTimeIsUp):
		err = fmt.Errorf("stopped after %s: %w", limit, errTimeIsUp)
	default:
		err = errors.New("stopped by a signal")
	}
	if err != nil {
		fmt.Fprintf(r.out, "=== %s: %v\n", s.name, err)
	}
	return counter.result(err)
}

// group is a command that ends with all processes it has started. When its time is up
// it gets SIGQUIT, on which Go programs print what their goroutines wait for.
func group(ctx context.Context, command []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), errTimeIsUp) {
			return syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT)
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = timeToEnd
	return cmd
}

// runGroup runs a command of group. Processes that outlive one that was stopped are killed.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // there may be none left
	}
	return err
}

// environment has all go commands build with the flags of the lab's programs, so that
// what several need is compiled once. No module of the tests needs C.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+goFlags())
}

// goFlags are those of this user and -trimpath.
var goFlags = sync.OnceValue(func() string {
	const trim = "-trimpath"
	configured, err := exec.Command("go", "env", "GOFLAGS").Output()
	flags := strings.Fields(string(configured))
	for _, flag := range flags {
		if flag == trim {
			return strings.Join(flags, " ")
		}
	}
	if err != nil {
		return trim // what is wrong with go shows soon
	}
	return strings.Join(append(flags, trim), " ")
})
