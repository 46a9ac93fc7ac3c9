package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// blockBytes is the unit of changes.
const blockBytes = 1 << 20

// MoveData is the content of a volume that is moved: files of one size, made of blocks. The bytes of a block follow from
// its number and from the last round that wrote it, and cannot be compressed.
type MoveData struct {
	// Bytes in all, in files of FileBytes.
	Bytes, FileBytes int64
	// rounds has the last round of each block.
	rounds []int64
}

// NewMoveData returns data of at least one block; sizes are rounded up to blocks.
func NewMoveData(bytes, fileBytes int64) *MoveData {
	blocks := func(bytes int64) int64 { return max(1, (bytes+blockBytes-1)/blockBytes) }
	all := blocks(bytes)
	return &MoveData{Bytes: all * blockBytes, FileBytes: blocks(fileBytes) * blockBytes, rounds: make([]int64, all)}
}

// Files is the number of files.
func (d *MoveData) Files() int64 { return (d.Bytes + d.FileBytes - 1) / d.FileBytes }

// Fill writes all blocks.
func (d *MoveData) Fill(dir string) error {
	_, err := d.write(dir, 0, 1)
	return err
}

// Change writes percent of the blocks again, other ones in each round from 1 on, and returns how many bytes these are.
func (d *MoveData) Change(dir string, round, percent int64) (int64, error) {
	return d.write(dir, round, max(1, 100/max(1, percent)))
}

// write writes each block whose number modulo every is the round's.
func (d *MoveData) write(dir string, round, every int64) (written int64, err error) {
	block := make([]byte, blockBytes)
	for number := round % every; number < int64(len(d.rounds)); number += every {
		d.rounds[number] = round
		d.fillBlock(block, number)
		if err := d.writeBlock(dir, number, block); err != nil {
			return written, err
		}
		written += blockBytes
	}
	return written, syncAll(dir)
}

// place returns the file of a block, and where it is in it.
func (d *MoveData) place(dir string, number int64) (file string, offset int64) {
	at := number * blockBytes
	index := at / d.FileBytes
	return filepath.Join(dir, fmt.Sprintf("%03d", index/1000), fmt.Sprintf("%06d", index)), at % d.FileBytes
}

func (d *MoveData) fillBlock(block []byte, number int64) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(number))
	binary.LittleEndian.PutUint64(seed[8:], uint64(d.rounds[number]))
	_, _ = rand.NewChaCha8(seed).Read(block) // it never fails
}

func (d *MoveData) writeBlock(dir string, number int64, block []byte) (err error) {
	name, offset := d.place(dir, number)
	if offset == 0 {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(block, offset)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// Check returns an error for the first block that is not as it was written last.
func (d *MoveData) Check(dir string) error {
	want, got := make([]byte, blockBytes), make([]byte, blockBytes)
	for number := range int64(len(d.rounds)) {
		name, offset := d.place(dir, number)
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(io.NewSectionReader(file, offset, blockBytes), got)
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", name, offset, err)
		}
		if d.fillBlock(want, number); !bytes.Equal(want, got) {
			return fmt.Errorf("%s at %d is not what round %d has written", name, offset, d.rounds[number])
		}
	}
	return nil
}

// syncAll writes the file system of a folder to the disk.
func syncAll(dir string) error {
	open, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer open.Close()
	return unix.Syncfs(int(open.Fd()))
}

// MoveRow is one move of a volume whose source is warm: everything is copied, its files have not changed for so long that
// passes skip them, and then a part of it is changed and the cut-over begins.
type MoveRow struct {
	// Route is such as "home → remote", Verify that of the VolumeMove.
	Route, Class, Verify string
	Bytes, Files         int64
	// Warm is the time until everything was copied, Passes how many passes there were until the cut-over.
	Warm   time.Duration
	Passes int64
	// Changed are the bytes that were written before the cut-over, Sent those that its last pass sent.
	Changed, Sent int64
	// Predicted is what the status said before the cut-over: the duration of the last pass.
	Predicted string
	// Drain is from the gate until no node had the volume any more, LastPass from then to the commit: the mover's start,
	// what is predicted, and reading it back. Unusable is from the gate until the claim was bound.
	Drain, LastPass, Unusable time.Duration
	// PodDown is from the last time that the pod was seen ready until its successor was.
	PodDown time.Duration
	// TooShort is the same volume before, with a maxDowntime that is too short; nil if that was not tried.
	TooShort *TooShortRow
}

// TooShortRow is a cut-over whose maxDowntime cannot be met.
type TooShortRow struct {
	MaxDowntime string
	// Cutovers is how often it was tried, PodsStopped how often the pod was stopped for it, and Down how long each time.
	Cutovers    int64
	PodsStopped int
	Down        []time.Duration
	// LeftAlone is for how long the pod was observed to run undisturbed afterwards, Reason what the move said.
	LeftAlone time.Duration
	Reason    string
}

// MoveReport are the results of moves.
type MoveReport struct{ Rows []MoveRow }

// Print writes the report as a table, followed by what happened with a maxDowntime that was too short.
func (r MoveReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "move\tclass\tverify\tMiB\tfiles\twarm copy\tpasses\tchanged MiB\tlast pass sent MiB\tpredicted\tdrain\tlast pass\tunusable\tpod down\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%.0f\t%d\t%s\t%d\t%.0f\t%.1f\t%s\t%s\t%s\t%s\t%s\t\n",
			row.Route, row.Class, row.Verify, mebibytes(row.Bytes), row.Files, row.Warm.Round(time.Second), row.Passes,
			mebibytes(row.Changed), mebibytes(row.Sent), row.Predicted, tenths(row.Drain), tenths(row.LastPass),
			tenths(row.Unusable), tenths(row.PodDown))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, row := range r.Rows {
		short := row.TooShort
		if short == nil {
			continue
		}
		var down []string
		for _, one := range short.Down {
			down = append(down, tenths(one))
		}
		if _, err := fmt.Fprintf(out, "%s with maxDowntime %s: %d cut-overs, pods stopped %d times, down %v; left alone for %s since then. It said: %s\n",
			row.Route, short.MaxDowntime, short.Cutovers, short.PodsStopped, down, short.LeftAlone.Round(time.Second), short.Reason); err != nil {
			return err
		}
	}
	return nil
}

func tenths(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
