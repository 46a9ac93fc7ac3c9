package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"storage.liqo.io/sanity-tests/reference/internal/mounttest"
)

// writeInTurn writes increasing numbers alternately to two files until stop is closed.
func writeInTurn(folder string, stop <-chan struct{}) error {
	for number := 0; ; number++ {
		for _, name := range []string{"first", "second"} {
			if err := writeDurably(filepath.Join(folder, name), fmt.Sprintf("%08d", number)); err != nil {
				return err
			}
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func writeDurably(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte(content), 0)
	return errors.Join(err, file.Sync(), file.Close())
}

func numberIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// writeDistantFiles creates the two files, with enough data between them on the disk that a copy reads them at
// different times.
func writeDistantFiles(folder string) error {
	return errors.Join(
		writeDurably(filepath.Join(folder, "first"), "00000000"),
		writeDurably(filepath.Join(folder, "between"), strings.Repeat("-", 200<<20)),
		writeDurably(filepath.Join(folder, "second"), "00000000"))
}

// A copy of a volume in use is of one point in time: it has no later write without all earlier
// ones.
func TestCopiesAreOfOnePointInTime(t *testing.T) {
	mounttest.NeedRoot(t)
	const bytes = 320 * mebibyte
	for filesystem := range imageSizes {
		t.Run(filesystem, func(t *testing.T) {
			c := start(t, Config{})
			backing := map[string]string{"backing": filesystem}
			m := newMounted(t, c, c.create(t, request("v", bytes, backing)), oneNode)
			m.show(t)
			stop, ended := make(chan struct{}), make(chan error, 1)
			if err := writeDistantFiles(m.target); err != nil {
				t.Fatal(err)
			}
			go func() { ended <- writeInTurn(m.target, stop) }()
			for number := range 3 {
				clone := request("clone-"+strconv.Itoa(number), bytes, backing)
				clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
					Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: m.volume.GetVolumeId()}}}
				copied := newMounted(t, c, c.create(t, clone), oneNode)
				copied.show(t)
				first, second := numberIn(t, filepath.Join(copied.target, "first")), numberIn(t, filepath.Join(copied.target, "second"))
				if first != second && first != second+1 {
					t.Errorf("the copy has %d in the file that is written first, %d in the second", first, second)
				}
			}
			close(stop)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
