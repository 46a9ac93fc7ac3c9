package driver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCompileReturnsTheGivenProgram(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "liqo-csi")
	t.Setenv(BinaryVariable, binary)
	if _, err := compile(t.Context()); err == nil {
		t.Error("a program that does not exist was returned")
	}
	if err := os.WriteFile(binary, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := compile(t.Context()); err != nil || got != binary {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestCompileRejectsAnUnknownProfile(t *testing.T) {
	t.Setenv(BinaryVariable, "")
	t.Setenv(ProfileVariable, "debug")
	if _, err := compile(t.Context()); err == nil {
		t.Error("profile debug was accepted")
	}
}

func TestProgressNamesTheCurrentCrate(t *testing.T) {
	out := &cargoOutput{}
	for _, part := range []string{"   Compiling one v1.0.0\n   Comp", "iling two v2.0.0\n"} {
		if _, err := out.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.progress(310), "2 of about 310 crates started; cargo: Compiling two v2.0.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (&cargoOutput{}).progress(310), "0 of about 310 crates started; cargo: "; got != want {
		t.Errorf("before the first line: got %q, want %q", got, want)
	}
}

func TestLockedCratesAreCounted(t *testing.T) {
	if got := lockedCrates("../.."); got < 100 {
		t.Errorf("%d crates in Cargo.lock", got)
	}
}
