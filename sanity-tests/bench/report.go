package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// How the command lines of the driver's processes begin.
const (
	Controller = "liqo-csi controller"
	NodePlugin = "liqo-csi node"
	// Agent is the driver's user agent.
	Agent = "liqo-csi"
)

// Sidecars run beside the controller.
var Sidecars = []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"}

// Row compares a batch of the real class with one of a virtual class that uses it.
type Row struct {
	RealClass string
	Claims    int
	// Runs is how often the batch was repeated.
	Runs    int
	Real    Times
	Virtual Times
	// CPUPerVolume is the controller's, for creating and deleting.
	CPUPerVolume time.Duration
	// API calls of the driver, for creating and deleting.
	WritesPerVolume, ReadsPerVolume, ListsPerVolume float64
	// OtherWritesPerVolume are those of all other clients.
	OtherWritesPerVolume float64
	// ControllerRSS is the controller's afterwards, in bytes.
	ControllerRSS int64
}

// BoundRatio is the ratio of the medians until Bound, virtual to real.
func (r Row) BoundRatio() float64 { return ratio(r.Virtual.P50.Seconds(), r.Real.P50.Seconds()) }

// Throughput compares the virtual class with half of the real class alone: Kubernetes binds two
// claims for each claim of a virtual class.
func (r Row) Throughput() float64 { return ratio(r.Virtual.PerSecond, r.Real.PerSecond/2) }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Memory is the RSS of processes, in bytes.
type Memory struct {
	ControllerIdle, NodePlugin int64
	// Sidecars of all replicas; Total of all processes.
	Sidecars, Total int64
}

// Report is one run.
type Report struct {
	// Conditions of the measurement, such as the controller-manager's client limits.
	Conditions []string
	Rows       []Row
	Memory     Memory
	// nil if they were not measured.
	Remote     *RemoteReport
	Full       *FullReport
	Operations *OperationsReport
	Moves      *MoveReport
}

// Print writes the report as tables.
func (r Report) Print(out io.Writer) error {
	for _, c := range r.Conditions {
		fmt.Fprintln(out, c)
	}
	if err := r.printRows(out); err != nil {
		return err
	}
	if r.Operations != nil {
		if err := r.Operations.Print(out); err != nil {
			return err
		}
	}
	if r.Remote != nil {
		if err := r.Remote.Print(out); err != nil {
			return err
		}
	}
	if r.Moves != nil {
		if err := r.Moves.Print(out); err != nil {
			return err
		}
	}
	if r.Full != nil {
		if err := r.Full.Print(out); err != nil {
			return err
		}
	}
	m := r.Memory
	_, err := fmt.Fprintf(out, "memory (RSS): controller idle %.1f MiB, node plugin %.1f MiB, sidecars of both replicas %.1f MiB, all pods of the driver %.1f MiB\n",
		mebibytes(m.ControllerIdle), mebibytes(m.NodePlugin), mebibytes(m.Sidecars), mebibytes(m.Total))
	return err
}

func (r Report) printRows(out io.Writer) error {
	if len(r.Rows) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "real class\tclaims\truns\treal p50\tp99\tliqo p50\tp99\tratio p50\treal /s\tliqo /s\tof half\tCPU/vol\treads/vol\tlists/vol\twrites/vol\tothers'\tRSS MiB\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%.1f\t%.1f\t%.0f %%\t%s\t%.1f\t%.2f\t%.1f\t%.1f\t%.1f\t\n",
			row.RealClass, row.Claims, row.Runs,
			short(row.Real.P50), short(row.Real.P99), short(row.Virtual.P50), short(row.Virtual.P99), row.BoundRatio(),
			row.Real.PerSecond, row.Virtual.PerSecond, 100*row.Throughput(),
			row.CPUPerVolume.Round(10*time.Microsecond), row.ReadsPerVolume, row.ListsPerVolume, row.WritesPerVolume, row.OtherWritesPerVolume, mebibytes(row.ControllerRSS))
	}
	return table.Flush()
}

// Save writes the report as JSON, ratios included.
func (r Report) Save(path string) error {
	type rowWithRatios struct {
		Row
		BoundRatio, ThroughputOfHalf float64
	}
	rows := make([]rowWithRatios, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = rowWithRatios{row, row.BoundRatio(), row.Throughput()}
	}
	text, err := json.MarshalIndent(map[string]any{"conditions": r.Conditions, "rows": rows, "operations": r.Operations, "remote": r.Remote, "moves": r.Moves, "full": r.Full, "memory": r.Memory}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
