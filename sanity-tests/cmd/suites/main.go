// Command suites runs the tests of the repository. At the end it prints what failed, what passed
// only when it was retried, what was not run, how long each suite took and, in the last line, how
// many tests passed, failed and were skipped. `make test` calls it; `make test-all` calls it with
// -all, for the suites that take too long for every change.
//
//	suites.go   the suites
//	plan.go     which lab tests `make test` runs: the core, a slice of the others, affected ones
//	core.go     the core, by name
//	affected.go which tests a changed path affects
//	labtests.go the lab tests, read from their sources
//	costs.go    their durations, in costs.txt
//	run.go      order and time limits of the suites, and the lab they share
//	attempt.go  one command: its environment, its limit, how it is stopped
//	count.go    counts tests in the output of cargo and of checks
//	gotest.go   the same for `go test -json`
//	retry.go    which failed tests are retried
//	flaky.go    the list of tests that failed and then passed
//	summary.go  what is printed at the end
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/sample"
)

// maxTime is the time after which `make test` starts no further suite. `make test-all` takes hours
// and has no such limit: it can be continued with any suite (-from).
const maxTime = 60 * time.Minute

func main() {
	all := flag.Bool("all", false, "run all tests instead of those that fit into CI")
	only := flag.String("only", "", "run only the suites whose name contains this text")
	from := flag.String("from", "", "start with the first suite whose name contains this text")
	list := flag.Bool("list", false, "print which suites and lab tests would run and why, and exit")
	measured := flag.String("costs", "", "update costs.txt from this log of a run, and exit")
	keep := flag.Bool("keep-lab", false, "leave the lab running at the end")
	flag.Parse()
	root, err := repositoryRoot()
	if err != nil {
		fatal(err)
	}
	lab, err := planOf(root)
	if err != nil {
		fatal(err)
	}
	if *measured != "" {
		if err := writeCosts(root, *measured, lab.costs, lab.all); err != nil {
			fatal(err)
		}
		return
	}
	todo, err := startingFrom(*from, selected(*all, *only, lab))
	if err != nil {
		fatal(err)
	}
	if len(todo) == 0 {
		fatal(fmt.Errorf("no suite to run has %q in its name: -list prints the lab tests that make test runs, make test-all runs all", *only))
	}
	if *list {
		for _, s := range todo {
			minutes := ""
			if len(s.tests) > 0 {
				minutes = fmt.Sprintf("%.0f min", lab.costs.minutes(s.tests))
			}
			fmt.Printf("%-28s %6s  %s\n", s.name, minutes, strings.Join(s.command, " "))
		}
		if !*all {
			lab.list(os.Stdout)
		}
		return
	}
	if !*all {
		lab.summary(os.Stdout)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{out: os.Stdout, began: time.Now(), keepLab: *keep, isRoot: os.Geteuid() == 0, commits: sample.Commits()}
	if !*all {
		r.budget = maxTime
	}
	r.prepare(ctx, root)
	r.run(ctx, todo)
	if ctx.Err() != nil {
		r.summary() // first, because CI may not wait until the lab is down
		r.labDown()
	} else {
		r.labDown()
		r.summary()
	}
	if !r.printTotals() {
		os.Exit(1)
	}
}

// fatal exits before a run.
func fatal(err error) {
	fmt.Fprintln(os.Stderr, "suites:", err)
	os.Exit(2)
}

// prepare detects a running lab, and reads the list of flaky tests.
func (r *runner) prepare(ctx context.Context, root string) {
	r.root, r.lab = root, r.labCommand
	_, err := clusters.Running(ctx)
	if err == nil {
		fmt.Fprintln(r.out, "a lab is running on this machine: it is used, and left running")
		// A test that was interrupted may have left objects in it.
		r.labIsUp, r.labIsDirty, r.keepLab = true, true, true
	} else if !errors.Is(err, clusters.ErrNoLab) {
		r.fail("the lab", err)
		r.labError = err.Error()
	}
	r.checkFlaky(filepath.Join(root, "sanity-tests", flakyFile))
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
