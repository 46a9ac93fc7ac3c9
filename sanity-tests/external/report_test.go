package external

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// written is a report of ginkgo with the used fields only.
const written = `[{"SuiteSucceeded": false, "SpecReports": [
 {"ContainerHierarchyTexts": [], "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"},
 {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeType": "It", "LeafNodeText": "runs", "State": "skipped"},
 {"ContainerHierarchyTexts": ["External Storage [Driver: storage.liqo.io]", "[Testpattern: Dynamic PV (default fs)] subPath"],
  "LeafNodeType": "It", "LeafNodeText": "should support file/dir as subpath [Slow] [LinuxOnly]", "State": "passed", "RunTime": 12000000000},
 {"ContainerHierarchyTexts": ["External Storage [Driver: storage.liqo.io]", "[Testpattern: Dynamic PV (immediate binding)] topology"],
  "LeafNodeType": "It", "LeafNodeText": "should fail to schedule", "State": "failed",
  "Failure": {"Message": "the pod runs"}, "CapturedGinkgoWriterOutput": "first\nlast\nLogging node info for node home-1\nlabels\n"},
 {"ContainerHierarchyTexts": ["External Storage [Driver: storage.liqo.io]"], "LeafNodeType": "It", "LeafNodeText": "a", "State": "skipped",
  "Failure": {"Message": "Driver \"storage.liqo.io\" does not support snapshots - skipping"}},
 {"ContainerHierarchyTexts": ["External Storage [Driver: storage.liqo.io]"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "skipped",
  "Failure": {"Message": "Driver \"storage.liqo.io\" does not support snapshots - skipping"}},
 {"ContainerHierarchyTexts": [], "LeafNodeType": "SynchronizedAfterSuite", "LeafNodeText": "", "State": "timedout", "Failure": {"Message": "too slow"}}
]}]`

func read(t *testing.T, content string) (Report, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return readReport(file)
}

func TestSpecsThatRanAreReported(t *testing.T) {
	report, err := read(t, written)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Specs) != 3 || report.Failed() != 2 {
		t.Fatalf("%d specs, %d failed: %+v", len(report.Specs), report.Failed(), report.Specs)
	}
	want := Spec{Name: "Dynamic PV (default fs) subPath should support file-dir as subpath", Passed: true, Took: 12 * time.Second}
	if report.Specs[0] != want {
		t.Errorf("got %+v, want %+v", report.Specs[0], want)
	}
	failed := report.Specs[1]
	if failed.Passed || !strings.Contains(failed.Trouble, "the pod runs") || !strings.Contains(failed.Trouble, "last") ||
		strings.Contains(failed.Trouble, "labels") {
		t.Errorf("a failed spec: %+v", failed)
	}
	if step := report.Specs[2]; step.Passed || step.Name != "SynchronizedAfterSuite" || !strings.Contains(step.Trouble, "timedout") {
		t.Errorf("a failed step after all specs: %+v", step)
	}
}

func TestSkippedSpecsAreCountedByReason(t *testing.T) {
	report, err := read(t, written)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(report.Reasons()); report.Skipped() != 2 || got != "2 × does not support snapshots" {
		t.Errorf("%d skipped: %q", report.Skipped(), got)
	}
}

func TestMissingReportIsAnError(t *testing.T) {
	if _, err := readReport(filepath.Join(t.TempDir(), "report.json")); err == nil {
		t.Error("a missing report was read")
	}
	if _, err := read(t, `[{"SpecReports": [`); err == nil {
		t.Error("an incomplete report was read")
	}
}

func TestEveryTestDriverFileIsForOurDriver(t *testing.T) {
	names := Drivers()
	if !slices.Contains(names, "reference") {
		t.Fatalf("test-driver files: %v", names)
	}
	for _, name := range names {
		content, err := drivers.ReadFile("drivers/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		// e2e.test ignores unknown fields silently, so a file could be without effect.
		for _, want := range []string{"Name: storage.liqo.io\n", "FromExistingClassName: liqo", "Capabilities:\n"} {
			if !strings.Contains(string(content), want) {
				t.Errorf("%s.yaml lacks %q", name, want)
			}
		}
	}
}
