// Package user does in tests what users of a cluster do: make claims and pods
// in a namespace of their own, look into pods, and read what events tell them;
// and, what users cannot, follow a claim to its twin and the real volume.
// Everything it makes is gone when the test ends, and a test that fails gets
// the state of its namespace into its log.
//
// What happens behind the scenes is package storage's and clusters' business.
package user

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/storage"
)

var lab *clusters.Lab

// Main is for TestMain of packages that need the lab: it attaches to the lab
// that runs, or starts one with storage and takes it down in the end. What the
// tests share is removed by undo, after the last of them.
func Main(m *testing.M, undo ...func(context.Context) error) {
	if os.Getuid() != 0 {
		os.Exit(m.Run()) // tests skip themselves
	}
	code, err := runWithLab(m, undo)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// buildLimit is how long something may take that is compiled or downloaded for tests.
const buildLimit = 10 * time.Minute

// BeforeTests is for TestMain of packages that compile or download something: before Main, so that
// it does not take the time of a test beside which others run. Only tests that need it fail if it fails.
func BeforeTests[T any](what string, build func(context.Context) (T, error)) (built T, err error) {
	if os.Getuid() != 0 {
		return built, errors.New("without the lab nothing is built")
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	began := time.Now()
	fmt.Fprintln(os.Stderr, "before the tests:", what)
	if built, err = build(ctx); err != nil {
		return built, fmt.Errorf("%s, after %s: %w", what, time.Since(began).Round(time.Second), err)
	}
	return built, nil
}

// MainOverDriver is Main for suites that kill no container of the driver, though they may delete its
// pods: that one ends by itself is found false, whatever the tests say.
func MainOverDriver(m *testing.M, undo ...func(context.Context) error) {
	watched = &driverEnds{}
	Main(m, append(undo, func(context.Context) error { return watched.found() })...)
}

func runWithLab(m *testing.M, undo []func(context.Context) error) (code int, err error) {
	ctx := context.Background()
	lab, err = clusters.Running(ctx)
	if err == nil {
		return runAndUndo(m, undo)
	}
	if !errors.Is(err, clusters.ErrNoLab) {
		return 1, err
	}
	defer func() { err = errors.Join(err, clusters.Down(ctx)) }()
	if lab, err = clusters.Up(ctx, clusters.Options{Progress: os.Stderr}); err != nil {
		return 1, err
	}
	if err := storage.InstallAll(ctx, lab, storage.Options{Progress: os.Stderr}); err != nil {
		return 1, err
	}
	return runAndUndo(m, undo)
}

func runAndUndo(m *testing.M, undo []func(context.Context) error) (code int, err error) {
	if watched != nil {
		stop, err := watched.start(lab.Clusters()[0])
		if err != nil {
			return 1, err
		}
		defer stop()
	}
	code = m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for _, one := range undo {
		err = errors.Join(err, one(ctx))
	}
	return code, err
}

// Lab is the lab of this test run.
func Lab(t *testing.T) *clusters.Lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the lab needs root: network namespaces, mounts and containers")
	}
	if lab == nil {
		t.Fatal("TestMain of this package does not call user.Main")
	}
	return lab
}

// Cluster is one of the lab's clusters.
func Cluster(t *testing.T, name string) *clusters.Cluster {
	t.Helper()
	cluster, err := Lab(t).Cluster(name)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}
