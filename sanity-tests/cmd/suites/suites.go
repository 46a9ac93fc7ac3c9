package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	counter func() counter
	needs   need
	limit   time.Duration
	tier    tier
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
var cargoTest = []string{"cargo", "test", "--locked", "--workspace", "--", "--test-threads=4"}

// suites are all there are, cheapest first: what is broken should show early.
var suites = []suite{
	check("rust format", nothing, "cargo", "fmt", "--all", "--check"),
	check("rust lints", nothing, "cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"),
	check("go lints", nothing, "make", "lint-go"),
	{"rust", ".", cargoTest, newCargoCounter, nothing, 20 * time.Minute, always},
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
	only(sampled, goTest("faults, a sample", "sanity-tests", sharedLab, 25*time.Minute, "-parallel=6", "./e2e/faults", "-args", "-sample")),
	only(whole, goTest("faults, all", "sanity-tests", sharedLab, 60*time.Minute, "-parallel=6", "./e2e/faults")),
	only(whole, check("release build", root, "cargo", "build", "--locked", "--release", "--package", "liqo-csi")),
	only(whole, onRelease(goTest("release", "sanity-tests", sharedLab, 15*time.Minute, "./e2e/driver", "-run", smokeTests))),
	only(whole, check("Liqo build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "liqo")),
	only(whole, goTest("liqo", "sanity-tests", sharedLab, 60*time.Minute, "./e2e/liqo")),
	only(whole, check("external storage build", root, "go", "-C", "sanity-tests", "run", "./cmd/lab", "build", "e2e")),
	only(whole, goTest("external storage", "sanity-tests", sharedLab, 60*time.Minute, "./e2e/external")),
	goTest("csi-sanity", "sanity-tests/conformance", sharedLab, 15*time.Minute, "./sanity"),
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
	s.command = append([]string{"env", driver.BinaryVariable + "=", driver.ProfileVariable + "=release"}, s.command...)
	return s
}

// check is a command that counts as one test.
func check(name string, needs need, command ...string) suite {
	return suite{name, ".", command, newCheckCounter, needs, 40 * time.Minute, always}
}

func goTest(name, dir string, needs need, limit time.Duration, args ...string) suite {
	command := slices.Concat([]string{"go", "test", "-json", "-count=1", "-timeout", limit.String()}, args)
	return suite{name, dir, command, newGoCounter, needs, limit, always}
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

// obstacle says why the suite cannot run here, or nothing.
func (s suite) obstacle() string {
	if s.needs != nothing && os.Geteuid() != 0 {
		return "needs root (network namespaces, mounts)"
	}
	return ""
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

func labUp(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	return lab(ctx, root, "up")
}

func labDown(root string) error {
	// Not the caller's context: cleaning up is most needed when that is over.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return lab(ctx, root, "down")
}

func lab(ctx context.Context, root, verb string) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/lab", verb)
	cmd.Dir = filepath.Join(root, "sanity-tests")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lab %s: %w", verb, err)
	}
	return nil
}
