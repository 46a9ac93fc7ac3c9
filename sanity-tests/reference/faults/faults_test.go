package faults

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func write(t *testing.T, dir string, switches Switches) {
	t.Helper()
	if err := Write(dir, switches); err != nil {
		t.Fatal(err)
	}
}

func call(i *Injector, ctx context.Context, what Call) (worked bool, code codes.Code) {
	_, err := i.Around(ctx, what, func() (any, error) { worked = true; return "done", nil })
	return worked, status.Code(err)
}

var create = Call{RPC: "CreateVolume", Node: "n1", Subjects: []string{"pvc-1", "tests/claim"}}

func TestRulesMatchCallsByTheirFields(t *testing.T) {
	for _, test := range []struct {
		rule Rule
		want bool
	}{
		{Rule{RPC: "CreateVolume"}, true},
		{Rule{RPC: "*"}, true},
		{Rule{RPC: "DeleteVolume"}, false},
		{Rule{RPC: "CreateVolume", Node: "n1"}, true},
		{Rule{RPC: "CreateVolume", Node: "n2"}, false},
		{Rule{RPC: "CreateVolume", Match: "tests/"}, true},
		{Rule{RPC: "CreateVolume", Match: "other/"}, false},
	} {
		if got := test.rule.Covers(create); got != test.want {
			t.Errorf("%+v covers: %v, want %v", test.rule, got, test.want)
		}
	}
}

func TestFaultsBeforeAndAfterTheWork(t *testing.T) {
	dir := t.TempDir()
	injector := NewInjector(dir)
	if worked, code := call(injector, t.Context(), create); !worked || code != codes.OK {
		t.Errorf("without switches: worked %v, %v", worked, code)
	}
	write(t, dir, Switches{Rules: []Rule{{RPC: "CreateVolume", Code: "Unavailable"}}})
	if worked, code := call(injector, t.Context(), create); worked || code != codes.Unavailable {
		t.Errorf("before: worked %v, %v", worked, code)
	}
	write(t, dir, Switches{Rules: []Rule{{RPC: "CreateVolume", Code: "DeadlineExceeded", When: "after"}}})
	if worked, code := call(injector, t.Context(), create); !worked || code != codes.DeadlineExceeded {
		t.Errorf("after: worked %v, %v", worked, code)
	}
}

func TestTimesOfARuleAreCountedPerFile(t *testing.T) {
	dir := t.TempDir()
	injector := NewInjector(dir)
	rule := Rule{RPC: "CreateVolume", Code: "Internal", Times: 2}
	var seen []codes.Code
	for range 2 {
		write(t, dir, Switches{Rules: []Rule{rule}})
		for range 3 {
			_, code := call(injector, t.Context(), create)
			seen = append(seen, code)
		}
		write(t, dir, Switches{})
		call(injector, t.Context(), create)
	}
	want := []codes.Code{codes.Internal, codes.Internal, codes.OK, codes.Internal, codes.Internal, codes.OK}
	for i := range want {
		if seen[i] != want[i] {
			t.Fatalf("codes %v, want %v", seen, want)
		}
	}
}

func TestHangEndsWithTheCallOrTheRule(t *testing.T) {
	dir := t.TempDir()
	injector := NewInjector(dir)
	write(t, dir, Switches{Rules: []Rule{{RPC: "CreateVolume", Hang: true}}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if worked, code := call(injector, ctx, create); worked || code != codes.DeadlineExceeded {
		t.Errorf("after cancellation: worked %v, %v", worked, code)
	}
	answered := make(chan codes.Code)
	go func() {
		_, code := call(injector, t.Context(), create)
		answered <- code
	}()
	select {
	case code := <-answered:
		t.Fatalf("did not hang: %v", code)
	case <-time.After(3 * recheck):
	}
	write(t, dir, Switches{})
	select {
	case code := <-answered:
		if code != codes.OK {
			t.Errorf("ended with %v", code)
		}
	case <-time.After(30 * time.Second):
		t.Error("still hangs without a rule")
	}
}

func TestInvalidRulesAreReported(t *testing.T) {
	dir := t.TempDir()
	injector := NewInjector(dir)
	write(t, dir, Switches{Rules: []Rule{{RPC: "CreateVolume", Code: "BUSY"}}})
	if worked, code := call(injector, t.Context(), create); worked || code != codes.Internal {
		t.Errorf("unknown code: worked %v, %v", worked, code)
	}
	if err := os.WriteFile(filepath.Join(dir, File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if worked, code := call(injector, t.Context(), create); worked || code != codes.Internal {
		t.Errorf("broken file: worked %v, %v", worked, code)
	}
}

func TestSpaceLeft(t *testing.T) {
	dir := t.TempDir()
	injector := NewInjector(dir)
	if _, limited, err := injector.SpaceLeft(); limited || err != nil {
		t.Errorf("without a switch: limited %v, %v", limited, err)
	}
	none := int64(0)
	write(t, dir, Switches{SpaceLeft: &none})
	if bytes, limited, err := injector.SpaceLeft(); bytes != 0 || !limited || err != nil {
		t.Errorf("full backend: %d, limited %v, %v", bytes, limited, err)
	}
}
