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
	// inPart: `make test-all`; `make test` runs the tests of the plan.
	inPart
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

	// args are those that goTest was called with, folder is where its lab tests are: below
	// the repository's root, or empty if it has none. At most so many run at once.
	args     []string
	folder   string
	parallel int

	// again is the command that runs the test with this key alone, rest the one that runs
	// what is left of a package. Suites without them are not run again.
	again func(key string) []string
	rest  func(earlyEnd) []string
	// hasLegs says that the subtests of a test function are run by themselves: functions
	// that make everything ready for many long tests. Where the function does all the work
	// before it has subtests, selects is the flag of the test program that names those to run.
	hasLegs bool
	selects string
}

// only keeps `make test` from running a suite, or all of it.
func only(t tier, s suite) suite {
	s.tier = t
	return s
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
	// What a build of the workspace has by its feature testkit, a release has not.
	check("rust without testkit", nothing, "cargo", "check", "--locked", "--package", "liqo-csi"),
	check("go lints", nothing, "make", "lint-go"),
	rust(),
	goTest("go", "sanity-tests", nothing, 15*time.Minute, append(allBut("/e2e/"), "./e2e/user")...),
	goTest("wire interface", "sanity-tests/conformance", nothing, 10*time.Minute, "./protos"),
	goTest("reference driver", "sanity-tests/reference", nothing, 10*time.Minute, "./..."),
	goTest("fabric objects", "sanity-tests/fabrics", nothing, 15*time.Minute, "./..."),
	// What the lab runs is built apart from its tests, whose time is not for building,
	// and before it runs, while the machine has nothing else to do.
	check("lab build", root, "make", "lab-build"),
	check(driverBuild, root, "cargo", "build", "--locked", "--workspace"),
	// These three test the lab itself, without the driver.
	labTestsOf(inPart, goTest("lab", "sanity-tests", root, 20*time.Minute, "./e2e/lab")),
	labTestsOf(inPart, goTest("storage", "sanity-tests", sharedLab, 20*time.Minute, "-parallel=6", "./e2e/storage")),
	labTestsOf(inPart, goTest("fabric", "sanity-tests", sharedLab, 15*time.Minute, "-parallel=6", "./e2e/fabric")),
	labTestsOf(inPart, goTest("driver", "sanity-tests", sharedLab, 30*time.Minute, "-parallel=16", "./e2e/driver")),
	labTestsOf(inPart, goTest("remote", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=16", "./e2e/remote")),
	labTestsOf(inPart, goTest("offload", "sanity-tests", sharedLab, 30*time.Minute, "-parallel=6", "./e2e/offload")),
	labTestsOf(inPart, goTest("pages", "sanity-tests", sharedLab, 25*time.Minute, "./e2e/pages")),
	labTestsOf(inPart, goTest("move", "sanity-tests", sharedLab, 15*time.Minute, "./e2e/move")),
	labTestsOf(inPart, withLegs("-setup", goTest("csi-sanity", "sanity-tests/conformance", sharedLab, 15*time.Minute, "./sanity"))),
	labTestsOf(inPart, withLegs("", goTest("faults", "sanity-tests", sharedLab, 55*time.Minute, "-parallel=6", "./e2e/faults"))),
	only(whole, check("release build", root, "cargo", "build", "--locked", "--release", "--package", "liqo-csi")),
	// Of that program; it is refused if it is too large, or a program in it does not run.
	only(whole, check("release image", nothing, "make", "image")),
	only(whole, onRelease(goTest("release", "sanity-tests", sharedLab, 15*time.Minute, "-run="+smokeTests, "./e2e/driver"))),
	only(whole, check("Liqo build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "liqo")),
	labTestsOf(whole, goTest("liqo", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/liqo")),
	only(whole, check("build of Kubernetes' tests", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "e2e")),
	labTestsOf(whole, withLegs("", goTest("external storage", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/external"))),
	labTestsOf(whole, goTest("node conformance", "sanity-tests", sharedLab, 55*time.Minute, "./e2e/nodeconformance")),
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
// with them. The last one installs it as the README says.
const smokeTests = "^(TestDeletingAClaimDeletesEverything|TestRetainKeepsTheData|TestMoveToAnotherNode|TestOnlyDevelopmentBuildsHaveCrashPoints|TestReadmeInstallsARelease)$"

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
		base := append([]string{"go", "test", "-json", "-count=1", "-timeout", limit.String()}, args[:firstPackage]...)
		if pattern != "" {
			base = append(base, pattern, value) // of two -run the last one counts
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

// pattern selects one test, or all subtests of one.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// labTestsOf is a suite of one package whose tests are known one by one.
func labTestsOf(t tier, s suite) suite {
	s.parallel = 1
	for _, arg := range s.args {
		if n, is := strings.CutPrefix(arg, "-parallel="); is {
			s.parallel = number(n)
		}
		if folder, is := strings.CutPrefix(arg, "./"); is {
			s.folder = s.dir + "/" + folder
		}
	}
	return only(t, s)
}

// anyOf matches functions, or other names in which nothing means something in a pattern.
func anyOf(functions []string) string { return "^(" + strings.Join(functions, "|") + ")$" }

// withLegs has the subtests of the suite's functions run by themselves.
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

// allBut lists the packages of the module this runs in, without those whose path
// holds the text: a new package is tested without being named here.
func allBut(part string) []string {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return []string{"./..."} // go test will say what is wrong
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(path string) bool { return strings.Contains(path, part) })
}

// selected are the suites of one run whose names contain the text, and of those that
// `make test` runs in parts what the plan says.
func selected(all bool, text string, p plan) (todo []suite) {
	for _, s := range suites {
		if !strings.Contains(s.name, text) || s.tier == whole && !all {
			continue
		}
		if s.tier == inPart && !all {
			tests := p.of(s)
			if len(tests) == 0 {
				continue
			}
			s = s.part(tests)
		}
		todo = append(todo, s)
	}
	return todo
}

// startingFrom leaves out what comes before the first suite whose name contains the text.
func startingFrom(text string, todo []suite) ([]suite, error) {
	first := slices.IndexFunc(todo, func(s suite) bool { return strings.Contains(s.name, text) })
	if first < 0 && text != "" {
		return nil, fmt.Errorf("no suite to start from has %q in its name (-list shows them)", text)
	}
	return todo[max(0, first):], nil
}
