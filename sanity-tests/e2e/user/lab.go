// Package user does in tests what users do: it creates claims and pods in a namespace, runs commands in
// pods, and reads events. It also finds the twin and the real volume of a claim. It deletes everything
// at the end of a test, and logs the state of the namespace if the test has failed.
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

// Main is for TestMain of packages that need the lab: it uses the running lab, or starts one with
// storage and takes it down at the end. undo runs after the last test, for what tests share.
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

// buildLimit is the timeout of BeforeTests.
const buildLimit = 10 * time.Minute

// BeforeTests builds or downloads something in TestMain, before Main, so that it does not count as time
// of a test. If it fails, only the tests that need it fail.
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

// MainWithDriver is Main for suites that do not kill containers of the driver, though they may delete
// its pods. The suite fails if a container exits by itself.
func MainWithDriver(m *testing.M, undo ...func(context.Context) error) {
	watched = &driverTerminations{}
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
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	for _, step := range undo {
		err = errors.Join(err, step(ctx))
	}
	return code, err
}

// Lab returns the lab of this test run.
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

// Cluster returns a cluster of the lab.
func Cluster(t *testing.T, name string) *clusters.Cluster {
	t.Helper()
	cluster, err := Lab(t).Cluster(name)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}
