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

// Driver and Sidecars are the processes whose cost is reported, as their command
// lines begin.
const (
	Controller = "liqo-csi controller"
	NodePlugin = "liqo-csi node"
	// Agent is how the driver calls itself to API servers.
	Agent = "liqo-csi"
)

// Sidecars run beside the controller.
var Sidecars = []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"}

// Row is one race on the real class and one on the virtual class above it.
type Row struct {
	RealClass string
	Claims    int
	// Heats is how often it was held; few claims say little.
	Heats   int
	Real    Times
	Virtual Times
	// CPUPerVolume is the controller's, creating and deleting.
	CPUPerVolume time.Duration
	// WritesPerVolume counts API writes of the driver itself, creating and deleting.
	WritesPerVolume float64
	// ReadsPerVolume and ListsPerVolume count the other calls of the driver.
	ReadsPerVolume, ListsPerVolume float64
	// OtherWritesPerVolume counts those of all other clients together.
	OtherWritesPerVolume float64
	// ControllerRSS is the controller's after the race, in bytes.
	ControllerRSS int64
}

// Bound is how many times as long a claim of the virtual class takes to be
// bound: the ratio of the medians.
func (r Row) Bound() float64 { return ratio(r.Virtual.P50.Seconds(), r.Real.P50.Seconds()) }

// Throughput is the virtual class's against half the real class's alone: each
// claim of the virtual class is two claims to Kubernetes.
func (r Row) Throughput() float64 { return ratio(r.Virtual.PerSecond, r.Real.PerSecond/2) }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Memory is what processes hold, in bytes.
type Memory struct {
	ControllerIdle, NodePlugin int64
	// Sidecars of all replicas, and everything together.
	Sidecars, Total int64
}

// Report is one run.
type Report struct {
	// Conditions are what must be known to read the figures, such as the
	// controller-manager's client limits.
	Conditions []string
	Rows       []Row
	Memory     Memory
	// Remote is what was measured across clusters, if it was.
	Remote *RemoteReport
	// Full is what was measured beside many volumes, if it was.
	Full *FullReport
	// Operations is what was measured of volumes that were there, if it was.
	Operations *OperationsReport
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
	fmt.Fprintln(table, "real class\tclaims\theats\treal p50\tp99\tliqo p50\tp99\tratio p50\treal /s\tliqo /s\tof half\tCPU/vol\treads/vol\tlists/vol\twrites/vol\tothers'\tRSS MiB\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%.1f\t%.1f\t%.0f %%\t%s\t%.1f\t%.2f\t%.1f\t%.1f\t%.1f\t\n",
			row.RealClass, row.Claims, row.Heats,
			short(row.Real.P50), short(row.Real.P99), short(row.Virtual.P50), short(row.Virtual.P99), row.Bound(),
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
		rows[i] = rowWithRatios{row, row.Bound(), row.Throughput()}
	}
	text, err := json.MarshalIndent(map[string]any{"conditions": r.Conditions, "rows": rows, "operations": r.Operations, "remote": r.Remote, "full": r.Full, "memory": r.Memory}, "", "  ")
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
