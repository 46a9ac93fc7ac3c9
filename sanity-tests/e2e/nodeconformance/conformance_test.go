// Package nodeconformance runs Kubernetes' node conformance specs ([NodeConformance]) twice: in the
// remote cluster itself, and in the home cluster with every pod on the virtual node. What passes in
// the remote cluster passes at home, except for the differences in differences_test.go.
//
// Package external builds and runs the specs.
package nodeconformance

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/external"
)

const (
	// name is the id of the remote cluster, and the name of all objects that are created for it.
	name = "conformance"
	node = "virtual-conformance"
	// atLeast is the minimum number of specs that must pass in both clusters: a suite that runs
	// nothing must not pass.
	atLeast = 100
)

var (
	procs = flag.Int("procs", 4*runtime.NumCPU(), "specs that run side by side in each cluster")
	focus = flag.String("focus", "", "a regular expression for the specs to run; differences and counts are not checked then")
)

func TestMain(m *testing.M) { user.Main(m) }

func TestNodeConformance(t *testing.T) {
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	makeNode(t, home, remote)
	suite, err := external.Prepare(t.Context(), user.Lab(t), remote, t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	through := suite.Through(home)
	user.CheckLeaks(t, remote, suite.Sweep)
	user.CheckLeaks(t, home, through.Sweep)

	offloader := offloadAll(t, home)
	direct, offloaded := runBoth(t, suite, through)
	offloader.checkPlacement(t)

	differences, missing := external.Compare(direct, offloaded, expected)
	counts := fmt.Sprintf("%s in the remote cluster, %s through the virtual node, %d differences", count(direct), count(offloaded), len(differences))
	t.Run(counts, func(t *testing.T) {
		if passed := len(direct.Specs) - direct.Failed() - len(differences); passed < atLeast && *focus == "" {
			t.Errorf("only %d specs passed in both clusters, fewer than %d", passed, atLeast)
		}
	})
	for _, difference := range differences {
		t.Run(difference.Name, func(t *testing.T) {
			if difference.Reason == "" {
				t.Errorf("it passes in the remote cluster, and not through the virtual node: %s", difference.Trouble)
				return
			}
			t.Logf("expected: %s\n%s", difference.Reason, difference.Trouble)
		})
	}
	if *focus != "" {
		return
	}
	for name, why := range missing {
		t.Run(name, func(t *testing.T) { t.Errorf("it is listed as a difference, and is none: %s", why) })
	}
}

// makeNode creates a virtual node for the remote cluster, and deletes it at the end of the test.
func makeNode(t *testing.T, home, remote *clusters.Cluster) {
	t.Helper()
	if err := driver.DefineOffloading(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { report(t, driver.UndefineOffloading(user.CleanupContext(t), home)) })
	options := driver.Options{Progress: os.Stderr, Values: chart.Values{"fabric": driver.Fabric()}}
	if err := driver.Install(t.Context(), home, options); err != nil {
		t.Fatal(err)
	}
	access, kubeconfig, err := driver.GrantAccess(t.Context(), home, remote, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { report(t, access.Revoke(user.CleanupContext(t))) })
	t.Cleanup(func() { report(t, driver.Undeclare(user.CleanupContext(t), home, name)) })
	if err := driver.Declare(t.Context(), home, name, kubeconfig, map[string]any{"nodeName": node, "network": driver.Routed(remote)}); err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// runBoth runs the specs in both clusters in parallel, because they mostly wait.
func runBoth(t *testing.T, suite, through *external.Suite) (direct, offloaded external.Report) {
	t.Helper()
	options := external.Options{Focus: *focus, Skip: skipped, Procs: *procs, Until: deadline(t)}
	runs, ctx := errgroup.WithContext(t.Context())
	runs.Go(func() (err error) {
		direct, err = suite.RunNodeConformance(ctx, "direct", options)
		return err
	})
	runs.Go(func() (err error) {
		offloaded, err = through.RunNodeConformance(ctx, "through", options)
		return err
	})
	if err := runs.Wait(); err != nil {
		t.Fatal(err)
	}
	show(t, "in the remote cluster", direct)
	show(t, "through the virtual node", offloaded)
	return direct, offloaded
}

// show reports what failed. Steps before and after all specs must not fail.
func show(t *testing.T, where string, ran external.Report) {
	t.Helper()
	t.Logf("%s: %s; skipped themselves:\n%s", where, count(ran), ran.Reasons())
	for _, spec := range ran.Specs {
		switch {
		case spec.IsStep:
			t.Errorf("%s: %s: %s", where, spec.Name, spec.Trouble)
		case !spec.Passed:
			t.Logf("%s: failed: %s: %s", where, spec.Name, spec.Trouble)
		}
	}
}

func count(ran external.Report) string {
	failed := ran.Failed()
	return fmt.Sprintf("%d passed and %d failed", len(ran.Specs)-failed, failed)
}

// deadline leaves interrupted specs the time to clean up.
func deadline(t *testing.T) time.Time {
	if end, limited := t.Deadline(); limited {
		return end.Add(-5 * time.Minute)
	}
	return time.Now().Add(time.Hour)
}
