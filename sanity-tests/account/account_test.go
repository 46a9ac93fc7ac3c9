package account

import (
	"slices"
	"testing"
)

func TestBeyondNamesOnlyWhatIsNew(t *testing.T) {
	before, after := Stock{}, Stock{}
	before.add("twin %s", "a")
	before.add("twin %s", "b")
	after.add("twin %s", "b")
	after.add("twin %s", "d")
	after.add("twin %s", "c")
	if leaked := after.Beyond(before); !slices.Equal(leaked, []string{"twin c", "twin d"}) {
		t.Errorf("leaked: %v", leaked)
	}
	if lost := before.Beyond(after); !slices.Equal(lost, []string{"twin a"}) {
		t.Errorf("lost: %v", lost)
	}
}
