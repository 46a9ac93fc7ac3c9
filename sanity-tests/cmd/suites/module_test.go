package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tempModule creates a Go module with these tests, and returns it as a suite.
func tempModule(t *testing.T, r *runner, limit time.Duration, tests string) suite {
	t.Helper()
	files := map[string]string{
		"go.mod":    "module example.org/throwaway\n\ngo 1.26\n",
		"a_test.go": "package throwaway\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Args\n\n" + tests,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Compile first, so that the limit is for the tests. Some modules do not compile.
	compile := exec.CommandContext(t.Context(), "go", "test", "-run", "^$", "./...")
	compile.Dir, compile.Env = r.root, environment()
	_ = compile.Run()
	return goTest("throw-away", ".", nothing, limit, "-parallel=2", "./...")
}

// once returns code that is executed only the first time the test program runs.
func once(r *runner, code string) string {
	mark := filepath.Join(r.root, "was-here")
	return "if _, err := os.Stat(`" + mark + "`); err != nil {\n" +
		"\t\tif err := os.WriteFile(`" + mark + "`, nil, 0o600); err != nil {\n\t\t\tt.Fatal(err)\n\t\t}\n" +
		"\t\t" + code + "\n\t}\n"
}

func TestModuleWithAFlakyTestIsGreen(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, time.Minute, `
func TestFine(t *testing.T) {}

func TestFlaky(t *testing.T) {
	t.Run("a row", func(t *testing.T) {
		`+once(r, `t.Fatal("the pod is not ready")`)+`
	})
	t.Log("and so it ended")
}
`)
	r.run(t.Context(), []suite{s})
	r.summary()
	if !r.printTotals() || r.passed != 2 || len(r.flaky) != 1 {
		t.Errorf("%d passed, red %v, flaky %v", r.passed, r.red, r.flaky)
	}
	wantLines(t, out, "-run ^TestFlaky$ ", "when it failed", "the pod is not ready", "when it passed", "and so it ended",
		"throw-away\tthrowaway TestFlaky\t450", "2 passed, 0 failed, 0 skipped")
}

func TestModuleWithAFailedTestNamesIt(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := withLegs("", tempModule(t, r, time.Minute, `
func TestLegs(t *testing.T) {
	t.Run("a leg: 50 ms (or so)", func(t *testing.T) { t.Fatal("the pod is not ready") })
	t.Run("another", func(t *testing.T) {})
}
`))
	r.run(t.Context(), []suite{s})
	r.summary()
	if r.printTotals() || r.passed != 1 || len(r.red) != 1 {
		t.Errorf("%d passed, red %v", r.passed, r.red)
	}
	wantLines(t, out, `-run ^TestLegs$/^a_leg:_50_ms_\(or_so\)$ `, "FAILED throw-away: throwaway TestLegs/a_leg:_50_ms_(or_so) (failed twice)", "the pod is not ready",
		"1 passed, 1 failed, 0 skipped")
}

// A test that hangs keeps later ones from starting; they run after its retry has passed.
func TestModuleWithATestThatHangsOnceRunsTheRest(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, 5*time.Second, `
func TestFine(t *testing.T) {}

func TestHangs(t *testing.T) {
	t.Log("waiting for the pod")
	`+once(r, "waitForThePod(make(chan bool))")+`
}

func TestLater(t *testing.T) {}

func TestParallel(t *testing.T) { t.Parallel() }

func waitForThePod(ready chan bool) { <-ready }
`)
	r.run(t.Context(), []suite{s})
	r.summary()
	if !r.printTotals() || r.passed != 4 || len(r.flaky) != 1 {
		t.Errorf("%d passed, red %v, flaky %v", r.passed, r.red, r.flaky)
	}
	wantLines(t, out, "FAIL throwaway TestHangs (did not end)", "waiting for the pod", "panic: test timed out after 5s", "waitForThePod(",
		"-run ^TestHangs$ ", "-skip ^(TestFine|TestHangs)$ ", "FLAKY throw-away: throwaway TestHangs", "4 passed, 0 failed, 0 skipped")
}

func TestModuleWithATestThatAlwaysHangsIsRed(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, 2*time.Second, `
func TestHangs(t *testing.T) { select {} }

func TestLater(t *testing.T) {}

// Or the Go runtime would report a deadlock.
var _ = func() bool { go func() { r, _, _ := os.Pipe(); r.Read(make([]byte, 1)) }(); return true }()
`)
	r.run(t.Context(), []suite{s})
	r.summary()
	if r.printTotals() || len(r.red) != 1 {
		t.Errorf("red %v", r.red)
	}
	wantLines(t, out, "FAILED throw-away: throwaway TestHangs (did not end) (failed twice)",
		"NOT RUN throw-away: what had not started in throwaway: the test program ended before its tests", "0 passed, 1 failed, 1 skipped")
}

// If go does not stop its tests, the runner does, with the signal that prints goroutines.
func TestModuleStoppedAtTheSuiteLimitShowsGoroutines(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, time.Hour, `
func TestHangs(t *testing.T) { waitForThePod(make(chan bool)) }

func waitForThePod(ready chan bool) { r, _, _ := os.Pipe(); r.Read(make([]byte, 1)) }
`)
	s.limit = 15 * time.Second // to link and to start
	s.again = nil
	r.run(t.Context(), []suite{s})
	r.summary()
	wantLines(t, out, "stopped after 15s", "FAIL throwaway TestHangs (did not end)", "SIGQUIT: quit", "waitForThePod(", "FAILED throw-away: throwaway TestHangs (did not end)")
}

func TestModuleThatCrashesIsRed(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, time.Minute, `
func TestParallel(t *testing.T) {
	t.Parallel()
	waitForThePod()
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	`+once(r, `panic("nobody expected this")`)+`
}

func waitForThePod() { r, _, _ := os.Pipe(); r.Read(make([]byte, 1)) }
`)
	r.run(t.Context(), []suite{s})
	r.summary()
	if r.printTotals() || len(r.flaky) != 0 {
		t.Errorf("red %v, flaky %v", r.red, r.flaky)
	}
	wantLines(t, out, "FAIL throwaway TestCrashes", "nobody expected this", "FAILED throw-away: throwaway TestCrashes (not run again: a program crashed)")
}

func TestModuleThatDoesNotCompileIsRed(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	s := tempModule(t, r, time.Minute, "func TestA(t *testing.T) { return 1 }\n")
	r.run(t.Context(), []suite{s})
	r.summary()
	r.printTotals()
	wantLines(t, out, "FAILED throw-away: throwaway (not run again: it did not compile", "too many return values", "0 passed, 1 failed, 0 skipped")
	if strings.Count(out.String(), "=== throw-away: go test") != 1 {
		t.Error("it was retried")
	}
}
