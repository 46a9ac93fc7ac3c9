package main

import (
	"testing"
)

func TestCostsAreReadFromALog(t *testing.T) {
	coreBefore := core
	t.Cleanup(func() { core = coreBefore })
	core = []coreTest{{suite: "faults", test: "TestLegs/a", args: "-short-leg=a"}, {suite: "faults", test: "TestVolumesSurviveRandomKills", args: "-cycles=6"}}
	all := []labTest{
		{suite: "driver", function: "TestA"}, {suite: "driver", function: "TestRows"}, {suite: "driver", function: "TestFails"},
		{suite: "driver", function: "TestOld"},
		{suite: "faults", function: "TestLegs", leg: "a"}, {suite: "faults", function: "TestLegs", leg: "b"},
		{suite: "faults", function: "TestVolumesSurviveRandomKills"},
		{suite: "csi-sanity", function: "TestDriver", leg: "ext4"}, {suite: "csi-sanity", function: "TestDriver", leg: "block"},
	}
	before := costs{"driver TestFails": {7, 7}, "driver TestOld": {8, 8}, "driver TestGone": {9, 9}, "faults TestVolumesSurviveRandomKills": {300, 300}}
	got := before.measured(`=== driver: go test -json -count=1 ./e2e/driver
PASS sanity-tests/e2e/driver TestA (12.5s)
PASS sanity-tests/e2e/driver TestA/step (12.0s)
PASS sanity-tests/e2e/driver TestRows/x (30.0s)
PASS sanity-tests/e2e/driver TestRows/y/z (40.0s)
PASS sanity-tests/e2e/driver TestRows/y (0.0s)
PASS sanity-tests/e2e/driver TestRows (0.0s)
FAIL sanity-tests/e2e/driver TestFails (240.0s)
     PASS is what somebody said
=== faults: go test -json -count=1 ./e2e/faults -args -short-leg=a -cycles=6
PASS sanity-tests/e2e/faults TestLegs/a (40.0s)
PASS sanity-tests/e2e/faults TestLegs/b (50.0s)
PASS sanity-tests/e2e/faults TestLegs (100.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills/volumes/at_once/1 (30.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills/volumes/at_once/2 (40.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills/volumes/at_once (0.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills/volumes (40.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills/2_kills_of_node/driver (0.0s)
PASS sanity-tests/e2e/faults TestVolumesSurviveRandomKills (60.0s)
=== csi-sanity: go test -json -count=1 ./sanity
PASS sanity-tests/conformance/sanity TestDriver/ext4/a_spec (0.0s)
PASS sanity-tests/conformance/sanity TestDriver/ext4 (0.0s)
PASS sanity-tests/conformance/sanity TestDriver/block (0.0s)
PASS sanity-tests/conformance/sanity TestDriver (90.0s)
PASS sanity-tests/chart TestUnit (1.0s)
`, all)
	const want = costsHead + `csi-sanity TestDriver 0.0 0.0
csi-sanity TestDriver/block 45.0 45.0
csi-sanity TestDriver/ext4 45.0 45.0
driver TestA 12.5 12.5
driver TestFails 7.0 7.0
driver TestOld 8.0 8.0
driver TestRows 70.0 40.0
faults TestLegs 10.0 10.0
faults TestLegs/a -short-leg=a 40.0 40.0
faults TestLegs/b 50.0 50.0
faults TestVolumesSurviveRandomKills 300.0 300.0
faults TestVolumesSurviveRandomKills -cycles=6 60.0 60.0
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	again, err := parseCosts(got.String())
	if err != nil || again.String() != want {
		t.Errorf("read again: %v\n%s", err, again)
	}
	if of := again.of(all[6], "-cycles=6"); of.seconds != 60 {
		t.Errorf("with the flags of the core it takes %v", of)
	}
	for _, text := range []string{"driver TestA\n", "driver TestA long longer\n"} {
		if _, err := parseCosts(text); err == nil {
			t.Errorf("%q is accepted as a cost", text)
		}
	}
}

// Parallel tests and their subtests run beside each other, but not as many at once as may.
func TestMinutesOfTests(t *testing.T) {
	beside := func(function string) plannedTest {
		return plannedTest{labTest: labTest{suite: "driver", function: function, atOnce: 3}}
	}
	alone := plannedTest{labTest: labTest{suite: "driver", function: "TestAlone", atOnce: 1}}
	leg := func(name string) plannedTest {
		return plannedTest{labTest: labTest{suite: "faults", function: "TestLegs", leg: name, atOnce: 1}}
	}
	known := costs{
		"driver TestA": {40, 40}, "driver TestB": {60, 60}, "driver TestAlone": {70, 30}, "driver TestRows": {140, 50},
		"faults TestLegs": {5, 5}, "faults TestLegs/a": {20, 20}, "faults TestLegs/b": {10, 10},
	}
	for _, test := range []struct {
		tests []plannedTest
		want  float64
	}{
		{[]plannedTest{alone}, suiteSetUp + 30},
		{[]plannedTest{beside("TestA"), beside("TestB")}, suiteSetUp + 60},
		{[]plannedTest{beside("TestB"), beside("TestA"), beside("TestRows"), alone}, suiteSetUp + 30 + (60+40+140)/2},
		{[]plannedTest{leg("a"), leg("b"), alone}, 2*suiteSetUp + 5 + 20 + 10 + 30},
	} {
		if got := known.minutes(test.tests) * 60; got < test.want-.01 || got > test.want+.01 {
			t.Errorf("%s: %.1f s, not %.1f", listed(test.tests), got, test.want)
		}
	}
}
