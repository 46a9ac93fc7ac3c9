package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParseFlakyList(t *testing.T) {
	got, err := parseFlaky("# a comment\n\ndriver\tsanity-tests/e2e/driver TestA/b\t350\nrust\ta::b\t351\n")
	if want := []flakyTest{{"driver", "sanity-tests/e2e/driver TestA/b", 350}, {"rust", "a::b", 351}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if old := tooOld(got, 450); len(old) != 0 {
		t.Errorf("too old after 100 commits: %v", old)
	}
	if old := tooOld(got, 451); !slices.Equal(old, got[:1]) {
		t.Errorf("too old after 101 commits: %v", old)
	}
	if line := got[1].String(); line != "rust\ta::b\t351" {
		t.Errorf("the line is %q", line)
	}
}

func TestInvalidFlakyListIsRejected(t *testing.T) {
	for _, text := range []string{"rust a::b 350", "rust\ta::b", "rust\ta::b\tsoon", "rust\ta::b\t0", "\ta::b\t350", "rust\ta::b\t350\tx"} {
		if _, err := parseFlaky(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestOldFlakyEntryMakesTheRunFail(t *testing.T) {
	list := filepath.Join(t.TempDir(), flakyFile)
	if err := os.WriteFile(list, []byte("rust\ta::b\t349\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, out := newRunner(t)
	r.checkFlaky(list)
	r.run(t.Context(), []suite{ok("a")})
	r.summary()
	if r.printTotals() {
		t.Error("the run passed")
	}
	wantLines(t, out, "FAILED flaky.txt", "rust: a::b has been flaky since commit 349, this is 450", "1 passed, 1 failed, 0 skipped")
}

func TestFlakyListOfTheRepository(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", flakyFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseFlaky(string(text)); err != nil {
		t.Error(err)
	}
}

func TestKnownFlakyTestIsNotSuggestedAgain(t *testing.T) {
	r, out := newRunner(t)
	r.known = []flakyTest{{"flaky", "p A", 440}}
	r.run(t.Context(), []suite{fake("flaky", failing("A", "no answer")+packageFails, map[string]string{"m/p A": passing("A")})})
	r.summary()
	wantLines(t, out, "FLAKY flaky: p A: failed, and passed")
	wantNone(t, out, "add this line") // it is in the list
}
