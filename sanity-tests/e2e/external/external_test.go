// Package external runs Kubernetes' own tests of out-of-tree CSI drivers for class liqo, on real
// clusters.
//
// The package external of this module builds and runs them.
package external

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/external"
)

var procs = flag.Int("procs", 4*runtime.NumCPU(), "specs that run side by side; most of the time they wait")

func TestMain(m *testing.M) { user.Main(m) }

// cases are the test-driver files, with the minimum number of specs: a suite that runs nothing must
// not pass.
var cases = []struct {
	driver, focus string
	atLeast       int
}{
	{"reference", "", 72},
	{"reference-nodes", `(topology|capacity)`, 5},
	{"attach", "", 59},
	{"local", "", 52},
}

func TestExternalStorage(t *testing.T) {
	home := user.Cluster(t, "home")
	if err := driver.Install(t.Context(), home, driver.Options{Progress: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	suite, err := external.Prepare(t.Context(), user.Lab(t), home, t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	user.CheckLeaks(t, home, suite.Sweep)
	for _, c := range cases {
		t.Run(c.driver, func(t *testing.T) {
			report, err := suite.Run(t.Context(), c.driver, external.Options{Focus: c.focus, Procs: *procs, Until: deadline(t)})
			if err != nil {
				t.Fatal(err)
			}
			show(t, report, c.atLeast)
		})
	}
}

// show runs a subtest for each spec, and one for their number.
func show(t *testing.T, report external.Report, atLeast int) {
	t.Helper()
	for _, spec := range report.Specs {
		t.Run(spec.Name, func(t *testing.T) {
			t.Logf("took %s", spec.Took.Round(100*time.Millisecond))
			if !spec.Passed {
				t.Error(spec.Trouble)
			}
		})
	}
	ran, failed := len(report.Specs), report.Failed()
	counts := fmt.Sprintf("%d specs passed and %d failed of at least %d, %d need what is not declared", ran-failed, failed, atLeast, report.Skipped())
	t.Run(counts, func(t *testing.T) {
		t.Logf("skipped themselves:\n%s", report.Reasons())
		if ran < atLeast {
			t.Errorf("only %d specs ran, at least %d apply to this class", ran, atLeast)
		}
	})
}

// deadline leaves interrupted specs the time to clean up.
func deadline(t *testing.T) time.Time {
	if end, limited := t.Deadline(); limited {
		return end.Add(-5 * time.Minute)
	}
	return time.Now().Add(time.Hour)
}
