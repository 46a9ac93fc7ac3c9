package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestRoomIsReportedInPods(t *testing.T) {
	report := RoomReport{
		Nodes: 10, Took: 2 * time.Minute, Pods: 40, Placed: 30, Returns: 10, Preempted: 3, NodeWrites: 5,
		Samples: []RoomSample{{Offered: 3}, {Offered: 1, Placeable: 4, Waiting: 2}, {Offered: 2, Placeable: 2}},
	}
	var out bytes.Buffer
	if err := report.Print(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"offered 1 2 3", "placeable 0 2 4", "offered and not placeable 0 0 3", "placeable and not offered 0 0 3", "waiting there 0 0 2",
		"40 pods, 30 placed there, 10 returns (0.25 per pod), 3 preempted at home, 2.5 writes of Nodes per minute",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
