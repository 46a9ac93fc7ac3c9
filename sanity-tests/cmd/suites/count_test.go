package main

import (
	"reflect"
	"testing"
	"time"
)

func feed(c counter, text string) count {
	// In two parts, so that a line arrives in pieces.
	half := len(text) / 2
	_, _ = c.Write([]byte(text[:half]))
	_, _ = c.Write([]byte(text[half:]))
	return c.count(nil)
}

func TestCargoClosingLinesAreSummed(t *testing.T) {
	got := feed(newCargoCounter(), "test a ... ok\n"+
		"test one::of::them ... FAILED\n"+
		"test result: ok. 8 passed; 0 failed; 1 ignored; 0 measured\n"+
		"test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured\n")
	if want := (count{passed: 10, failed: 3, skipped: 1, failures: []string{"one::of::them"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestGoTestsWithSubtestsCountByTheirLeaves(t *testing.T) {
	got := feed(newGoCounter(), `{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"output","Package":"m/p","Test":"A/x","Output":"no such thing\n"}
{"Action":"fail","Package":"m/p","Test":"A/x"}
{"Action":"pass","Package":"m/p","Test":"A/y"}
{"Action":"fail","Package":"m/p","Test":"A"}
{"Action":"skip","Package":"m/p","Test":"B"}
{"Action":"fail","Package":"m/p"}
`)
	if want := (count{passed: 1, failed: 1, skipped: 1, failures: []string{"p A/x\nno such thing"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestASuiteThatFailsWithoutAFailingTestCountsAsOneFailure(t *testing.T) {
	s := suite{name: "broken", dir: ".", command: []string{"false"}, counter: newCargoCounter, limit: time.Minute}
	if got := s.run(t.Context(), "."); got.failed != 1 || got.passed != 0 {
		t.Errorf("got %+v, want one failure", got)
	}
}

func TestASuiteIsStoppedWhenItsTimeIsUp(t *testing.T) {
	s := suite{name: "endless", dir: ".", command: []string{"sleep", "600"}, counter: newCheckCounter, limit: 100 * time.Millisecond}
	if got := s.run(t.Context(), "."); got.failed != 1 || got.passed != 0 {
		t.Errorf("got %+v, want one failure", got)
	}
}
