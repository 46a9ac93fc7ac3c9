package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/sample"
)

// need is what a suite requires.
type need int

const (
	nothing need = iota
	// root: mounts or network namespaces, but not the running lab.
	root
	// sharedLab: the running lab with its storage.
	sharedLab
)

// tier is when a suite runs.
type tier int

const (
	// always: in `make test` and `make test-all`.
	always tier = iota
	// inPart: in `make test-all`; `make test` runs the tests of the plan.
	inPart
	// testAllOnly: in `make test-all` only.
	testAllOnly
)

// suite is one command whose tests are counted.
type suite struct {
	name    string
	dir     string // below the repository's root
	command []string
	env     []string // in addition to that of this process
	counter func(io.Writer) counter
	needs   need
	limit   time.Duration
	tier    tier

	// args are those of goTest; folder is that of its lab tests, below the repository's root, or
	// ""; parallel is how many of them run at once.
	args     []string
	folder   string
	parallel int

	// parts divide the suite in `make test-all` if it takes too long for one run; tests are the lab tests that this run
	// has of it.
	parts []part
	tests []plannedTest

	// again returns the command that runs only the test with this key, rest the one that runs the
	// tests of a package that had not started. Suites without them are not retried.
	again func(key string) []string
	rest  func(earlyEnd) []string
	// hasLegs: legs are selected and retried by themselves, because their test functions have a
	// set-up for many long tests. If a function does all its work before its subtests, selects is
	// the flag of the test program that selects legs.
	hasLegs bool
	selects string
}

// part has a name, and a pattern for test functions. Each function is in the first part whose pattern matches.
type part struct{ name, functions string }

func inTier(t tier, s suite) suite {
	s.tier = t
	return s
}

// cargoTest runs eight tests in parallel on any number of cores, because tests mostly wait.
var cargoTest = []string{"cargo", "test", "--locked", "--workspace", "--no-fail-fast", "--", "--test-threads=8"}

func rust() suite {
	return suite{name: "rust", dir: ".", command: cargoTest, counter: newCargoCounter, limit: 20 * time.Minute,
		env: []string{fmt.Sprintf("PROPTEST_RNG_SEED=%d", sample.Seed())}, // or property tests have random values
		again: func(test string) []string {
			return []string{"cargo", "test", "--locked", "--workspace", "--", "--show-output", "--exact", test}
		}}
}

// suites are all suites, cheapest first, so that failures show early.
var suites = []suite{
	check("rust format", nothing, "cargo", "fmt", "--all", "--check"),
	check("rust lints", nothing, "cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"),
	// Builds of the workspace enable the feature testkit, releases do not.
	check("rust without testkit", nothing, "cargo", "check", "--locked", "--package", "liqo-csi"),
	check("go lints", nothing, "make", "lint-go"),
	rust(),
	goTest("go", "sanity-tests", nothing, 15*time.Minute, append(allBut("/e2e/"), "./e2e/user")...),
	goTest("wire interface", "sanity-tests/conformance", nothing, 10*time.Minute, "./protos"),
	goTest("reference driver", "sanity-tests/reference", nothing, 10*time.Minute, "./..."),
	goTest("fabric objects", "sanity-tests/fabrics", nothing, 15*time.Minute, "./..."),
	// The lab's programs are built first, so that the time limits of tests do not include builds,
	// and while the lab does not use the machine.
	check("lab build", root, "make", "lab-build"),
	check(driverBuild, root, "cargo", "build", "--locked", "--workspace"),
	// These three test the lab itself, without the driver.
	labTestsOf(inPart, goTest("lab", "sanity-tests", root, 20*time.Minute, "./e2e/lab")),
	labTestsOf(inPart, goTest("storage", "sanity-tests", sharedLab, 20*time.Minute, "-parallel=6", "./e2e/storage")),
	labTestsOf(inPart, goTest("fabric", "sanity-tests", sharedLab, 15*time.Minute, "-parallel=6", "./e2e/fabric")),
	labTestsOf(inPart, goTest("driver", "sanity-tests", sharedLab, 45*time.Minute, "-parallel=16", "./e2e/driver")),
	labTestsOf(inPart, goTest("remote", "sanity-tests", sharedLab, 45*time.Minute, "-parallel=8", "./e2e/remote")),
	labTestsOf(inPart, goTest("offload", "sanity-tests", sharedLab, 30*time.Minute, "-parallel=6", "./e2e/offload")),
	labTestsOf(inPart, goTest("pages", "sanity-tests", sharedLab, 25*time.Minute, "./e2e/pages")),
	labTestsOf(inPart, goTest("move", "sanity-tests", sharedLab, 15*time.Minute, "./e2e/move")),
	labTestsOf(inPart, withLegs("-setup", goTest("csi-sanity", "sanity-tests/conformance", sharedLab, 15*time.Minute, "./sanity"))),
	divided(labTestsOf(inPart, withLegs("", goTest("faults", "sanity-tests", sharedLab, 55*time.Minute, "-parallel=6", "./e2e/faults"))),
		part{"crash-points", "^TestCrash"}, part{"moves", "^TestMovesWithCrash"}, part{"others", ""}),
	inTier(testAllOnly, check("release build", root, "cargo", "build", "--locked", "--release", "--package", "liqo-csi")),
	// This fails if the image is too large, or a program in it does not run.
	inTier(testAllOnly, check("release image", nothing, "make", "image")),
	inTier(testAllOnly, onRelease(goTest("release", "sanity-tests", sharedLab, 15*time.Minute, "-run="+smokeTests, "./e2e/driver"))),
	inTier(testAllOnly, check("Liqo build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "liqo")),
	labTestsOf(testAllOnly, goTest("liqo", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/liqo")),
	inTier(testAllOnly, check("build of Kubernetes' tests", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "e2e")),
	labTestsOf(testAllOnly, withLegs("", goTest("external storage", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/external"))),
	labTestsOf(testAllOnly, goTest("node conformance", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/nodeconformance")),
}

const driverBuild = "driver build"

// useDriverBuild makes later suites use the program of the suite "driver build", so that no test
// calls cargo, unless the environment selects another program.
func useDriverBuild(repository string) error {
	if os.Getenv(driver.BinaryVariable) != "" || os.Getenv(driver.ProfileVariable) == "release" {
		return nil
	}
	return os.Setenv(driver.BinaryVariable, driver.DevBinary(repository))
}

// smokeTests run with the release too: a pod gets a volume, keeps its data, and moves with it. The
// last one installs the driver as the README describes.
const smokeTests = "^(TestDeletingAClaimDeletesEverything|TestRetainKeepsTheData|TestMoveToAnotherNode|TestOnlyDevelopmentBuildsHaveCrashPoints|TestReadmeInstallsARelease)$"

// onRelease makes the suite install a release of the driver.
func onRelease(s suite) suite {
	s.env = []string{driver.BinaryVariable + "=", driver.ProfileVariable + "=release"}
	return s
}

// check returns a suite with one command, which counts as one test.
func check(name string, needs need, command ...string) suite {
	return suite{name: name, dir: ".", command: command, counter: newCheckCounter, needs: needs, limit: 40 * time.Minute}
}

// compiling is the time of a Go suite in addition to its tests. go stops tests at their limit and
// prints which were running; the runner stops the suite if that does not help.
const compiling = 2 * time.Minute

// goTest returns a suite of Go packages. args are flags of go, packages, and -args, in this order.
func goTest(name, dir string, needs need, limit time.Duration, args ...string) suite {
	firstPackage := max(0, slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }))
	afterPackages := slices.Index(args, "-args")
	if afterPackages < 0 {
		afterPackages = len(args)
	}
	command := func(pattern, value string, packages ...string) []string {
		base := append([]string{"go", "test", "-json", "-count=1", "-timeout", limit.String()}, args[:firstPackage]...)
		if pattern != "" {
			base = append(base, pattern, value) // the last -run counts
		}
		return slices.Concat(base, packages, args[afterPackages:])
	}
	return suite{
		name: name, dir: dir, args: args, command: command("", "", args[firstPackage:afterPackages]...),
		counter: newGoCounter, needs: needs, limit: limit + compiling,
		again: func(key string) []string {
			pkg, test, _ := strings.Cut(key, " ")
			return command("-run", pattern(test), pkg)
		},
		rest: func(end earlyEnd) []string {
			return command("-skip", anyOf(end.begun), end.pkg)
		},
	}
}

// pattern returns a -run pattern for one test with its subtests.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// labTestsOf makes labTests read the tests of a suite with one package.
func labTestsOf(t tier, s suite) suite {
	s.parallel = 1
	for _, arg := range s.args {
		if n, ok := strings.CutPrefix(arg, "-parallel="); ok {
			s.parallel = number(n)
		}
		if folder, ok := strings.CutPrefix(arg, "./"); ok {
			s.folder = s.dir + "/" + folder
		}
	}
	return inTier(t, s)
}

// anyOf returns a pattern for names without special characters.
func anyOf(functions []string) string { return "^(" + strings.Join(functions, "|") + ")$" }

// withLegs makes the legs of a suite selectable.
func withLegs(selects string, s suite) suite {
	again := s.again
	s.hasLegs, s.selects = true, selects
	s.again = func(key string) []string {
		command := again(key)
		_, test, _ := strings.Cut(key, " ")
		_, leg, isLeg := strings.Cut(test, "/")
		if !isLeg || selects == "" {
			return command
		}
		if !slices.Contains(command, "-args") {
			command = append(command, "-args")
		}
		return append(command, selects+"="+leg)
	}
	return s
}

// allBut lists the packages of this module except those whose path contains the text, so that new
// packages need not be added here.
func allBut(part string) []string {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return []string{"./..."} // go test prints the error
	}
	return filter(strings.Fields(string(out)), func(path string) bool { return !strings.Contains(path, part) })
}

func divided(s suite, parts ...part) suite {
	s.parts = parts
	return s
}

// selected returns the suites of a run, or parts of suites, whose names contain the text: all, or those of the plan.
func selected(all bool, text string, p plan) (todo []suite) {
	for _, s := range suites {
		ofPlan := filter(p.tests(), s.has)
		switch {
		case all:
			todo = append(todo, s.inParts(p.all)...)
		case s.tier == always:
			todo = append(todo, s)
		case len(ofPlan) > 0:
			todo = append(todo, s.part(ofPlan))
		}
	}
	return filter(todo, func(s suite) bool { return strings.Contains(s.name, text) })
}

func (s suite) has(t plannedTest) bool { return t.suite == s.name }

// inParts returns the parts of a suite, or the suite, with all of its tests.
func (s suite) inParts(all []labTest) (parts []suite) {
	var left, whole []plannedTest
	for _, t := range all {
		left = append(left, plannedTest{labTest: t})
	}
	left = filter(left, s.has)
	if s.tests = left; len(s.parts) == 0 {
		return []suite{s}
	}
	for _, p := range s.parts {
		matches := regexp.MustCompile(p.functions)
		tests := filter(left, func(t plannedTest) bool { return matches.MatchString(t.function) })
		left = filter(left, func(t plannedTest) bool { return !matches.MatchString(t.function) })
		for _, t := range tests {
			t.leg = "" // or go would leave out subtests that are no legs
			whole = append(whole, t)
		}
		one := s.part(whole)
		one.name, one.tests, whole = s.name+"/"+p.name, tests, nil
		parts = append(parts, one)
	}
	return parts
}

// startingFrom drops the suites before the first whose name contains the text.
func startingFrom(text string, todo []suite) ([]suite, error) {
	first := slices.IndexFunc(todo, func(s suite) bool { return strings.Contains(s.name, text) })
	if first < 0 && text != "" {
		return nil, fmt.Errorf("no suite to start from has %q in its name (-list prints them)", text)
	}
	return todo[max(0, first):], nil
}
