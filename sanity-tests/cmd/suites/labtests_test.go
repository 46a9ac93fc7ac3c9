package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestTestsAreReadFromTheirSources(t *testing.T) {
	s := suite{name: "faults", hasLegs: true, parallel: 6}
	tests, err := testsOf(s, map[string][]byte{
		"x/a_test.go": []byte(`package x
func TestMain(m *testing.M) {}
func Testimony(t *testing.T) {}
func TestAlone(t *testing.T) { t.Run("x", func(t *testing.T) {}) }
func TestBeside(t *testing.T) { n := beside(t) }
func TestRows(t *testing.T) { for range rows { t.Run("x", func(t *testing.T) { n := beside(t) }) } }
func TestLegs(t *testing.T) {
	for _, one := range []struct{ name string }{{"no leg"}} {}
	for _, leg := range []leg[*walk]{
		{"a leg", w.here},
		{"another, there", there(2)},
	} {}
}
func (w *walk) here() {}
`),
		"x/b_test.go": []byte(`package x
func beside(t *testing.T) { deeper(t) }
func deeper(t *testing.T) { t.Parallel() }
func there(n int) func() { return nil }
`)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range tests {
		got = append(got, fmt.Sprintf("%s %d %s", one, one.atOnce, strings.Join(one.files, ",")))
	}
	want := []string{
		"faults TestAlone 1 x/a_test.go",
		"faults TestBeside 6 x/a_test.go",
		"faults TestLegs/a_leg 1 x/a_test.go",
		"faults TestLegs/another,_there 1 x/a_test.go,x/b_test.go",
		"faults TestRows 1 x/a_test.go",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := testsOf(s, map[string][]byte{"x/a_test.go": []byte("no go")}); err == nil {
		t.Error("text that is not Go is accepted")
	}
}

func TestLabTestsOfTheRepository(t *testing.T) {
	all, _ := repositoryTests(t)
	for name, atOnce := range map[string]int{
		"driver TestRetainKeepsTheData":                          16,
		"driver TestUninstallAndReinstallWithVolumesInUse":       1,
		"driver TestMovesAndClaimsChooseAllowedClasses":          1,
		"remote TestHostileClustersDoNotAffectOthers":            1,
		"offload TestPodsRunAtMostOnceDespiteFaults":             1,
		"faults TestCrashAtEveryPoint/a_volume_that_is_attached": 1,
		"csi-sanity TestDriver/ext4":                             1,
		"storage TestSnapshotsAndClones":                         6,
	} {
		at := slices.IndexFunc(all, func(one labTest) bool { return one.String() == name })
		if at < 0 {
			t.Errorf("%s is not found", name)
		} else if all[at].atOnce != atOnce {
			t.Errorf("%s: %d run in parallel, not %d", name, all[at].atOnce, atOnce)
		}
	}
	if legs := filter(all, func(one labTest) bool { return one.leg != "" }); len(legs) < 40 {
		t.Errorf("there are %d legs", len(legs))
	}
}

// A test that is not parallel delays all others, though its subtests may run beside theirs.
func TestTestsWithParallelSubtestsAreParallel(t *testing.T) {
	all, known := repositoryTests(t)
	alone := []string{"driver TestMovesAndClaimsChooseAllowedClasses", "faults TestVolumesSurviveRandomKills"}
	for _, one := range all {
		of := known.of(one, "")
		if of.longest < of.seconds-1 && one.atOnce == 1 && !slices.Contains(alone, one.String()) {
			t.Errorf("%s takes %.0f s without other tests, its subtests run in parallel and take %.0f s together: call t.Parallel first", one, of.longest, of.seconds)
		}
	}
}
