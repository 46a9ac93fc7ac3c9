package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestChangesOfMovedDataAreFoundAndComplete(t *testing.T) {
	for _, fileBytes := range []int64{1, 3 << 20, 1 << 30} {
		dir := t.TempDir()
		data := NewMoveData(40<<20, fileBytes)
		if err := data.Fill(dir); err != nil {
			t.Fatal(err)
		}
		for round := int64(1); round <= 2; round++ {
			changed, err := data.Change(dir, round, 10)
			if err != nil || changed != 4<<20 {
				t.Fatalf("changed %d bytes: %v", changed, err)
			}
		}
		if err := data.Check(dir); err != nil {
			t.Error(err)
		}
		files := 0
		if err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() {
				files++
			}
			return err
		}); err != nil || int64(files) != data.Files() {
			t.Errorf("there are %d files, not %d: %v", files, data.Files(), err)
		}
		name, offset := data.place(dir, 21)
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteAt([]byte("other"), offset+7)
		if err != nil || file.Close() != nil {
			t.Fatal(err)
		}
		if err := data.Check(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAMoveIsReportedWithWhatItsCutOverTook(t *testing.T) {
	report := MoveReport{Rows: []MoveRow{{
		Route: "home → remote", Class: "reference", Verify: "Incremental", Bytes: 1 << 30, Files: 1024, Warm: 70 * time.Second,
		Passes: 14, Changed: 11 << 20, Sent: 11 << 20, Predicted: "1s", Drain: 12 * time.Second, LastPass: 9 * time.Second,
		Unusable: 24 * time.Second, PodDown: 31 * time.Second,
		TooShort: &TooShortRow{MaxDowntime: "1s", Cutovers: 3, PodsStopped: 3, Down: []time.Duration{20 * time.Second},
			LeftAlone: 2 * time.Minute, Reason: "3 times the last pass took longer"},
	}}}
	var out bytes.Buffer
	if err := report.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1024", "11.0", "24s", "31s", "with maxDowntime 1s: 3 cut-overs, pods stopped 3 times, down [20s]", "left alone for 2m0s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
