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

// need says what a suite cannot do without.
type need int

const (
	// nothing: runs anywhere, as any user.
	nothing need = iota
	// root: mounts or network namespaces, but no lab of ours.
	root
	// sharedLab: the running lab with its storage.
	sharedLab
)

// tier says which of the two runs a suite belongs to.
type tier int

const (
	// always: `make test` and `make test-all`.
	always tier = iota
	// inTurn: `make test-all`; of all these `make test` runs one, another with the next commits.
	inTurn
	// sampled: `make test` alone; `make test-all` has a suite that contains it.
	sampled
	// whole: `make test-all` alone.
	whole
)

// suite is one command whose tests are counted.
type suite struct {
	name    string
	dir     string // below the repository's root
	command []string
	env     []string // beside that of this process
	counter func(io.Writer) counter
	needs   need
	limit   time.Duration
	tier    tier

	// again is the command that runs the test with this key alone, rest the one that runs
	// what is left of a package. Suites without them are not run again.
	again func(key string) []string
	rest  func(earlyEnd) []string
	// hasLegs says that the subtests of a test function are each run again by themselves:
	// functions that make everything ready for many long tests.
	hasLegs bool
}

// only puts a suite into one of the two runs.
func only(t tier, s suite) suite {
	s.tier = t
	return s
}

// runsIn says whether the suite belongs to `make test-all`, or else to `make test`,
// where of the suites that take turns this one's turn it is.
func (s suite) runsIn(all bool, turn string) bool {
	switch s.tier {
	case inTurn:
		return all || s.name == turn
	case sampled:
		return !all
	case whole:
		return all
	default:
		return true
	}
}

// cargoTest runs four tests at once however few cores there are: most of their time they wait.
// A program with a test that fails keeps no other from being run.
var cargoTest = []string{"cargo", "test", "--locked", "--workspace", "--no-fail-fast", "--", "--test-threads=4"}

func rust() suite {
	return suite{name: "rust", dir: ".", command: cargoTest, counter: newCargoCounter, limit: 20 * time.Minute,
		again: func(test string) []string {
			return []string{"cargo", "test", "--locked", "--workspace", "--", "--show-output", "--exact", test}
		}}
}

// suites are all there are, cheapest first: what is broken should show early.
var suites = []suite{
	check("rust format", nothing, "cargo", "fmt", "--all", "--check"),
	check("rust lints", nothing, "cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"),
	check("go lints", nothing, "make", "lint-go"),
	rust(),
	goTest("go", "sanity-tests", nothing, 15*time.Minute, allBut("/e2e/")...),
	goTest("wire interface", "sanity-tests/conformance", nothing, 10*time.Minute, "./protos"),
	goTest("reference driver", "sanity-tests/reference", nothing, 10*time.Minute, "./..."),
	goTest("fabric objects", "sanity-tests/fabrics", nothing, 15*time.Minute, "./..."),
	// What the lab runs is built apart from its tests, whose time is not for building,
	// and before it runs, while the machine has nothing else to do.
	check("lab build", root, "make", "lab-build"),
	check(driverBuild, root, "cargo", "build", "--locked", "--workspace"),
	// These three test the lab itself, without the driver.
	only(inTurn, goTest("lab", "sanity-tests", root, 20*time.Minute, "./e2e/lab")),
	only(inTurn, goTest("storage", "sanity-tests", sharedLab, 20*time.Minute, "-parallel=6", "./e2e/storage")),
	only(inTurn, goTest("fabric", "sanity-tests", sharedLab, 15*time.Minute, "-parallel=6", "./e2e/fabric")),
	only(sampled, goTest("driver, a sample", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=16", "./e2e/driver", "-args", "-sample")),
	only(whole, goTest("driver, all", "sanity-tests", sharedLab, 30*time.Minute, "-parallel=16", "./e2e/driver")),
	only(sampled, goTest("remote, a sample", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=16", "./e2e/remote", "-args", "-sample")),
	only(whole, goTest("remote, all", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=16", "./e2e/remote")),
	only(sampled, goTest("offload, a sample", "sanity-tests", sharedLab, 20*time.Minute, "-parallel=6", "./e2e/offload", "-args", "-sample")),
	only(whole, goTest("offload, all", "sanity-tests", sharedLab, 30*time.Minute, "-parallel=6", "./e2e/offload")),
	goTest("move", "sanity-tests", sharedLab, 15*time.Minute, "./e2e/move"),
	withLegs("", only(sampled, goTest("faults, a sample", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=6", "./e2e/faults", "-args", "-sample"))),
	withLegs("", only(whole, goTest("faults, all", "sanity-tests", sharedLab, 55*time.Minute, "-parallel=6", "./e2e/faults"))),
	only(whole, check("release build", root, "cargo", "build", "--locked", "--release", "--package", "liqo-csi")),
	only(whole, onRelease(goTest("release", "sanity-tests", sharedLab, 15*time.Minute, "-run="+smokeTests, "./e2e/driver"))),
	only(whole, check("Liqo build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "liqo")),
	only(whole, goTest("liqo", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/liqo")),
	only(whole, check("external storage build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "e2e")),
	withLegs("", only(whole, goTest("external storage", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/external"))),
	withLegs("-setup", goTest("csi-sanity", "sanity-tests/conformance", sharedLab, 15*time.Minute, "./sanity")),
}

// driverBuild is the suite whose program the suites after it use.
const driverBuild = "driver build"

// useDriverBuild makes the suites that follow use the program of the suite "driver build", so that
// no test calls cargo; unless they were told to use another one.
func useDriverBuild(repository string) error {
	if os.Getenv(driver.BinaryVariable) != "" || os.Getenv(driver.ProfileVariable) == "release" {
		return nil
	}
	return os.Setenv(driver.BinaryVariable, driver.DevBinary(repository))
}

// smokeTests are run with the release, too: that a pod gets a volume, keeps its data, and moves
// with them.
const smokeTests = "^(TestDeletingAClaimDeletesEverything|TestRetainKeepsTheData|TestMoveToAnotherNode|TestOnlyDevelopmentBuildsHaveCrashPoints)$"

// onRelease is the suite with a release of the driver in the lab. What is installed next replaces it.
func onRelease(s suite) suite {
	s.env = []string{driver.BinaryVariable + "=", driver.ProfileVariable + "=release"}
	return s
}

// check is a command that counts as one test.
func check(name string, needs need, command ...string) suite {
	return suite{name: name, dir: ".", command: command, counter: newCheckCounter, needs: needs, limit: 40 * time.Minute}
}

// compiling is the time that a Go suite has beside its tests. They are stopped by go, or
// nothing would say which were running; the whole suite is, when that did not help.
const compiling = 2 * time.Minute

// goTest is a suite of Go packages: first come flags of go, then packages, then -args.
func goTest(name, dir string, needs need, limit time.Duration, args ...string) suite {
	firstPackage := max(0, slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }))
	afterPackages := slices.Index(args, "-args")
	if afterPackages < 0 {
		afterPackages = len(args)
	}
	command := func(pattern, value string, packages ...string) []string {
		base := []string{"go", "test", "-json", "-count=1", "-timeout", limit.String()}
		if pattern != "" {
			base = append(base, pattern, value)
		}
		return slices.Concat(base, args[:firstPackage], packages, args[afterPackages:])
	}
	return suite{
		name: name, dir: dir, command: command("", "", args[firstPackage:afterPackages]...),
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

// pattern selects one test, or all subtests of one.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// anyOf matches functions, which have no character that means something in a pattern.
func anyOf(functions []string) string { return "^(" + strings.Join(functions, "|") + ")$" }

// withLegs has each subtest of the suite's functions run again by itself. Where the
// function does all the work before it has subtests, selects is the flag of the test
// program that names the one to do.
func withLegs(selects string, s suite) suite {
	again := s.again
	s.hasLegs = true
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

// allBut lists the packages of the module this runs in, without those whose path
// holds the text: a new package is tested without being named here.
func allBut(part string) []string {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return []string{"./..."} // go test will say what is wrong
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(path string) bool { return strings.Contains(path, part) })
}

// selected are the suites of one run whose names contain the text. Suites that are
// asked for by name need not wait for their turn.
func selected(all bool, text string, seed int64) []suite {
	turn := turnOf(seed)
	return slices.DeleteFunc(slices.Clone(suites), func(s suite) bool {
		asked := text != "" && s.tier == inTurn
		return !strings.Contains(s.name, text) || !(asked || s.runsIn(all, turn))
	})
}

// turnOf names the suite whose turn it is among those that take turns.
func turnOf(seed int64) string {
	inTurns := slices.DeleteFunc(slices.Clone(suites), func(s suite) bool { return s.tier != inTurn })
	return inTurns[sample.Part(seed, len(inTurns))].name
}

// startingFrom leaves out what comes before the first suite whose name contains the text.
func startingFrom(text string, todo []suite) ([]suite, error) {
	first := slices.IndexFunc(todo, func(s suite) bool { return strings.Contains(s.name, text) })
	if first < 0 && text != "" {
		return nil, fmt.Errorf("no suite to start from has %q in its name (-list shows them)", text)
	}
	return todo[max(0, first):], nil
}
