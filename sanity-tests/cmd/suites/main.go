// Command suites runs the tests of the repository and says at the end how long
// each suite took and, in one line, how many tests passed, failed and were skipped.
// `make test` calls it; `make test-all` calls it with -all, for the suites that take
// too long for every change.
//
// Suites that need no cluster run first; then one lab is started for all suites
// that need real clusters, and taken down again whatever happened. Without root
// those are skipped, by name. What the suites are is in suites.go; how the
// output of cargo and go is counted is in count.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/sample"
)

func main() {
	all := flag.Bool("all", false, "run everything instead of what fits into CI")
	only := flag.String("only", "", "run only the suites whose name contains this text")
	list := flag.Bool("list", false, "list the suites and exit")
	keep := flag.Bool("keep-lab", false, "leave the lab running at the end")
	flag.Parse()
	todo := selected(*all, *only, sample.Seed())
	if *list {
		for _, s := range todo {
			fmt.Printf("%-24s %s\n", s.name, strings.Join(s.command, " "))
		}
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	total, err := run(ctx, todo, *keep)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		total.failed++
	}
	// Whoever reads the end alone sees them all.
	for _, failure := range total.failures {
		fmt.Println("FAILED", failure)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	if total.failed > 0 || total.passed == 0 {
		os.Exit(1)
	}
}

// run executes the suites in order. The lab is started before the first suite
// that shares it and taken down after the last one.
func run(ctx context.Context, todo []suite, keepLab bool) (total count, err error) {
	began := time.Now()
	root, err := repositoryRoot()
	if err != nil {
		return total, err
	}
	_, err = clusters.Running(ctx)
	if err != nil && !errors.Is(err, clusters.ErrNoLab) {
		return total, err
	}
	labIsUp := err == nil
	if labIsUp {
		fmt.Println("a lab runs on this machine already: it is used, and left running")
		keepLab = true
	}
	defer func() {
		if labIsUp && !keepLab {
			err = errors.Join(err, labDown(root))
		}
	}()
	var took []string
	defer func() { printTimes(took, time.Since(began)) }()
	for _, s := range todo {
		if reason := s.obstacle(); reason != "" {
			fmt.Printf("=== %s: skipped: %s\n", s.name, reason)
			total.skipped++
			continue
		}
		if s.needs == sharedLab && !labIsUp {
			labIsUp = true // also after a failed start there is something to take down
			if err := labUp(ctx, root); err != nil {
				return total, err
			}
		}
		got := s.run(ctx, root)
		for i := range got.failures {
			got.failures[i] = s.name + ": " + got.failures[i]
		}
		fmt.Printf("=== %s: %s\n", s.name, got)
		took = append(took, fmt.Sprintf("%-32s %s", s.name, got))
		total.add(got)
		if ctx.Err() != nil {
			return total, ctx.Err()
		}
	}
	return total, nil
}

// printTimes says what each suite did and how long it took.
func printTimes(suites []string, all time.Duration) {
	fmt.Printf("=== all suites in %s, the lab's start included:\n", all.Round(time.Second))
	for _, suite := range suites {
		fmt.Printf("      %s\n", suite)
	}
}

// run executes one suite within its time and counts what it did.
func (s suite) run(ctx context.Context, root string) count {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	fmt.Printf("=== %s: %s\n", s.name, strings.Join(s.command, " "))
	began := time.Now()
	counter := s.counter()
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Dir = filepath.Join(root, s.dir)
	cmd.Stdout, cmd.Stderr = counter, os.Stdout
	// The whole family goes when time is up, not only its head.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if err == nil && s.name == driverBuild {
		err = useDriverBuild(root)
	}

	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("stopped after %s, the time it may take", s.limit)
	}
	if err != nil {
		fmt.Printf("=== %s: %v\n", s.name, err)
	}
	got := counter.count(err)
	got.took = time.Since(began).Round(time.Second)
	return got
}

func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "Cargo.toml")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("not inside the repository: no Cargo.toml in this folder or above")
}
