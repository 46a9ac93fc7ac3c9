// Command suites runs the tests of the repository and says at the end what failed,
// what passed only when it was run again, what was not run, how long each suite took
// and, in the last line, how many tests passed, failed and were skipped.
// `make test` calls it; `make test-all` calls it with -all, for the suites that take
// too long for every change.
//
//	suites.go  what the suites are
//	run.go     in which order they run, until when, and the lab they share
//	attempt.go one command: its environment, its limit, how it is stopped
//	count.go   what the output of cargo and of checks says of the tests
//	gotest.go  the same for `go test -json`
//	retry.go   which failed tests are run once more, and which never are
//	flaky.go   the list of tests that failed and then passed
//	closing.go what is printed at the end
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

// mostTime is after how long `make test` begins nothing new. `make test-all` takes
// hours and has no such limit: it can go on with any suite (-from).
const mostTime = time.Hour

func main() {
	all := flag.Bool("all", false, "run everything instead of what fits into CI")
	only := flag.String("only", "", "run only the suites whose name contains this text")
	from := flag.String("from", "", "start with the first suite whose name contains this text")
	list := flag.Bool("list", false, "list the suites and exit")
	keep := flag.Bool("keep-lab", false, "leave the lab running at the end")
	flag.Parse()
	todo, err := startingFrom(*from, selected(*all, *only, sample.Seed()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(2)
	}
	if *list {
		for _, s := range todo {
			fmt.Printf("%-32s %s\n", s.name, strings.Join(s.command, " "))
		}
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{out: os.Stdout, began: time.Now(), keepLab: *keep, isRoot: os.Geteuid() == 0, commits: sample.Commits()}
	if !*all {
		r.budget = mostTime
	}
	r.prepare(ctx)
	r.run(ctx, todo)
	if ctx.Err() != nil {
		r.closing() // who ended this run may not wait until the lab is down
		r.labDown()
	} else {
		r.labDown()
		r.closing()
	}
	if !r.sum() {
		os.Exit(1)
	}
}

// prepare finds the repository and a lab that runs already.
func (r *runner) prepare(ctx context.Context) {
	root, err := repositoryRoot()
	if err != nil {
		r.trouble("the run", err)
		return
	}
	r.root, r.lab = root, r.labCommand
	_, err = clusters.Running(ctx)
	if err == nil {
		fmt.Fprintln(r.out, "a lab runs on this machine already: it is used, and left running")
		r.labIsUp, r.keepLab = true, true
	} else if !errors.Is(err, clusters.ErrNoLab) {
		r.trouble("the lab", err)
		r.labTrouble = err.Error()
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
