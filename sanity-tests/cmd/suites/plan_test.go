package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// repositoryTests returns the tests of this repository and their costs.
func repositoryTests(t *testing.T) ([]labTest, costs) {
	t.Helper()
	all, err := labTests("../../..")
	if err != nil {
		t.Fatal(err)
	}
	known, err := parseCosts(costsFile)
	if err != nil {
		t.Fatal(err)
	}
	return all, known
}

// files returns the files of the repository that may be sources.
func files(t *testing.T) (paths []string) {
	t.Helper()
	const root = "../../.."
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && relative != "." && (strings.HasPrefix(entry.Name(), ".") || relative == "target"):
			return filepath.SkipDir
		case !entry.IsDir():
			paths = append(paths, relative)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func mustPlan(t *testing.T, all []labTest, core []coreTest, known costs, changed []string, seed int64) plan {
	t.Helper()
	p, err := newPlan(all, core, known, changed, seed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCoreFitsItsBudget(t *testing.T) {
	all, known := repositoryTests(t)
	planned := mustPlan(t, all, core, known, nil, 1).core
	if minutes := known.minutes(planned); minutes > coreBudget {
		t.Errorf("the core takes %.1f minutes, and may take %.0f", minutes, coreBudget)
	}
}

// Without changes, as many successive commits as there are slices run every test once.
func TestEveryTestIsInASlice(t *testing.T) {
	all, known := repositoryTests(t)
	turns := map[string]int{}
	for seed := range int64(slicesOfAll) {
		p := mustPlan(t, all, core, known, nil, 1000+seed)
		if again := mustPlan(t, all, core, known, nil, 1000+seed); !reflect.DeepEqual(p, again) {
			t.Errorf("seed %d has two plans", 1000+seed)
		}
		for _, one := range p.slice {
			turns[one.String()]++
		}
	}
	for _, one := range all {
		inCore := slices.ContainsFunc(core, func(c coreTest) bool { return c.suite+" "+c.test == one.String() && !c.inSlices })
		want := 1
		if one.isLong || inCore {
			want = 0
		}
		if got := turns[one.String()]; got != want {
			t.Errorf("%s runs %d times in %d commits, not %d", one, got, slicesOfAll, want)
		}
	}
}

// No slice takes longer than the longest test alone, or than the slices would if all took the same time.
func TestSlicesAreBalanced(t *testing.T) {
	all, known := repositoryTests(t)
	inCore := mustPlan(t, all, core, known, nil, 0).core
	alone, sum, most := 0., 0., 0.
	for seed := range int64(slicesOfAll) {
		slice := mustPlan(t, all, core, known, nil, seed).slice
		takes := known.minutes(slices.Concat(inCore, slice)) - known.minutes(inCore)
		sum, most = sum+takes, max(most, takes)
		for _, one := range slice {
			alone = max(alone, known.load(inCore).added(one))
		}
	}
	mean := sum / slicesOfAll
	t.Logf("the slices take %.1f minutes on average, and up to %.1f; the longest test takes %.1f", mean, most, alone)
	if most > max(alone, mean)+.5 || most > othersBudget {
		t.Errorf("a slice takes %.1f minutes; all take %.1f on average, and the longest test %.1f", most, mean, alone)
	}
}

// A change of everything affects everything: tests beyond the budget are listed.
func TestAffectedTestsHaveABudget(t *testing.T) {
	all, known := repositoryTests(t)
	var p plan
	changed := files(t)
	for seed := int64(0); seed < slicesOfAll; seed += 5 {
		p = mustPlan(t, all, core, known, changed, seed)
		if takes := known.minutes(p.tests()) - known.minutes(p.core); takes > othersBudget+1 || takes < othersBudget-1 {
			t.Errorf("with seed %d, slice and affected tests take %.1f minutes", seed, takes)
		}
	}
	listed := nameSet(slices.Concat(p.core, p.affected, p.slice, p.leftOut))
	for _, one := range all {
		if !listed[one.String()] {
			t.Errorf("%s is neither run nor left out", one)
		}
	}
	for _, one := range p.leftOut {
		if nameSet(p.slice)[one.String()] {
			t.Errorf("%s is both run and left out", one)
		}
	}
}

func TestPlanOfAChange(t *testing.T) {
	all := []labTest{
		{suite: "driver", function: "TestImport", files: []string{"sanity-tests/e2e/driver/import_test.go"}, atOnce: 16},
		{suite: "driver", function: "TestRelease", files: []string{"sanity-tests/e2e/driver/release_test.go"}, atOnce: 16},
		{suite: "faults", function: "TestKills", files: []string{"sanity-tests/e2e/faults/kills_test.go"}, atOnce: 1},
		{suite: "liqo", function: "TestVolumeWithPeeringOfLiqo", files: []string{"sanity-tests/e2e/liqo/a_test.go"}, atOnce: 1, isLong: true},
	}
	core := []coreTest{{suite: "driver", test: "TestImport"}, {suite: "faults", test: "TestKills", args: "-cycles=6"}}
	known := costs{"faults TestKills": {400, 400}}
	for _, test := range []struct {
		changed           []string
		affected, leftOut string
	}{
		{nil, "", ""},
		{[]string{"docs/import.md", "sanity-tests/chart/chart.go"}, "", ""},
		// It is in the core.
		{[]string{"src/cli/import.rs"}, "", ""},
		{[]string{"crates/transfer/src/release/mod.rs"}, "driver TestRelease", ""},
		// The core runs it with fewer iterations.
		{[]string{"sanity-tests/e2e/faults/kills_test.go"}, "faults TestKills", ""},
		// A file without tests affects the whole suite.
		{[]string{"sanity-tests/e2e/driver/main_test.go"}, "driver TestRelease", ""},
		{[]string{"sanity-tests/liqo/liqo.go"}, "", "liqo TestVolumeWithPeeringOfLiqo"},
	} {
		p := mustPlan(t, all, core, known, test.changed, 1)
		if got := listed(p.affected); got != test.affected {
			t.Errorf("%v affects %q, not %q", test.changed, got, test.affected)
		}
		if got := listed(p.leftOut); got != test.leftOut {
			t.Errorf("%v leaves out %q, not %q", test.changed, got, test.leftOut)
		}
	}
	known["faults TestKills"] = cost{60*othersBudget + 1, 60*othersBudget + 1}
	if p := mustPlan(t, all, core, known, []string{"crates/node/src/forgotten.rs", "sanity-tests/e2e/faults/kills_test.go"}, 1); listed(p.leftOut) != "faults TestKills" {
		t.Errorf("beyond the budget: %q", listed(p.leftOut))
	}
	if _, err := newPlan(all, []coreTest{{suite: "driver", test: "TestNoSuch"}}, known, nil, 1); err == nil {
		t.Error("a test that does not exist is accepted in the core")
	}
}

func listed(tests []plannedTest) string {
	var names []string
	for _, t := range tests {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// Tests of a path that affects few tests come before those of whole suites.
func TestMostSpecificAffectedTestsComeFirst(t *testing.T) {
	all, _ := repositoryTests(t)
	tests := affected([]string{"crates/twin/src/plan.rs", "src/cli/doctor.rs"}, all)
	if first := tests[0].String(); first != "driver TestDoctorAcceptsTheChartAndReportsAnInvalidClass" {
		t.Errorf("the first test is %s", first)
	}
	if reason := tests[0].reason(); reason != "crates/twin/src/plan.rs and 1 more" {
		t.Errorf("reason: %s", reason)
	}
}

func TestCommandsOfAPart(t *testing.T) {
	planned := func(suite, function, leg, args string) plannedTest {
		return plannedTest{labTest: labTest{suite: suite, function: function, leg: leg}, args: args}
	}
	legs := withLegs("", goTest("faults", "x", sharedLab, time.Minute, "-parallel=6", "./e2e/faults"))
	setups := withLegs("-setup", goTest("csi-sanity", "x", sharedLab, time.Minute, "./sanity"))
	some := legs.part([]plannedTest{planned("faults", "TestA", "a_leg_(x)", ""), planned("faults", "TestB", "", "-cycles=6"), planned("faults", "TestA", "b", "")})
	two := setups.part([]plannedTest{planned("csi-sanity", "TestDriver", "ext4", ""), planned("csi-sanity", "TestDriver", "block", "")})
	const go1 = "go test -json -count=1 -timeout 1m0s "
	for got, want := range map[string]string{
		strings.Join(some.command, " "): go1 + `-run=^(TestB)$|^(TestA)$/^(a_leg_\(x\)|b)$ -parallel=6 ./e2e/faults -args -cycles=6`,
		// Only legs that were run the first time.
		strings.Join(some.again("m/p TestA"), " "):               go1 + `-run=^(TestB)$|^(TestA)$/^(a_leg_\(x\)|b)$ -parallel=6 -run ^(TestA)$/^(a_leg_\(x\)|b)$ m/p -args -cycles=6`,
		strings.Join(some.again("m/p TestA/b"), " "):             go1 + `-run=^(TestB)$|^(TestA)$/^(a_leg_\(x\)|b)$ -parallel=6 -run ^TestA$/^b$ m/p -args -cycles=6`,
		strings.Join(two.command, " "):                           go1 + `-run=^(TestDriver)$ ./sanity -args -setup=ext4,block`,
		strings.Join(two.again("m/p TestDriver/ext4"), " "):      go1 + `-run=^(TestDriver)$ -run ^TestDriver$/^ext4$ m/p -args -setup=ext4,block -setup=ext4`,
		fmt.Sprint(some.hasLegs, some.limit, two.selects, "end"): fmt.Sprint(true, legs.limit, "-setup", "end"),
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
